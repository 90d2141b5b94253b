"""How throughput grows with workers: the Universal Scalability Law, fitted to a sweep over them.

Gunther 2007, "Guerrilla Capacity Planning", chapter 4:

    X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1))

sigma is contention (what only one can do at a time), kappa coherency (what every pair costs). With
kappa = 0 it is Amdahl's law; with kappa > 0 there is a number of workers beyond which more are slower.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

import strategies
from bench.stats import LEVEL, median
from common.config import ConfigError

if TYPE_CHECKING:
    from bench.comparison import Comparison

FEWEST_COUNTS = 4  # three coefficients would go through three points whatever they are
RESAMPLES = 1_000
MOSTLY_SERIAL = " More than half of the work is serial: no number of workers makes it twice as fast."
PREDICTED = (2, 4)  # times the largest number of workers that was measured

Points = Mapping[int, Sequence[float]]  # throughput per seed, by number of workers


@dataclass(frozen=True)
class Coefficients:
    """The law's three numbers: lambda, sigma and kappa."""

    one_worker: float
    contention: float
    coherency: float

    def throughput(self, workers: float) -> float:
        """Return X(N)."""
        pairs = workers * (workers - 1)
        return (
            self.one_worker * workers / (1 + self.contention * (workers - 1) + self.coherency * pairs)
        )

    @property
    def peak(self) -> float:
        """Return the number of workers with the highest throughput; infinity without one."""
        if self.contention >= 1:
            return 1.0
        return (
            max(1.0, math.sqrt((1 - self.contention) / self.coherency)) if self.coherency else math.inf
        )


@dataclass(frozen=True)
class Fit:
    """The law as fitted, with bootstrap intervals over seeds; None where there is one seed only.

    Attributes:
        coefficients: of all values.
        contention_interval: (low, high).
        coherency_interval: (low, high).
        peak_interval: (low, high); infinity where more workers are always better.
        largest_error: of the fitted from the median throughput, relative.
    """

    coefficients: Coefficients
    contention_interval: tuple[float, float] | None
    coherency_interval: tuple[float, float] | None
    peak_interval: tuple[float, float] | None
    largest_error: float


def fit(points: Points, seed: int = 0) -> Fit:
    """Fit the law by least squares of relative errors.

    N / X is linear in (1, N - 1, N (N - 1)), so the best coefficients that are not negative are found
    without a starting guess.

    Raises:
        ConfigError: there are fewer than four numbers of workers.
    """
    if len(points) < FEWEST_COUNTS:
        raise ConfigError(
            f"{len(points)} numbers of workers are too few to fit how throughput grows, so nothing is "
            f"predicted; give at least {FEWEST_COUNTS}"
        )
    coefficients = _solve(points)
    errors = [
        abs(coefficients.throughput(workers) / float(np.median(values)) - 1)
        for workers, values in points.items()
    ]
    return Fit(coefficients, *_intervals(points, seed), max(errors))


def _solve(points: Points) -> Coefficients:
    pairs = [(workers, value) for workers, values in points.items() for value in values]
    workers, throughput = np.array(pairs, dtype=float).T
    columns = np.stack([np.ones_like(workers), workers - 1, workers * (workers - 1)], axis=1)
    weight = throughput / workers  # of the inverse: so that errors are relative ones
    (inverse, *costs), _ = nnls(columns * weight[:, None], np.ones_like(workers))
    if inverse == 0:
        raise ConfigError(
            "throughput falls faster than one over the workers, so that of one worker cannot be told "
            "and nothing is predicted; measure fewer workers, too"
        )
    # A cost that is a billionth of the whole at the largest number is rounding, and no peak far away.
    costs = [cost if cost * columns[:, 2].max() > 1e-9 * inverse else 0.0 for cost in costs]
    return Coefficients(1 / inverse, costs[0] / inverse, costs[1] / inverse)


def _intervals(points: Points, seed: int) -> list[tuple[float, float] | None]:
    """Return the intervals of contention, coherency and peak, seeds drawn anew for each number."""
    if min(len(values) for values in points.values()) < 2:
        return [None, None, None]
    generator = np.random.default_rng(seed)
    arrays: dict[int, NDArray[Any]] = {n: np.asarray(values) for n, values in points.items()}
    fits = []
    for _ in range(RESAMPLES):
        drawn = {n: generator.choice(values, len(values)) for n, values in arrays.items()}
        with contextlib.suppress(ConfigError):  # a draw that no law fits
            fits.append(_solve(drawn))
    return [
        _interval(each.contention for each in fits),
        _interval(each.coherency for each in fits),
        _interval(each.peak for each in fits),
    ]


def _interval(values: Iterable[float]) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    # "nearest", not between two of them: one of the two may be infinite.
    low, high = np.quantile(list(values), [tail, 1 - tail], method="nearest")
    return float(low), float(high)


def best_number(coefficients: Coefficients) -> int | None:
    """Return the whole number of workers with the highest throughput; None if there is no peak."""
    if math.isinf(coefficients.peak):
        return None
    around = (math.floor(coefficients.peak), math.ceil(coefficients.peak))
    return max(around, key=coefficients.throughput)


def of_table(comparison: Comparison, budgets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each budget of a sweep over workers alone, the fit and what it says; else nothing."""
    if comparison.param is None or comparison.param["names"] != ["workers"]:
        return []
    has_learner = "learner" in strategies.traits_of(comparison.strategies[0]).roles
    cores = comparison.machine["usable_cores"]
    return [_of_budget(budget, cores, int(has_learner)) for budget in budgets]


def _of_budget(budget: Mapping[str, Any], cores: int, others: int) -> dict[str, Any]:
    points = {
        row["param"]["workers"]: row["metrics"]["env_steps_per_second"]["values"]
        for row in budget["rows"]
        if row["metrics"]["env_steps_per_second"]["values"]
    }
    found: dict[str, Any] = {"budget": budget["name"], "workers": sorted(points), "fit": None}
    efficiency = _efficiency_lines(points)
    try:
        law = fit(points)
    except ConfigError as error:
        return {**found, "predictions": [], "lines": [*efficiency, f"Scalability: {error}."]}
    largest = max(points)
    predictions = {times * largest: law.coefficients.throughput(times * largest) for times in PREDICTED}
    return {
        **found,
        "fit": {**dataclasses.asdict(law), "best_workers": best_number(law.coefficients)},
        "predictions": [
            {"workers": workers, "env_steps_per_second": value}
            for workers, value in predictions.items()
        ],
        "lines": [
            *efficiency,
            _law_line(law, sorted(points)),
            _advice_line(law, largest),
            _prediction_line(law, predictions),
            *_oversubscription_lines(sorted(points), cores, others),
        ],
    }


def _efficiency_lines(points: Mapping[int, Sequence[float]]) -> list[str]:
    """Say what each number of workers makes of that many times the throughput of one."""
    if 1 not in points:
        return []
    one = median(points[1])
    shares = {count: median(values) / (count * one) for count, values in sorted(points.items())}
    each = ", ".join(f"{count}: {share:.0%}" for count, share in shares.items())
    return [f"Efficiency, env steps/s over as many times those of one worker: {each}."]


def _law_line(law: Fit, counts: Sequence[int]) -> str:
    coefficients = law.coefficients
    return (
        f"Universal Scalability Law over {', '.join(map(str, counts))} workers: contention "
        f"{coefficients.contention:.3g}{_brackets(law.contention_interval)}, coherency "
        f"{coefficients.coherency:.3g}{_brackets(law.coherency_interval)}; it misses a measured median "
        f"by {law.largest_error:.0%} at most."
    ) + (MOSTLY_SERIAL if coefficients.contention > 0.5 else "")


def _brackets(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" [{interval[0]:.3g}, {interval[1]:.3g}]"


def _advice_line(law: Fit, largest: int) -> str:
    best = best_number(law.coefficients)
    if best is None or best > largest:
        return f"In this fit more workers paid off up to the largest number measured, {largest}."
    if best == 1:
        return "In this fit a second worker does not pay off: throughput is highest with one."
    at_most = f"{best}{_brackets(law.peak_interval)}"
    return f"In this fit up to {at_most} workers pay off; more than that are slower."


def _prediction_line(law: Fit, predictions: Mapping[int, float]) -> str:
    parts = [
        f"{workers} workers {value:,.0f} env steps/s ({value / law.coefficients.one_worker:.2g}x one)"
        for workers, value in predictions.items()
    ]
    return (
        f"Prediction, not a measurement: {', '.join(parts)}, on a machine where contention and "
        "coherency are as they were here."
    )


def _oversubscription_lines(counts: Sequence[int], cores: int, others: int) -> list[str]:
    """Return a warning about the numbers of workers that had to share cores."""
    shared = [count for count in counts if count + others > cores]
    if not shared:
        return []
    learner = " beside a learner" if others else ""
    return [
        f"With {', '.join(map(str, shared))} workers{learner} there are more processes than the "
        f"{cores} cores here: these measure oversubscription, so more cores should do better than "
        "predicted."
    ]
