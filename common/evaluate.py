"""Greedy evaluation off the training clock, and the record of what was reached.

An evaluation plays a fixed number of whole episodes, one per lane, each to its end. (Taking "the
first n episodes to finish" of a running batch would prefer the short ones.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.acting import ActingNetwork, NetworkSpec
from common.envs import Lanes
from common.types import Evaluation, FloatArray, IntArray

SOLVED_IN_A_ROW = 3
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
    lanes = Lanes(env_id, num_episodes, seeds)
    network = ActingNetwork(spec, vector)
    try:
        return play_lanes(lanes, lambda observation: network.q_values(observation).argmax(axis=1))
    finally:
        lanes.close()


def play_lanes(lanes: Lanes, choose: Callable[[NDArray[Any]], IntArray]) -> tuple[float, ...]:
    """Play one whole episode in each lane and return the undiscounted returns ``[L]``.

    Args:
        lanes: fresh environments.
        choose: actions ``[L]`` for observations ``[L, ...]``.
    """
    observation = lanes.reset()
    total = np.zeros(lanes.num_lanes)
    playing = np.ones(lanes.num_lanes, dtype=bool)
    for _ in range(MAX_EPISODE_STEPS):
        step = lanes.step(choose(observation))
        total += np.where(playing, step.reward, 0.0)
        playing &= ~(step.terminated | step.truncated)
        if not playing.any():
            break
        observation = step.observation
    return tuple(float(value) for value in total)


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

    def add(self, evaluation: Evaluation, weights: FloatArray) -> bool:
        """Add an evaluation and return whether it is the best so far."""
        self.evaluations.append(evaluation)
        passed = self.threshold is not None and evaluation.mean >= self.threshold
        self._in_a_row = self._in_a_row + 1 if passed else 0
        if self.best_mean is not None and evaluation.mean <= self.best_mean:
            return False
        self.best_mean, self.best_weights = evaluation.mean, weights.copy()
        return True

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
