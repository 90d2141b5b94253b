"""The result of a comparison as numbers: a row per strategy (or swept value) and budget.

``table.json`` is what ``result`` returns. What was not measured is null, never zero.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import scalability, stats
from bench.comparison import BASELINE, Budget, Comparison, PlannedRun, load_summary, param_text

SCHEMA = 1

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """One thing that is read from every run's summary.

    Attributes:
        name: in JSON and CSV.
        read: returns it from a summary; None if it was not measured.
        compared: whether the rows are compared with the baseline by it.
    """

    name: str
    read: Callable[[Summary], float | None]
    compared: bool = False


def _p95(field: str) -> Callable[[Summary], float | None]:
    return lambda summary: (summary.get(field) or {}).get("p95")


def _alarms(summary: Summary) -> float | None:
    """Return how many alarms there were; unknown if nothing about the run's health was measured."""
    health = summary["health"]
    measured = any(value is not None for name, value in health.items() if name != "alarms")
    return len(health["alarms"]) if measured and health["alarms"] is not None else None


def _memory_mib(summary: Summary) -> float | None:
    """Return the memory of all processes at their peaks; shared memory is counted once."""
    processes = summary["processes"]
    peaks = processes["peak_rss_mib"]
    if not peaks:
        return None
    kinds = [name.rpartition("-")[0] for name in summary["time"]["processes"]]
    total = sum(mib * max(1, kinds.count(role)) for role, mib in peaks.items())
    others = [processes[name] or 0.0 for name in ("supervisor_rss_mib", "evaluator_rss_mib")]
    return float(total + processes["shared_mib"] + sum(others))


def _until_solved(field: str) -> Callable[[Summary], float | None]:
    """Return a function that reads the seconds until it was solved: infinity if it was not.

    None if the environment does not say what solved means.
    """

    def read(summary: Summary) -> float | None:
        returns = summary["returns"]
        if returns["threshold"] is None:
            return None
        seconds = returns[field]
        return math.inf if seconds is None else float(seconds)

    return read


# On the training clock, which stands still for evaluations; and from the command's start.
seconds_to_solve = _until_solved("solved_at_seconds")
wall_seconds_to_solve = _until_solved("solved_after_command_seconds")


METRICS = (
    Metric("env_steps_per_second", lambda s: s["env_steps_per_second"], compared=True),
    Metric("updates_per_second", lambda s: s["updates_per_second"], compared=True),
    Metric("replay_ratio", lambda s: s["replay_ratio"]["achieved"]),
    Metric("wall_seconds_to_solve", wall_seconds_to_solve, compared=True),
    Metric("seconds_to_solve", seconds_to_solve, compared=True),
    Metric("final_return", lambda s: s["returns"]["eval_mean"], compared=True),
    Metric("lost_fraction", lambda s: s["audit"]["lost_fraction"]),
    Metric("policy_lag_p95", _p95("policy_lag")),
    Metric("gradient_staleness_p95", _p95("gradient_staleness")),
    Metric("jain_consumed", lambda s: s["experience"]["jain_consumed"]),
    Metric("alarms", _alarms),
    Metric("cpu_utilisation", lambda s: s["processes"].get("cpu_utilisation")),
    Metric("peak_memory_mib", _memory_mib),
)


def result(comparison: Comparison) -> dict[str, Any]:
    """Return the whole table of a comparison, as far as its runs are complete."""
    baseline = baseline_of(comparison)
    budgets = [
        {**dataclasses.asdict(budget), "rows": _rows(comparison, budget, baseline)}
        for budget in comparison.budgets
    ]
    return {
        "schema": SCHEMA,
        "kind": comparison.kind,
        "env_id": comparison.env_id,
        "param": comparison.param,
        "baseline": None if baseline is None else _label(*baseline),
        "level": stats.LEVEL,
        "seeds": comparison.seeds,
        "budgets": budgets,
        "failed": [
            {"run": run.path.as_posix(), "error": run.error}
            for run in comparison.runs
            if run.status == "failed"
        ],
        "scalability": scalability.of_table(comparison, budgets),
        "machine": comparison.machine,
        "versions": comparison.versions,
        "commit": comparison.commit,
    }


def baseline_of(comparison: Comparison) -> tuple[str, dict[str, Any] | None] | None:
    """Return the row that others are compared with: ``single``, or the first value of a sweep."""
    if comparison.kind == "sweep":
        return comparison.runs[0].strategy, comparison.runs[0].param
    return (BASELINE, None) if BASELINE in comparison.strategies else None


def _label(strategy: str, param: Mapping[str, Any] | None) -> str:
    return param_text(param, ", ") if param else strategy


def _rows(
    comparison: Comparison, budget: Budget, baseline: tuple[str, dict[str, Any] | None] | None
) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], list[PlannedRun]] = {}
    for run in comparison.runs:
        if run.budget == budget.name:
            groups.setdefault(run.group, []).append(run)
    found = {
        group: [_summary(comparison, run) for run in runs if run.status == "completed"]
        for group, runs in groups.items()
    }
    bases: list[Summary] = []
    if baseline is not None:
        bases = found.get((budget.name, baseline[0], param_text(baseline[1], "-")), [])
    rows = []
    for group, runs in groups.items():
        is_baseline = baseline is not None and (runs[0].strategy, runs[0].param) == baseline
        row = _row(runs, found[group], None if is_baseline else bases)
        rows.append({**row, "is_baseline": is_baseline})
    return rows


def _summary(comparison: Comparison, run: PlannedRun) -> Summary:
    summary = load_summary(comparison.folder / run.path)
    assert summary is not None, "completed means that it can be read"
    return summary


def _row(
    runs: Sequence[PlannedRun], summaries: Sequence[Summary], bases: Sequence[Summary] | None
) -> dict[str, Any]:
    first = runs[0]
    return {
        "label": _label(first.strategy, first.param),
        "strategy": first.strategy,
        "param": first.param,
        "runs": len(runs),
        "completed": len(summaries),
        "failed": sum(run.status == "failed" for run in runs),
        "solved": _solved(summaries),
        "metrics": {metric.name: _metric(metric, summaries, bases) for metric in METRICS},
    }


def _solved(summaries: Sequence[Summary]) -> int | None:
    times = [seconds_to_solve(summary) for summary in summaries]
    known = [seconds for seconds in times if seconds is not None]
    return sum(math.isfinite(seconds) for seconds in known) if known else None


def _metric(
    metric: Metric, summaries: Sequence[Summary], bases: Sequence[Summary] | None
) -> dict[str, Any]:
    """Return a metric's values, their centre with its interval, and how they stand to the baseline.

    Of the seconds to solve, centre and interval are of the seeds that solved, as everywhere; the
    comparison takes those that did not as later than all others.
    """
    values = [value for value in map(metric.read, summaries) if value is not None]
    finite = [value for value in values if math.isfinite(value)]
    base = [value for value in map(metric.read, bases or ()) if value is not None]
    can_compare = metric.compared and bool(values) and bool(base)
    return {
        "values": [value if math.isfinite(value) else None for value in values],
        "median": stats.median(finite) if finite else None,
        "interval": _ends(stats.median_interval(finite)) if finite else None,
        "trimmed_mean": stats.trimmed_mean(finite) if finite else None,
        "trimmed_mean_interval": _ends(stats.trimmed_mean_interval(finite)) if finite else None,
        "versus_baseline": _versus(values, base) if can_compare else None,
    }


def _versus(values: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    found = stats.compared(values, base)
    return {
        "ratio": found.ratio,
        "ratio_interval": _ends(found.ratio_interval),
        "probability_above": found.probability,
        "probability_above_interval": _ends(found.probability_interval),
        "p_value": found.p_value,
        "difference_shown": found.difference_shown,
    }


def _ends(interval: stats.Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
