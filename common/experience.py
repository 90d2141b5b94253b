"""The experience buffer: one structure in shared memory, three ways to take from it.

Each worker owns a segment that only it writes: a ring of rows, one row per vector step, each holding
what every lane saw and did. Every observation is stored once, in the environment's own dtype: what a
step led to is the lane's next row. At an end that next row holds the final observation and is not
``valid``; the row after it begins the next episode.

    row       0      1      2      3        4      5
    obs       s0     s1     s2     s3=final s0'    s1'
    action    a0     a1     a2     -        a0'    ...
    ended     -      -      yes    -        -
    valid     yes    yes    yes    no       yes

A row is published when its n-step window is complete, so n rows behind the one being written. The
learner's way of taking rows is what makes the strategies differ: sampled many times by priority
(``apex``), read once in order, or a round at a time.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.envs import EnvInfo
from common.probe import Probe
from common.returns import n_step_window
from common.shared_memory import SharedArrays, memory_fence
from common.state_files import State, fill
from common.types import BoolArray, FloatArray, IntArray, LaneStep

WRITING, PUBLISHED = 0, 1
HEADER_WORDS = 8  # one cache line per worker

ROW_FIELDS = (
    "observation",
    "action",
    "action_probability",
    "reward",
    "terminated",
    "truncated",
    "valid",
    "priority",
    "weights_version",
    "env_steps_before",
)


class ExperienceBuffer:
    """The segments of all workers.

    Args:
        config: choices; ``replay_capacity`` counts rows over all lanes.
        info: the environment's spaces.
    """

    def __init__(self, config: Config, info: EnvInfo) -> None:
        self.num_workers = config.workers
        self._workers = slice(None)
        self._saves_all_rows = config.checkpoint_replay
        self.num_lanes = config.envs_per_worker
        # Rows that the worker may overwrite at any moment are not sampled. The band is some chunks
        # wide, since the worker goes on while the learner copies; a copy is checked again all the same.
        self.guard_rows = 4 * config.chunk_steps + config.n_step + 1
        wanted = -(-config.replay_capacity // config.num_lanes)
        self.num_rows = max(wanted, 2 * (config.chunk_steps + config.n_step)) + self.guard_rows
        rows = (self.num_workers, self.num_rows)
        lanes = (*rows, self.num_lanes)
        # Segment w of every array is written by worker w alone and read by the learner. Per worker:
        # WRITING is advanced before a row is touched, PUBLISHED after all of its window is in place. A
        # reader copies rows below PUBLISHED and then checks against WRITING that none was reused.
        self._arrays = SharedArrays(
            {
                "header": ((self.num_workers, HEADER_WORDS), np.int64),
                "observation": ((*lanes, *info.observation_shape), info.observation_dtype),
                "action": (lanes, np.int32),
                "action_probability": (lanes, np.float32),
                "reward": (lanes, np.float32),
                "terminated": (lanes, np.bool_),
                "truncated": (lanes, np.bool_),
                "valid": (lanes, np.bool_),
                "priority": (lanes, np.float32),
                "weights_version": (rows, np.int64),
                "env_steps_before": (rows, np.int64),
            }
        )

    @property
    def num_bytes(self) -> int:
        """Shared memory used."""
        return self._arrays.num_bytes

    @property
    def first_worker(self) -> int:
        """Number in the whole run of the first worker that this buffer shows."""
        return self._workers.start or 0

    @property
    def bytes_per_transition(self) -> float:
        """Shared memory per row and lane."""
        return self.num_bytes / (self.num_workers * self.num_rows * self.num_lanes)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name][self._workers]

    def segment(self, worker: int) -> ExperienceBuffer:
        """Return one worker's segment as a buffer of one worker, on the same memory."""
        own = copy.copy(self)
        own.num_workers, own._workers = 1, slice(worker, worker + 1)
        return own

    def state(self) -> State:
        """Return all rows, or, without ``checkpoint_replay``, those that only their worker has seen."""
        if self._saves_all_rows:
            return self._arrays.state()
        tails = []
        for worker in range(self.num_workers):
            slots = self._tail(worker)
            tails.append({name: self[name][worker, slots] for name in ROW_FIELDS})
        return {"header": self["header"], "tails": tails}

    def load_state(self, state: State) -> None:
        """Put back what ``state`` returned, before any worker starts.

        Raises:
            StateError: it is of another buffer.
        """
        if "tails" not in state:
            self._arrays.load_state(state)
            return
        fill(self["header"], state["header"], "header")
        for worker, saved in enumerate(state["tails"]):
            slots = self._tail(worker)
            for name in ROW_FIELDS:
                tail = self[name][worker, slots]
                fill(tail, saved[name], name)
                self[name][worker, slots] = tail

    def _tail(self, worker: int) -> IntArray:
        """Return the places of a worker's rows from the last published one on."""
        first = max(0, self.published(worker) - 1)
        return np.arange(first, self.writing(worker)) % self.num_rows

    def published(self, worker: int) -> int:
        """Return the number of rows that a worker has published since the start."""
        return int(self["header"][worker, PUBLISHED])

    def writing(self, worker: int) -> int:
        """Return the number of rows that a worker has begun since the start."""
        return int(self["header"][worker, WRITING])

    def settle(self, worker: int, env_steps: int) -> None:
        """Finish the publish in which a worker was killed, if it had counted its env steps already.

        All that was left to do was to show the rows. Called when the worker is dead, by the one process
        that may write its segment then.

        Args:
            worker: who died.
            env_steps: that it had counted.
        """
        first = self.published(worker)
        if self.env_steps_until(worker, first) == env_steps:
            return
        for row in range(first + 1, self.writing(worker)):
            if self.env_steps_before(worker, row) == env_steps:
                self["header"][worker, PUBLISHED] = row
                return

    def env_steps_before(self, worker: int, row: int) -> int:
        """Return the env steps of a worker in the rows before ``row`` (which must still be there)."""
        return int(self["env_steps_before"][worker, row % self.num_rows])

    def env_steps_until(self, worker: int, row: int) -> int:
        """Return the env steps of a worker in the rows before ``row``, counted from the rows.

        The row before it must still be there.
        """
        if row == 0:
            return 0
        valid = self["valid"][worker, (row - 1) % self.num_rows]
        return self.env_steps_before(worker, row - 1) + int(valid.sum())


class SegmentWriter:
    """The writing end of one worker's segment.

    Args:
        buffer: the shared structure.
        worker: whose segment.
        config: choices.
    """

    def __init__(self, buffer: ExperienceBuffer, worker: int, config: Config) -> None:
        self._buffer = buffer
        self._num_rows = buffer.num_rows
        self._n_step = config.n_step
        self._chunk_steps = config.chunk_steps
        self._gamma = config.gamma
        self._header = memoryview(buffer["header"][worker])
        self._rows: dict[str, NDArray[Any]] = {name: buffer[name][worker] for name in ROW_FIELDS}
        # The worker's own Q-values of each row, for the first priorities; nobody else needs them.
        shape = (buffer.num_rows, buffer.num_lanes)
        self._q_taken = np.zeros(shape, dtype=np.float32)
        self._q_max = np.zeros(shape, dtype=np.float32)
        self._row = int(self._header[WRITING])
        self._published_row = int(self._header[PUBLISHED])
        self._env_steps = self._published_env_steps = buffer.env_steps_until(
            worker, self._published_row
        )
        # Rows that are there already are those of a worker that died, unless a resumed run goes on with
        # them: then its state is loaded before anything is written.
        self._takes_over = self._row > 0

    def _cut(self) -> None:
        """Go on after a worker that died: what it had begun and not published becomes no transition.

        The rows stay where they are, because the windows of its last published rows end in them, and
        the newest of them closes its episodes. The next row begins new ones.
        """
        self._takes_over = False
        begun = np.arange(self._published_row, self._row)
        unread = begun[self._n_step if self._published_row else 0 :] % self._num_rows
        for name in ROW_FIELDS:
            self._rows[name][unread] = 0  # the last of them may be half-written
        self._rows["action_probability"][unread] = 1
        begun %= self._num_rows
        self._rows["valid"][begun] = False
        self._rows["env_steps_before"][begun] = self._env_steps
        self._rows["truncated"][(self._row - 1) % self._num_rows] = True

    @property
    def unpublished_env_steps(self) -> int:
        """Env steps written and not yet published."""
        return self._env_steps - self._published_env_steps

    def write(
        self,
        observation: NDArray[Any],
        q_values: FloatArray,
        action: IntArray,
        action_probability: FloatArray,
        step: LaneStep,
        weights_version: int,
    ) -> None:
        """Write one row: what every lane saw, did and got.

        Args:
            observation: ``[L, ...]`` that the actions were chosen for.
            q_values: ``[L, A]`` of that observation, the worker's own.
            action: ``[L]``.
            action_probability: ``[L]`` with which the behavior policy chose the action.
            step: what the environments returned.
            weights_version: version of the weights that acted.
        """
        if self._takes_over:
            self._cut()
        self._header[WRITING] = self._row + 1
        memory_fence()
        row = self._row % self._num_rows
        self._rows["observation"][row] = observation
        self._rows["action"][row] = action
        self._rows["action_probability"][row] = action_probability
        self._rows["reward"][row] = step.reward
        self._rows["terminated"][row] = step.terminated
        self._rows["truncated"][row] = step.truncated
        self._rows["valid"][row] = step.valid
        self._rows["weights_version"][row] = weights_version
        self._rows["env_steps_before"][row] = self._env_steps
        self._q_taken[row] = q_values[np.arange(len(action)), action]
        self._q_max[row] = q_values.max(axis=1)
        self._row += 1
        self._env_steps += int(step.valid.sum())

    def state(self) -> State:
        """Return what only this worker knows of its segment."""
        unpublished = np.arange(self._published_row, self._row) % self._num_rows
        return {
            "row": self._row,
            "published_row": self._published_row,
            "env_steps": self._env_steps,
            "published_env_steps": self._published_env_steps,
            "takes_over": self._takes_over,
            "q_taken": self._q_taken[unpublished],
            "q_max": self._q_max[unpublished],
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken; the rows themselves are the buffer's."""
        self._row, self._published_row = state["row"], state["published_row"]
        self._env_steps = state["env_steps"]
        self._published_env_steps = state["published_env_steps"]
        self._takes_over = state["takes_over"]
        unpublished = np.arange(self._published_row, self._row) % self._num_rows
        self._q_taken[unpublished] = state["q_taken"]
        self._q_max[unpublished] = state["q_max"]

    def cut(self, lanes: BoolArray) -> None:
        """End the episodes of some lanes ``[L]`` with the last row, as a truncation.

        The next row holds what that row led to and is no transition. The last row is never published
        yet, so nobody else can have read it.
        """
        if self._row == 0:
            return
        last = (self._row - 1) % self._num_rows
        ended = self._rows["terminated"][last] | self._rows["truncated"][last]
        self._rows["truncated"][last] |= lanes & self._rows["valid"][last] & ~ended

    def publish_when_full(self, probe: Probe) -> bool:
        """Publish a chunk once enough rows are complete; return whether that was done."""
        if self._row - self._n_step - self._published_row < self._chunk_steps:
            return False
        self._publish(self._row - self._n_step, probe)
        return True

    def flush(self, observation: NDArray[Any], probe: Probe) -> None:
        """Publish what is left when the worker stops.

        The last n rows have no complete window. A closing row holds the last observation, so that
        their windows end there with a bootstrap, as at a truncation.

        Args:
            observation: ``[L, ...]`` that the last step returned.
            probe: where the env steps are counted.
        """
        if self._row == 0:
            return
        if self._takes_over:
            self._cut()
        self.cut(np.ones(self._buffer.num_lanes, dtype=bool))
        self._header[WRITING] = self._row + 1
        row = self._row % self._num_rows
        self._rows["observation"][row] = observation
        self._rows["valid"][row] = False
        self._rows["terminated"][row] = False
        self._rows["truncated"][row] = False
        self._rows["env_steps_before"][row] = self._env_steps
        self._q_taken[row] = 0
        self._q_max[row] = 0
        self._publish(self._row, probe)
        self._row += 1

    def _publish(self, until: int, probe: Probe) -> None:
        rows = np.arange(self._published_row, until)
        self._rows["priority"][rows % self._num_rows] = self._first_priorities(rows)
        memory_fence()
        # Counted before the rows can be seen: a worker killed between the two stores has counted at
        # most one chunk that nobody can take.
        published_env_steps = int(self._rows["env_steps_before"][until % self._num_rows])
        probe.count("env_steps", published_env_steps - self._published_env_steps)
        self._header[PUBLISHED] = until
        self._published_row = until
        self._published_env_steps = published_env_steps

    def _first_priorities(self, rows: IntArray) -> FloatArray:
        """Return |n-step TD error| by the worker's own Q-values, ``[K, L]`` (Horgan et al. 2018)."""
        num_rows, num_lanes = self._num_rows, self._buffer.num_lanes
        window = (rows[:, None] + np.arange(self._n_step)) % num_rows  # [K, n]
        shape = (len(rows) * num_lanes, self._n_step)
        returns, discount, horizon = n_step_window(
            self._rows["reward"][window].transpose(0, 2, 1).reshape(shape),
            self._rows["terminated"][window].transpose(0, 2, 1).reshape(shape),
            self._rows["truncated"][window].transpose(0, 2, 1).reshape(shape),
            self._gamma,
        )
        lane = np.tile(np.arange(num_lanes), len(rows))
        bootstrap_row = (np.repeat(rows, num_lanes) + horizon) % num_rows
        next_value = self._q_max[bootstrap_row, lane]
        td_error = returns + discount * next_value - self._q_taken[rows % num_rows].reshape(-1)
        priority: FloatArray = np.abs(td_error).reshape(len(rows), num_lanes)
        return priority
