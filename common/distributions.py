"""Counts of whole numbers in bins, so that a distribution of a billion values fits in 5 KB.

Every number below 64 has a bin of its own; above, each doubling is divided into 16 bins, so that a
quantile is right to about 4%. The largest value is kept exactly, in a last place of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.types import IntArray

EXACT_BELOW = 64
BINS_PER_DOUBLING = 16
DOUBLINGS = 34

# Bin i holds the numbers from EDGES[i] up to, not including, EDGES[i + 1]; the last bin has no end.
EDGES: IntArray = np.unique(
    np.concatenate(
        [
            np.arange(EXACT_BELOW),
            np.rint(
                EXACT_BELOW * 2.0 ** (np.arange(BINS_PER_DOUBLING * DOUBLINGS) / BINS_PER_DOUBLING)
            ),
        ]
    ).astype(np.int64)
)
NUM_BINS = len(EDGES)
LARGEST = NUM_BINS  # the place after the bins holds the largest value
NUM_PLACES = NUM_BINS + 1
QUANTILES = {"p50": 0.5, "p95": 0.95}

_EDGES_LIST = EDGES.tolist()


def bin_of(values: NDArray[Any]) -> IntArray:
    """Return the bin of each value; below 0 counts as 0."""
    bins: IntArray = np.searchsorted(EDGES, values, side="right") - 1
    return np.maximum(bins, 0)


def add_values(places: IntArray, values: IntArray) -> None:
    """Count some values ``[B]`` in ``places`` ``[NUM_PLACES]``."""
    places[:NUM_BINS] += np.bincount(bin_of(values), minlength=NUM_BINS)
    places[LARGEST] = max(int(places[LARGEST]), int(values.max()))


def add_counts(places: IntArray, values: IntArray, counts: IntArray) -> None:
    """Count each value ``[N]`` as often as ``counts`` ``[N]`` says."""
    np.add.at(places, bin_of(values), counts)
    places[LARGEST] = max(int(places[LARGEST]), int(values.max()))


def add_value(places: IntArray, value: int, count: int = 1) -> None:
    """Count one value ``count`` times: a tenth of the time of an array of one."""
    places[max(0, bisect_right(_EDGES_LIST, value) - 1)] += count
    if value > places[LARGEST]:
        places[LARGEST] = value


def quantiles(places: IntArray) -> dict[str, int] | None:
    """Return p50, p95 and max; None if nothing was counted.

    A quantile is the first number of the bin in which it falls.
    """
    upto = np.cumsum(places[:NUM_BINS])
    if upto[-1] == 0:
        return None
    bins = {name: np.searchsorted(upto, share * upto[-1]) for name, share in QUANTILES.items()}
    return {**{name: int(EDGES[i]) for name, i in bins.items()}, "max": int(places[LARGEST])}


def merge(rows: IntArray) -> IntArray:
    """Return the places of several processes ``[N, NUM_PLACES]`` as one ``[NUM_PLACES]``."""
    merged: IntArray = rows.sum(axis=0)
    merged[LARGEST] = rows[:, LARGEST].max(initial=0)
    return merged


def as_event(places: IntArray) -> Mapping[str, list[int]]:
    """Return edges and counts from the first filled bin to the last, one edge more than counts."""
    filled = np.flatnonzero(places[:NUM_BINS])
    if len(filled) == 0:
        return {"edges": [], "counts": []}
    first, last = int(filled[0]), int(filled[-1])
    end = _EDGES_LIST[last + 1] if last + 1 < NUM_BINS else int(places[LARGEST]) + 1
    return {
        "edges": [*_EDGES_LIST[first : last + 1], end],
        "counts": places[first : last + 1].tolist(),
    }
