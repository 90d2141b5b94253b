"""How long a comparison will take: a guess before it starts, measured durations as they come in."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from bench.comparison import PEER, Comparison, PlannedRun

# Only for the guess before the first run. Env steps/s of the presets on CartPole-v1, and what a run
# costs beside its training (start-up, evaluations), on 2 shared x86-64 cores. They are figures of
# "bench compare" with its defaults.
TYPICAL_ENV_STEPS_PER_SECOND = {
    "single": 1_800,
    "vector": 21_000,
    "sync": 17_000,
    "hogwild": 3_300,
    "a3c": 33_000,
    "impala": 35_000,
    "apex": 70_000,
    "pqn": 26_000,
    PEER: 1_900,
}
UNKNOWN_ENV_STEPS_PER_SECOND = 5_000
TYPICAL_REST_SECONDS = 5.0


class Estimate:
    """The time that runs will take, corrected by those that are done.

    Args:
        comparison: whose runs they are.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._measured: dict[tuple[str, str, str], list[float]] = {}
        self._guessed_seconds = self._measured_seconds = 0.0

    def add(self, run: PlannedRun, seconds: float) -> None:
        """Take in how long a run took."""
        self._measured.setdefault(run.group, []).append(seconds)
        self._measured_seconds += seconds
        self._guessed_seconds += self._guess(run)

    def seconds(self, runs: Iterable[PlannedRun]) -> float:
        """Return how long these runs will take.

        A run takes as long as those of the same strategy and budget did. Where none is done yet, it
        takes as much more or less than its guess as all the others did.
        """
        scale = self._measured_seconds / self._guessed_seconds if self._guessed_seconds else 1.0
        return sum(self._expected(run, scale) for run in runs)

    def _expected(self, run: PlannedRun, scale: float) -> float:
        measured = self._measured.get(run.group)
        return statistics.median(measured) if measured else scale * self._guess(run)

    def _guess(self, run: PlannedRun) -> float:
        budget = self._comparison.budget_of(run)
        if budget.seconds is not None:
            return budget.seconds + TYPICAL_REST_SECONDS
        speed = TYPICAL_ENV_STEPS_PER_SECOND.get(run.strategy, UNKNOWN_ENV_STEPS_PER_SECOND)
        return (budget.steps or 0) / speed + TYPICAL_REST_SECONDS
