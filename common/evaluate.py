"""Greedy evaluation off the training clock, and the record of what was reached.

An evaluation plays a fixed number of whole episodes, one per lane, each to its end. (Taking "the
first n episodes to finish" of a running batch would prefer the short ones.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.acting import ActingNetwork, NetworkSpec
from common.envs import Lanes
from common.state_files import State
from common.types import Evaluation, FloatArray, IntArray, LaneStep

SOLVED_IN_A_ROW = 3
MAX_KEPT = 512  # evaluations with their returns take a kilobyte each in the supervisor
FINAL_EPISODES = 100
MAX_EPISODE_STEPS = 100_000  # an environment without a time limit may never end an episode


def play_episodes(
    env_id: str,
    spec: NetworkSpec,
    vector: FloatArray,
    num_episodes: int,
    seeds: np.random.SeedSequence,
) -> tuple[float, ...]:
    """Play whole greedy episodes from fresh starts and return their undiscounted returns."""
    return play_and_compare(env_id, spec, vector, num_episodes, seeds, 1.0).returns


class Played(NamedTuple):
    """Whole greedy episodes.

    Attributes:
        returns: undiscounted, one per episode.
        q_bias: mean over all their states of the network's estimate minus the discounted return that
            followed; where an episode was truncated, its last estimate stands for what was cut off.
    """

    returns: tuple[float, ...]
    q_bias: float


def play_and_compare(
    env_id: str,
    spec: NetworkSpec,
    vector: FloatArray,
    num_episodes: int,
    seeds: np.random.SeedSequence,
    gamma: float,
    estimates: str = "Q",
    beat: Callable[[], None] = lambda: None,
) -> Played:
    """Play whole greedy episodes and compare what the network expected with what came.

    Args:
        env_id: the environment.
        spec: the network's shape.
        vector: ``[P]`` its weights.
        num_episodes: played side by side, one per lane.
        seeds: of the starts.
        gamma: discount.
        estimates: ``"Q"``, or ``"V"`` where the value head is the estimate.
        beat: called before each step, and when everything has been made.
    """
    network = ActingNetwork(spec, vector)
    values: list[FloatArray] = []
    steps: list[LaneStep] = []
    nothing = np.empty(0)

    def estimate(observation: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        value, advantage = network.heads(observation)
        q_values = value + advantage - advantage.mean(axis=1, keepdims=True)
        return (value[:, 0] if estimates == "V" else q_values.max(axis=1)), q_values

    def choose(observation: NDArray[Any]) -> IntArray:
        value, q_values = estimate(observation)
        values.append(value)
        beat()
        best: IntArray = q_values.argmax(axis=1)
        return best

    def watch(step: LaneStep) -> None:
        # Without the observations of earlier steps: images of 100 episodes fill the memory.
        if steps:
            steps[-1] = steps[-1]._replace(observation=nothing)
        steps.append(step)

    lanes = Lanes(env_id, num_episodes, seeds)
    beat()
    try:
        returns = play_lanes(lanes, choose, watch)
        values.append(estimate(steps[-1].observation)[0])
    finally:
        lanes.close()
    return Played(returns, value_bias(values, steps, gamma))


def value_bias(values: list[FloatArray], steps: list[LaneStep], gamma: float) -> float:
    """Return the mean of estimate minus discounted return over the first episode of each lane.

    Args:
        values: ``T + 1`` arrays ``[L]``, the estimates before each step and after the last.
        steps: ``T`` steps of all lanes, each lane's first episode ended by the last.
        gamma: discount.
    """
    playing = np.ones(len(values[0]), dtype=bool)
    was_playing = []
    for step in steps:
        was_playing.append(playing)
        playing = playing & ~(step.terminated | step.truncated)
    total, count = 0.0, 0
    following = values[-1].astype(np.float64)  # of lanes that were cut off by the last step itself
    for t in reversed(range(len(steps))):
        ended = steps[t].terminated | steps[t].truncated
        # An end's own last observation is what the next estimate was made of.
        following = np.where(ended, np.where(steps[t].terminated, 0.0, values[t + 1]), following)
        following = steps[t].reward + gamma * following
        total += float((values[t] - following)[was_playing[t]].sum())
        count += int(was_playing[t].sum())
    return total / count


def play_lanes(
    lanes: Lanes,
    choose: Callable[[NDArray[Any]], IntArray],
    watch: Callable[[LaneStep], None] = lambda step: None,
) -> tuple[float, ...]:
    """Play one whole episode in each lane and return the undiscounted returns ``[L]``.

    Args:
        lanes: fresh environments.
        choose: actions ``[L]`` for observations ``[L, ...]``.
        watch: is shown each step.
    """
    observation = lanes.reset()
    total = np.zeros(lanes.num_lanes)
    playing = np.ones(lanes.num_lanes, dtype=bool)
    for _ in range(MAX_EPISODE_STEPS):
        step = lanes.step(choose(observation))
        watch(step)
        total += np.where(playing, step.reward, 0.0)
        playing &= ~(step.terminated | step.truncated)
        if not playing.any():
            break
        observation = step.observation
    return tuple(float(value) for value in total)


class Thinner:
    """Keeps a list of evaluations short, however long a run is.

    Beyond ``MAX_KEPT`` every second one is kept, then every fourth, and so on; and always the last.
    """

    def __init__(self) -> None:
        self._number, self._every = 0, 1

    @property
    def number(self) -> int:
        """How many there were, kept or not."""
        return self._number

    def state(self) -> State:
        """Return how far it is."""
        return {"number": self._number, "every": self._every}

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self._number, self._every = state["number"], state["every"]

    def append(self, kept: list[Evaluation], evaluation: Evaluation) -> None:
        """Add one to the list that this thinner looks after."""
        if kept and (self._number - 1) % self._every:
            kept.pop()  # it was there as the last only
        kept.append(evaluation)
        self._number += 1
        if len(kept) > MAX_KEPT:
            kept[:-1] = kept[:-1:2]
            self._every *= 2


class EvaluationRecord:
    """The evaluations of a run: the best weights, and whether the threshold was held.

    Solved means three evaluations in a row at or above the threshold. It is confirmed by 100 further
    episodes of the weights of the third, because with many evaluations a lucky streak is likely.
    """

    def __init__(self, threshold: float | None) -> None:
        self.threshold = threshold
        self.evaluations: list[Evaluation] = []
        self.best_mean: float | None = None
        self.best_weights: FloatArray | None = None
        self.solved_at: Evaluation | None = None
        self._in_a_row = 0
        self._thinner = Thinner()

    def state(self) -> State:
        """Return what was reached so far."""
        return {
            "evaluations": [asdict(evaluation) for evaluation in self.evaluations],
            "thinner": self._thinner.state(),
            "best_mean": self.best_mean,
            "best_weights": self.best_weights,
            "solved_at": None if self.solved_at is None else asdict(self.solved_at),
            "in_a_row": self._in_a_row,
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self.evaluations = [_evaluation(each) for each in state["evaluations"]]
        self._thinner.load_state(state["thinner"])
        self.best_mean, self.best_weights = state["best_mean"], state["best_weights"]
        solved_at, self._in_a_row = state["solved_at"], state["in_a_row"]
        self.solved_at = None if solved_at is None else _evaluation(solved_at)

    def add(self, evaluation: Evaluation, weights: FloatArray) -> bool:
        """Add an evaluation and return whether it is the best so far."""
        self._thinner.append(self.evaluations, evaluation)
        passed = self.threshold is not None and evaluation.mean >= self.threshold
        self._in_a_row = self._in_a_row + 1 if passed else 0
        if self.best_mean is not None and evaluation.mean <= self.best_mean:
            return False
        self.best_mean, self.best_weights = evaluation.mean, weights.copy()
        return True

    @property
    def num_evaluations(self) -> int:
        """How many there were. Each plays other episodes; not all are kept."""
        return self._thinner.number

    @property
    def wants_confirmation(self) -> bool:
        """Whether the threshold has been held often enough in a row, for the first time."""
        return self.solved_at is None and self._in_a_row >= SOLVED_IN_A_ROW

    def confirm(self, returns: tuple[float, ...]) -> bool:
        """Judge 100 further episodes of the last evaluation's weights."""
        assert self.threshold is not None
        if float(np.mean(returns)) >= self.threshold:
            self.solved_at = self.evaluations[-1]
            return True
        self._in_a_row = SOLVED_IN_A_ROW - 1
        return False


def _evaluation(state: State) -> Evaluation:
    return Evaluation(**{**state, "episode_returns": tuple(state["episode_returns"])})
