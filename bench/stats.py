"""Statistics over a handful of seeds, as pure functions of plain numbers.

They follow Agarwal et al. 2021 ("Deep reinforcement learning at the edge of the statistical
precipice"): intervals instead of points, robust centres instead of means, the probability of
improvement beside a ratio. Where one environment and five seeds do not carry these recommendations
is written down in docs/explanation/statistics.md.

Random draws are seeded: the same numbers always give the same intervals.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
RESAMPLES = 9_999
TRIMMED = 0.25  # from each end: what is left is the interquartile mean

Values = Sequence[float]
Statistic = Callable[..., Any]  # of arrays, along ``axis``


@dataclass(frozen=True)
class Interval:
    """A confidence interval and how it was made: ``percentile`` or ``BCa``."""

    low: float
    high: float
    method: str

    def overlaps(self, other: Interval) -> bool:
        """Return whether the two have a point in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Comparison:
    """How one group of runs stands to a baseline.

    Attributes:
        ratio: of the medians; None where a ratio means nothing (a value of 0 or less, or none at all).
        ratio_interval: bootstrapped; None without the ratio or with a single run in a group.
        probability: that a run of the group is above one of the baseline; ties count half.
        probability_interval: likewise bootstrapped.
        p_value: of the two-sided permutation test on ranks.
        difference_shown: see ``difference_shown``.
    """

    ratio: float | None
    ratio_interval: Interval | None
    probability: float
    probability_interval: Interval | None
    p_value: float
    difference_shown: bool


def median(values: Values) -> float:
    """Return the median; infinite values (never reached) are allowed."""
    return float(np.median(np.asarray(values, dtype=float)))


def trimmed_mean(values: Values, trimmed: float = TRIMMED) -> float:
    """Return the mean without the lowest and the highest share; with a quarter each it is the IQM."""
    return float(stats.trim_mean(np.asarray(values, dtype=float), trimmed))


def bootstrap_interval(
    *groups: Values,
    statistic: Statistic,
    method: str = "percentile",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Return the bootstrap interval of a statistic of independent groups; None from a single value.

    BCa (Efron 1987) is asked for with ``method="BCa"``, and taken where it is defined: not if all
    values are equal, and not for every statistic that jumps. There it is the percentile interval.
    """
    arrays = tuple(np.asarray(group, dtype=float) for group in groups)
    if min(len(array) for array in arrays) < 2:
        return None
    for name in dict.fromkeys((method, "percentile")):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # degenerate data: looked at below
            result = stats.bootstrap(
                arrays,
                statistic,
                n_resamples=resamples,
                confidence_level=level,
                method=name,
                vectorized=True,
                rng=np.random.default_rng(seed),
            )
        low, high = (float(end) for end in result.confidence_interval)
        if not (math.isnan(low) or math.isnan(high)):
            return Interval(low, high, name)
    return None


def median_interval(values: Values, level: float = LEVEL, seed: int = 0) -> Interval | None:
    """Return the percentile bootstrap interval of the median.

    From five values it always reaches from the lowest to the highest: see the page on statistics.
    BCa is no help here. It corrects with the jackknife, which is wrong for a median.
    """
    return bootstrap_interval(values, statistic=np.median, level=level, seed=seed)


def median_band(
    curves: NDArray[Any], level: float = LEVEL, resamples: int = 999, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both ends of the percentile bootstrap interval of the median at each point of a curve.

    Args:
        curves: ``[n, T]``, a row per seed, two rows at the least; whole rows are drawn.
        level: of the interval.
        resamples: how often.
        seed: of the draws.
    """
    result = stats.bootstrap(
        (curves,),
        np.median,
        axis=0,
        n_resamples=resamples,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return result.confidence_interval.low, result.confidence_interval.high


def trimmed_mean_interval(values: Values, level: float = LEVEL, seed: int = 0) -> Interval | None:
    """Return the bootstrap interval of the interquartile mean, BCa where it is defined."""
    return bootstrap_interval(values, statistic=_trimmed_mean, method="BCa", level=level, seed=seed)


def _trimmed_mean(values: NDArray[Any], axis: int = -1) -> Any:
    return stats.trim_mean(values, TRIMMED, axis=axis)


def probability_of_improvement(values: Values, baseline: Values) -> float:
    """Return how likely a run of ``values`` is above one of ``baseline``; ties count half.

    It is Mann and Whitney's U over the number of pairs: 0.5 where the two are alike.
    """
    return float(_probability(np.asarray(values, dtype=float), np.asarray(baseline, dtype=float)))


def _probability(values: NDArray[Any], baseline: NDArray[Any], axis: int = -1) -> Any:
    one, other = values[..., :, None], baseline[..., None, :]
    return ((one > other) + 0.5 * (one == other)).mean(axis=(-2, -1))


def probability_interval(
    values: Values, baseline: Values, level: float = LEVEL, seed: int = 0
) -> Interval | None:
    """Return the percentile bootstrap interval of the probability of improvement."""
    return bootstrap_interval(values, baseline, statistic=_probability, level=level, seed=seed)


def ratio_of_medians(values: Values, baseline: Values) -> float | None:
    """Return the ratio of the medians; None if a value is not finite, or not above 0 below the line."""
    if not (_all_finite(values) and _all_finite(baseline)):
        return None
    if min(values) < 0 or min(baseline) <= 0:
        return None
    return median(values) / median(baseline)


def ratio_interval(
    values: Values, baseline: Values, level: float = LEVEL, seed: int = 0
) -> Interval | None:
    """Return the percentile bootstrap interval of the ratio of the medians."""
    if ratio_of_medians(values, baseline) is None:
        return None
    return bootstrap_interval(values, baseline, statistic=_ratio, level=level, seed=seed)


def _ratio(values: NDArray[Any], baseline: NDArray[Any], axis: int = -1) -> Any:
    return np.median(values, axis=axis) / np.median(baseline, axis=axis)


def permutation_p_value(values: Values, baseline: Values, seed: int = 0) -> float:
    """Return the two-sided p-value of the permutation test on the mean ranks.

    Every assignment of the runs to the two groups is gone through while there are few (252 for five
    and five), random ones else. Ranks, because one run that never learns should count as one run.
    A single run in a group says nothing: 1.
    """
    if min(len(values), len(baseline)) < 2:
        return 1.0
    ranks = stats.rankdata(np.concatenate([np.asarray(values), np.asarray(baseline)]).astype(float))
    result = stats.permutation_test(
        (ranks[: len(values)], ranks[len(values) :]),
        lambda one, other, axis: one.mean(axis=axis) - other.mean(axis=axis),
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def difference_shown(values: Values, baseline: Values, level: float = LEVEL, seed: int = 0) -> bool:
    """Return whether the two groups are told apart: the rule behind "no difference shown".

    Both must hold: the permutation test's p-value is at most ``1 - level``, and the intervals of the
    two medians do not overlap. The first alone keeps the rate of false alarms. The second makes the
    verdict agree with the intervals that the reader sees, and leaves room for a table of seven
    comparisons. With fewer than four runs in each group nothing can be shown.
    """
    if permutation_p_value(values, baseline, seed) > 1 - level:
        return False
    one, other = _in_order(values, baseline)
    interval, its = median_interval(one, level, seed), median_interval(other, level, seed)
    return interval is not None and its is not None and not interval.overlaps(its)


def compared(values: Values, baseline: Values, level: float = LEVEL, seed: int = 0) -> Comparison:
    """Return how ``values`` stand to ``baseline``. Infinite values (never reached) are allowed."""
    return Comparison(
        ratio=ratio_of_medians(values, baseline),
        ratio_interval=ratio_interval(values, baseline, level, seed),
        probability=probability_of_improvement(values, baseline),
        probability_interval=probability_interval(values, baseline, level, seed),
        p_value=permutation_p_value(values, baseline, seed),
        difference_shown=difference_shown(values, baseline, level, seed),
    )


def _all_finite(values: Values) -> bool:
    return bool(np.isfinite(np.asarray(values, dtype=float)).all())


def _in_order(*groups: Values) -> list[list[float]]:
    """Return the groups with infinity as a number above all others: the bootstrap interpolates."""
    finite = [value for group in groups for value in group if math.isfinite(value)]
    above = max(finite, default=0.0) + 1.0
    return [[value if math.isfinite(value) else above for value in group] for group in groups]
