"""The result table of a page: a row per group of runs, the median over seeds and its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from bench.groups import Group, Spread, alarms_of, health_was_measured, spread_of
from bench.saved import COMPLETED, SavedRun, field_of, number_of, rows_of
from bench.wording import NONE, Style, count, datum, decimal, key_of, of_group, percent, plain, rate


class Column(NamedTuple):
    """One column of the result table.

    Attributes:
        title: over it.
        path: the field of the summaries.
        style: how its number is written.
        metric: its name in a comparison's own ``table.json``, if that compares it with a baseline.
    """

    title: str
    path: str
    style: Style
    metric: str | None = None


# Two tables, because all columns side by side fit on no screen.
REACHED = (
    Column("final return", "returns.eval_mean", decimal, "final_return"),
    Column(
        "s to solve, from the command",
        "returns.solved_after_command_seconds",
        decimal,
        "wall_seconds_to_solve",
    ),
    Column("s of training to solve", "returns.solved_at_seconds", decimal, "seconds_to_solve"),
    Column("env steps/s", "env_steps_per_second", rate, "env_steps_per_second"),
    Column("updates/s", "updates_per_second", rate, "updates_per_second"),
    Column("replay ratio", "replay_ratio.achieved", plain),
)
COST = (
    Column("writes lost", "audit.lost_fraction", percent),
    Column("policy lag p95, updates", "policy_lag.p95", plain),
    Column("gradient staleness p95, updates", "gradient_staleness.p95", plain),
    Column("Jain's index, collected", "experience.jain_collected", plain),
    Column("Jain's index, consumed", "experience.jain_consumed", plain),
    Column("CPU used", "processes.cpu_utilisation", percent),
)
ALARMS, MEMORY = "alarms", "largest process, MiB"


class Table(NamedTuple):
    """One table of the page: a row of cells per group, under the titles."""

    title: str
    titles: Sequence[str]
    rows: Sequence[tuple[Group, Sequence[Markup]]]


def tables_for(groups: Sequence[Group], table: Mapping[str, Any] | None = None) -> list[Table]:
    """Return the tables of the groups, with those columns that any of them has a number for.

    Args:
        groups: a row each.
        table: a comparison's ``table.json``, for how each group stands to the baseline.
    """
    reached: dict[str, list[Markup]] = {"completed": [_completed(group) for group in groups]}
    if any(num_solved(group) is not None for group in groups):
        reached["solved"] = [_solved(group) for group in groups]
    reached |= _cells(REACHED, groups, table)
    cost = _cells(COST, groups, table)
    for title, read in ((ALARMS, num_alarms), (MEMORY, largest_process_mib)):
        spreads = [spread_over(group, read) for group in groups]
        if any(spreads):
            cost[title] = [
                of_group(group, title, count, spread) if spread else NONE
                for group, spread in zip(groups, spreads, strict=True)
            ]
    return [
        Table(title, list(cells), list(zip(groups, zip(*cells.values(), strict=True), strict=True)))
        for title, cells in (("What was reached", reached), ("What it cost", cost))
        if cells
    ]


def _cells(
    columns: Sequence[Column], groups: Sequence[Group], table: Mapping[str, Any] | None
) -> dict[str, list[Markup]]:
    return {
        column.title: [
            of_group(group, column.path, column.style) + versus_baseline(group, table, column)
            for group in groups
        ]
        for column in columns
        if any(group.spread(column.path) for group in groups)
    }


def _completed(group: Group) -> Markup:
    number = sum(run.status == COMPLETED for run in group.runs)
    return _of(group, "completed", number, len(group.runs))


def _solved(group: Group) -> Markup:
    number = num_solved(group)
    return NONE if number is None else _of(group, "solved", number, len(group.counted))


def _of(group: Group, stat: str, number: int, whole: int) -> Markup:
    return Markup("{} of {}").format(datum(number, count, stat=stat, group=key_of(group)), whole)


def spread_over(group: Group, read: Callable[[SavedRun], float | None]) -> Spread | None:
    """Return the spread of what ``read`` finds in the runs of a group."""
    found = [(run, read(run)) for run in group.counted]
    return spread_of([(run, value) for run, value in found if value is not None])


def num_alarms(run: SavedRun) -> float | None:
    """Return how many alarms a run raised; None if its health was not measured."""
    return len(alarms_of(run)) if health_was_measured(run) else None


def largest_process_mib(run: SavedRun) -> float | None:
    """Return the peak memory of the largest process of a run."""
    roles = field_of(run.summary, "processes.peak_rss_mib")
    values = (
        [number_of({"mib": mib}, "mib") for mib in roles.values()] if isinstance(roles, Mapping) else []
    )
    return max((value for value in values if value is not None), default=None)


def num_solved(group: Group) -> int | None:
    """Return how many runs solved the environment; None if it does not say what solved means."""
    if group.spread("returns.threshold") is None:
        return None
    return sum(run.number("returns.solved_at_seconds") is not None for run in group.counted)


def versus_baseline(group: Group, table: Mapping[str, Any] | None, column: Column) -> Markup:
    """Return how a group stands to the comparison's baseline, as ``bench compare`` worked it out."""
    row = _row_in(table, group)
    versus = field_of(row, f"metrics.{column.metric}.versus_baseline")
    if column.metric is None or not isinstance(versus, Mapping):
        return Markup("")
    base = field_of(table, "baseline") or "the baseline"
    if versus.get("difference_shown") is not True:
        return Markup(' <span class="versus">no difference to {} shown</span>').format(base)
    ratio = number_of(versus, "ratio")
    if ratio is None:
        return Markup(' <span class="versus">differs from {}</span>').format(base)
    about = {"field": f"{column.metric}.versus_baseline.ratio", "stat": "ratio", "group": key_of(group)}
    return Markup(' <span class="versus">{} x {}</span>').format(datum(ratio, plain, **about), base)


def _row_in(table: Mapping[str, Any] | None, group: Group) -> Mapping[str, Any]:
    for budget in rows_of(table, "budgets"):
        for row in rows_of(budget, "rows") if budget.get("name") == group.budget else []:
            if row.get("strategy") == group.strategy and (row.get("param") or {}) == group.param:
                return row
    return {}
