"""What the benchmarks share: how long each is measured, what it is called, what is remembered of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.parts import Part

Benchmark = Any  # pytest-benchmark has no types

# Short, because there are many: enough rounds for a median, with warm-up calls that are not counted.
quick = pytest.mark.benchmark(max_time=0.3, min_rounds=5, warmup=True, warmup_iterations=20)

PEERS = 'install the extra: pip install -c constraints.txt ".[suite]"'


def peer(name: str) -> Any:
    """Return a package that we compare with; skip the benchmark if it is not installed."""
    return pytest.importorskip(name, reason=f"{name} is not installed; {PEERS}", exc_type=ImportError)


def measure(
    benchmark: Benchmark,
    group: str,
    part: Part,
    *,
    series: str | None = None,
    axis: str | None = None,
    at: float | None = None,
    per_call: dict[str, float] | None = None,
    **extra: Any,
) -> None:
    """Time a part and remember what it is a point of.

    Args:
        benchmark: the fixture.
        group: the table it belongs to.
        part: what to time.
        series: the line that it is a point of, for the growth.
        axis: what grows along the line: lanes, batch, width, capacity, workers.
        at: its value here.
        per_call: how many of something one call makes; the rate is remembered as ``<name>_per_second``.
        extra: more to remember.
    """
    benchmark.group = group
    if series is not None:
        benchmark.extra_info.update(series=series, axis=axis, at=at)
    benchmark.extra_info.update(extra)
    benchmark(part)
    if benchmark.stats is not None:
        median = benchmark.stats.stats.median
        for name, number in (per_call or {}).items():
            benchmark.extra_info[f"{name}_per_second"] = number / median


def paired_ratio(one: Part, other: Part, pairs: int = 25, calls: int = 40) -> list[float]:
    """Return how many times longer ``one`` takes than ``other``, pair by pair.

    The two are timed one right after the other, in turns first, so that a machine whose speed drifts
    gives the same ratio all the same.
    """
    ratios = []
    for number in range(pairs):
        first, second = (one, other) if number % 2 else (other, one)
        seconds = {part: _seconds(part, calls) for part in (first, second)}
        ratios.append(seconds[one] / seconds[other])
    return ratios


def _seconds(part: Part, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        part()
    return time.perf_counter() - began


def median(values: list[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


class TrainingClock:
    """A clock that only training moves: start-up, evaluation and shut-down of a run do not count.

    pytest-benchmark is given ``read`` as its timer; whoever runs something says what it took.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def read(self) -> float:
        """Return the seconds of training so far."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Add what a run says of itself."""
        self._now += seconds


TRAINING_CLOCK = TrainingClock()


def training_seconds() -> float:
    """Return the training clock's time: the timer of the benchmarks of whole runs."""
    return TRAINING_CLOCK.read()


def once(benchmark: Benchmark, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Time one run on the training clock, and return its summary."""
    kept: dict[str, Any] = {}

    def timed() -> None:
        kept.update(run())
        TRAINING_CLOCK.advance(kept["training_seconds"])

    benchmark.pedantic(timed, rounds=1, iterations=1)
    return kept
