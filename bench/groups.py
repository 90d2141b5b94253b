"""Runs that differ in their seed alone, taken together; and their numbers over time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import strategies
from bench.comparison import NEVER
from bench.saved import COMPLETED, SavedRun, SavedRuns, field_of, number_of, rows_of
from bench.stats import Interval, median, median_band, median_interval

Array = NDArray[np.float64]
GRID_POINTS = 60
MOST_NAMES_IN_LABEL = 3


class Spread(NamedTuple):
    """A number over the runs of a group.

    Attributes:
        median: over the runs that have it.
        interval: its bootstrap interval; None from a single run.
        by_run: (run, value) of each.
    """

    median: float
    interval: Interval | None
    by_run: Sequence[tuple[SavedRun, float]]


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one strategy with one set of choices under one budget.

    Attributes:
        strategy: its name.
        env_id: its environment.
        budget: of a comparison; None outside of one.
        param: what else sets it apart from other groups of the strategy.
        runs: all of them, whatever became of them.
        number: its place among the groups of the strategy, from 1.
    """

    strategy: str
    env_id: str
    budget: str | None
    param: Mapping[str, Any]
    runs: Sequence[SavedRun]
    number: int = 1

    @property
    def label(self) -> str:
        """The strategy's name, and what sets this group apart."""
        parts = [f"{name.replace('_', ' ')} {_plain(value)}" for name, value in self.param.items()]
        if len(parts) > MOST_NAMES_IN_LABEL:  # the configurations are listed on the page
            parts = [*parts[:MOST_NAMES_IN_LABEL], f"variant {self.number}"]
        return ", ".join([self.strategy, *parts])

    @cached_property
    def counted(self) -> Sequence[SavedRun]:
        """The runs whose numbers count: the completed ones; without any, those that left numbers."""
        completed = [run for run in self.runs if run.status == COMPLETED]
        return completed or [run for run in self.runs if run.summary]

    @cached_property
    def _spreads(self) -> dict[str, Spread | None]:
        return {}

    def spread(self, path: str) -> Spread | None:
        """Return a field of the summaries over the runs; None if no run has it."""
        if path not in self._spreads:  # a page asks for the same field many times
            found = [(run, run.number(path)) for run in self.counted]
            known = [(run, value) for run, value in found if value is not None]
            self._spreads[path] = spread_of(known)
        return self._spreads[path]


def spread_of(by_run: Sequence[tuple[SavedRun, float]]) -> Spread | None:
    """Return the median of one value per run and its interval; None if there is none."""
    values = [value for _, value in by_run]
    return Spread(median(values), median_interval(values), by_run) if values else None


def make_groups(saved: SavedRuns) -> list[Group]:
    """Put the runs into groups, strategies in teaching order."""
    by_kind: dict[tuple[str, str, str | None], list[SavedRun]] = {}
    for run in saved.runs:
        by_kind.setdefault((run.env_id, run.strategy, run.budget), []).append(run)
    groups = []
    for (env_id, strategy, budget), runs in by_kind.items():
        apart = _param_of_comparison if saved.comparison is not None else _varying_choices(runs)
        by_param: dict[str, tuple[Mapping[str, Any], list[SavedRun]]] = {}
        for run in runs:
            param = apart(run)
            by_param.setdefault(json.dumps(param, default=str), (param, []))[1].append(run)
        groups += [
            Group(strategy, env_id, budget, param, tuple(own), number)
            for number, (param, own) in enumerate(by_param.values(), start=1)
        ]
    budgets = [str(budget.get("name")) for budget in rows_of(saved.comparison, "budgets")]
    return sorted(groups, key=lambda group: _order(group, budgets))


def _order(group: Group, budgets: Sequence[str]) -> tuple[Any, ...]:
    names = list(strategies.STRATEGIES)
    place = names.index(group.strategy) if group.strategy in names else len(names)
    numbers = [number_of(group.param, name) for name in group.param]
    values = [(number is None, number or 0.0, str(group.param)) for number in numbers]
    budget = budgets.index(group.budget) if group.budget in budgets else len(budgets)
    return group.env_id, budget, group.budget or "", place, group.strategy, values


def _param_of_comparison(run: SavedRun) -> Mapping[str, Any]:
    return run.param or {}


def _varying_choices(runs: Sequence[SavedRun]) -> Callable[[SavedRun], Mapping[str, Any]]:
    """Return a function that gives the choices of a run in which the runs differ; the seed is none."""
    seen: dict[str, set[str]] = {}
    names = {name for run in runs for name in run.config} - {"seed"}
    for run in runs:
        for name in names:
            seen.setdefault(name, set()).add(json.dumps(run.config.get(name), default=str))
    varying = sorted(name for name, values in seen.items() if len(values) > 1)
    return lambda run: {name: run.config.get(name) for name in varying}


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == NEVER:  # the env steps of a run that seconds end
        return "without end"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- Numbers over time ---


def evaluation_curve(run: SavedRun, clock: str) -> Array:
    """Return ``[n, 2]``: ``env_steps`` or ``seconds``, and the mean return of each evaluation.

    The last point is the final evaluation over more episodes, where there was one.
    """
    points = [(number_of(row, clock), number_of(row, "mean")) for row in run.rows("evaluation")]
    if run.status == COMPLETED:
        end = "training_seconds" if clock == "seconds" else "env_steps"
        points.append((run.number(end), run.number("returns.eval_mean")))
    return _points(points)


def q_curve(run: SavedRun) -> Array:
    """Return ``[n, 2]``: env steps, and the largest Q value as a multiple of its bound."""
    points = []
    for row in run.rows("health"):
        q_max, bound = number_of(row, "q_max"), number_of(row, "q_bound")
        ratio = q_max / bound if q_max is not None and bound else None
        points.append((number_of(row, "env_steps"), ratio))
    return _points(points)


def _points(points: Iterable[tuple[float | None, float | None]]) -> Array:
    whole = sorted((x, y) for x, y in points if x is not None and y is not None)
    return np.array(whole, dtype=np.float64).reshape(-1, 2)


def alarms_of(run: SavedRun) -> list[Mapping[str, Any]]:
    """Return the learning-health alarms of a run."""
    return rows_of(run.summary, "health.alarms")


def health_was_measured(run: SavedRun) -> bool:
    """Return whether no alarm means health, and not that nobody looked."""
    health = field_of(run.summary, "health")
    if not isinstance(health, Mapping):
        return False
    return bool(alarms_of(run)) or any(number_of(health, name) is not None for name in health)


class Band(NamedTuple):
    """The median over seeds along a clock, ``[G]`` each; the ends are None from a single seed."""

    x: Array
    median: Array
    low: Array | None
    high: Array | None


def band_of(curves: Sequence[Array]) -> Band | None:
    """Return the median over curves ``[n, 2]`` where all of them have points; None if nowhere."""
    curves = [curve for curve in curves if len(curve) > 0]
    if not curves:
        return None
    begin, end = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
    if begin > end or len(curves) == 1:
        return None if len(curves) > 1 else Band(curves[0][:, 0], curves[0][:, 1], None, None)
    x = np.linspace(begin, end, GRID_POINTS)
    values = np.stack([np.interp(x, curve[:, 0], curve[:, 1]) for curve in curves])
    low, high = median_band(values)
    return Band(x, np.median(values, axis=0), low, high)


class Histogram(NamedTuple):
    """A distribution as it was counted: ``edges`` ``[n + 1]``, ``counts`` ``[n]``, and its unit."""

    edges: Array
    counts: Array
    unit: str


def histogram_of(runs: Sequence[SavedRun], name: str) -> Histogram | None:
    """Return a distribution over all runs; None if none counted it, or they use bins that do not fit.

    Each run's bins are a piece of one common grid: from its smallest value to its largest.
    """
    found = [last for run in runs if (last := _last_histogram(run, name)) is not None]
    if not found:
        return None
    edges = np.unique(np.concatenate([one.edges for one in found]))
    counts = np.zeros(len(edges) - 1)
    for one in found:
        first = int(np.searchsorted(edges, one.edges[0]))
        if not np.array_equal(edges[first : first + len(one.edges)], one.edges):
            return None
        counts[first : first + len(one.counts)] += one.counts
    return Histogram(edges, counts, found[0].unit)


def _last_histogram(run: SavedRun, name: str) -> Histogram | None:
    rows = [row for row in run.rows("histogram") if row.get("name") == name]
    if not rows:
        return None
    try:
        edges = np.array(rows[-1].get("edges"), dtype=np.float64)
        counts = np.array(rows[-1].get("counts"), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    good = edges.ndim == counts.ndim == 1 and len(edges) == len(counts) + 1 and len(counts) > 0
    if not good or not np.isfinite(edges).all() or counts.sum() <= 0 or (np.diff(edges) <= 0).any():
        return None
    return Histogram(edges, counts, str(rows[-1].get("unit") or ""))
