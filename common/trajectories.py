"""Trajectories: consecutive rows, each taken once and in order.

Two sources: a ``Rollout`` in the memory of the process that both acts and learns, and a
``TrajectoryQueue``, the shared experience buffer read in order by another process.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.consumption import (
    LOOK_EVERY_BATCHES,
    UpdateClock,
    consume_trajectory,
    record_policy_lag,
)
from common.envs import EnvInfo
from common.experience import ExperienceBuffer
from common.probe import Probe
from common.shared_memory import SharedArrays, memory_fence
from common.state_files import State
from common.types import BoolArray, FloatArray, IntArray, LaneStep


class Trajectory(NamedTuple):
    """T consecutive rows of B lanes.

    Attributes:
        observation: ``[T + 1, B, ...]``; row t + 1 is what step t led to. At an end that is the
            episode's final observation, and row t + 1 is not valid.
        action: ``[T, B]`` int64.
        action_probability: ``[T, B]`` of the behavior policy.
        reward: ``[T, B]``.
        terminated: ``[T, B]``.
        truncated: ``[T, B]``.
        valid: ``[T, B]`` False where the lane moved on to its next episode: no transition.
        weights_version: ``[T]`` of the weights that acted.
    """

    observation: NDArray[Any]
    action: IntArray
    action_probability: FloatArray
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    valid: BoolArray
    weights_version: IntArray

    @property
    def num_env_steps(self) -> int:
        """Transitions in it."""
        return int(self.valid.sum())

    @property
    def versions(self) -> IntArray:
        """The weights version that acted, of each transition, ``[N]``."""
        return np.repeat(self.weights_version, self.valid.sum(axis=1))

    @property
    def episode_continues(self) -> FloatArray:
        """1 - (terminated or truncated), ``[T, B]``."""
        return (~(self.terminated | self.truncated)).astype(self.reward.dtype)

    def discount(self, gamma: float) -> FloatArray:
        """Return gamma (1 - terminated), ``[T, B]``: a truncation still bootstraps."""
        return np.where(self.terminated, 0, gamma).astype(self.reward.dtype)


class Rollout:
    """Room for one trajectory. Belongs to one process.

    Args:
        length: rows T.
        num_lanes: B.
        info: the environment's spaces.
    """

    def __init__(self, length: int, num_lanes: int, info: EnvInfo) -> None:
        self._length = length
        lanes = (length, num_lanes)
        observations = (length + 1, num_lanes, *info.observation_shape)
        self._rows = Trajectory(
            observation=np.zeros(observations, dtype=info.observation_dtype),
            action=np.zeros(lanes, dtype=np.int64),
            action_probability=np.zeros(lanes, dtype=np.float32),
            reward=np.zeros(lanes, dtype=np.float32),
            terminated=np.zeros(lanes, dtype=bool),
            truncated=np.zeros(lanes, dtype=bool),
            valid=np.zeros(lanes, dtype=bool),
            weights_version=np.zeros(length, dtype=np.int64),
        )
        self._row = 0
        self.num_env_steps = 0

    @property
    def is_full(self) -> bool:
        """Whether the trajectory is complete."""
        return self._row == self._length

    def write(
        self,
        observation: NDArray[Any],
        action: IntArray,
        action_probability: FloatArray,
        step: LaneStep,
        weights_version: int,
    ) -> None:
        """Write one row; the arguments are those of ``SegmentWriter.write``."""
        rows, row = self._rows, self._row
        rows.observation[row] = observation
        rows.action[row] = action
        rows.action_probability[row] = action_probability
        rows.reward[row] = step.reward
        rows.terminated[row] = step.terminated
        rows.truncated[row] = step.truncated
        rows.valid[row] = step.valid
        rows.weights_version[row] = weights_version
        self._row += 1
        self.num_env_steps += int(step.valid.sum())

    def state(self) -> State:
        """Return what was written since the last ``take``."""
        rows = {name: array[: self._row] for name, array in self._rows._asdict().items()}
        return {"num_rows": self._row, "num_env_steps": self.num_env_steps, **rows}

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self._row, self.num_env_steps = state["num_rows"], state["num_env_steps"]
        for name, array in self._rows._asdict().items():
            array[: self._row] = state[name]

    def cut(self, lanes: BoolArray) -> None:
        """End the episodes of some lanes ``[L]`` with the last row; see ``SegmentWriter.cut``."""
        if self._row == 0:
            return
        rows, last = self._rows, self._row - 1
        ended = rows.terminated[last] | rows.truncated[last]
        rows.truncated[last] |= lanes & rows.valid[last] & ~ended

    def take(self, observation: NDArray[Any]) -> Trajectory:
        """Return what was written, closed by the last observation ``[B, ...]``, and start anew.

        The arrays are views that the next ``write`` overwrites.
        """
        length = self._row
        self._rows.observation[length] = observation
        self._row = self.num_env_steps = 0
        return Trajectory(
            observation=self._rows.observation[: length + 1],
            action=self._rows.action[:length],
            action_probability=self._rows.action_probability[:length],
            reward=self._rows.reward[:length],
            terminated=self._rows.terminated[:length],
            truncated=self._rows.truncated[:length],
            valid=self._rows.valid[:length],
            weights_version=self._rows.weights_version[:length],
        )


class TrajectoryQueue:
    """The experience buffer read in order, every row once.

    Args:
        config: choices.
        info: the environment's spaces.
        length: rows T of a trajectory.
        capacity: trajectories that an actor may be ahead of the learner.
    """

    def __init__(self, config: Config, info: EnvInfo, length: int, capacity: int) -> None:
        self.length, self.capacity = length, capacity
        # An actor publishes whole trajectories, one row late: that row's observation is what the last
        # step led to. The buffer adds a guard band of several chunks, so unread rows are never reused.
        rows = max(capacity * length * config.num_lanes, config.batch_size)
        self.config = dataclasses.replace(
            config, chunk_steps=length, n_step=1, replay_capacity=rows, prioritized=False
        )
        self.buffer = ExperienceBuffer(self.config, info)
        # taken[w]: rows of worker w that the learner is done with. Written by the learner alone after
        # it has copied them, read by worker w, which waits for room.
        self._words = SharedArrays({"taken": ((config.workers, 8), np.int64)})
        self._next_worker = 0
        self._num_taken = 0
        self._clock: UpdateClock | None = None  # the learner's, made there

    def state(self) -> State:
        """Return what only the learner knows of it."""
        clock = None if self._clock is None else self._clock.state()
        return {"next_worker": self._next_worker, "num_taken": self._num_taken, "clock": clock}

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self._next_worker, self._num_taken = state["next_worker"], state["num_taken"]
        if state["clock"] is not None:
            self._clock = UpdateClock()
            self._clock.load_state(state["clock"])

    def is_full(self, worker: int) -> bool:
        """Return whether an actor is as far ahead of the learner as it may be."""
        taken = int(self._words["taken"][worker, 0])
        return self.buffer.published(worker) - taken >= self.capacity * self.length

    def take(self, probe: Probe) -> Trajectory | None:
        """Copy the next trajectory, or return None if there is none. Only the learner calls it.

        Actors take turns, so that a fast one cannot keep the others waiting.
        """
        num_workers = self.buffer.num_workers
        for i in range(num_workers):
            worker = (self._next_worker + i) % num_workers
            first = int(self._words["taken"][worker, 0])
            while self.buffer.published(worker) - first >= self.length:
                trajectory = self._copy(worker, first)
                if trajectory.valid.any():
                    self._next_worker = worker + 1
                    self._account(worker, trajectory, probe)
                    return trajectory
                first += self.length  # all of it was begun by a worker that died
        return None

    def _copy(self, worker: int, first: int) -> Trajectory:
        memory_fence()
        buffer, until = self.buffer, first + self.length
        rows = np.arange(first, until + 1) % buffer.num_rows
        trajectory = Trajectory(
            observation=buffer["observation"][worker, rows],
            action=buffer["action"][worker, rows[:-1]].astype(np.int64),
            action_probability=buffer["action_probability"][worker, rows[:-1]],
            reward=buffer["reward"][worker, rows[:-1]],
            terminated=buffer["terminated"][worker, rows[:-1]],
            truncated=buffer["truncated"][worker, rows[:-1]],
            valid=buffer["valid"][worker, rows[:-1]],
            weights_version=buffer["weights_version"][worker, rows[:-1]],
        )
        memory_fence()
        self._words["taken"][worker, 0] = until
        return trajectory

    def _account(self, worker: int, trajectory: Trajectory, probe: Probe) -> None:
        consume_trajectory(probe, trajectory, worker)
        if not self.config.instruments:
            return
        if self._clock is None:
            self._clock = UpdateClock()
        self._clock.note(probe.moment())
        if self._num_taken % LOOK_EVERY_BATCHES == 0:
            record_policy_lag(probe, self._clock, trajectory.versions)
        self._num_taken += 1
