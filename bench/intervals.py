"""The median over seeds and its bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 9_999


@dataclass(frozen=True)
class Interval:
    """A confidence interval and how it was made."""

    low: float
    high: float
    method: str


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(np.median(np.asarray(values, dtype=float)))


def median_interval(values: Sequence[float], level: float = LEVEL, seed: int = 0) -> Interval | None:
    """Return the percentile bootstrap interval of the median; None from a single value."""
    if len(values) < 2:
        return None
    low, high = median_band(np.asarray(values, dtype=float)[:, None], level, RESAMPLES, seed)
    return Interval(float(low[0]), float(high[0]), "percentile")


def median_band(
    curves: NDArray[Any], level: float = LEVEL, resamples: int = 999, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ends of the percentile bootstrap interval of the median at each point.

    Args:
        curves: ``[n, T]``, a row per seed; at least two rows.
        level: of the interval.
        resamples: drawn with replacement from the seeds, whole curves at a time.
        seed: of the draws.
    """
    from scipy import stats

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
