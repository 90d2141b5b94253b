"""The result table as text for a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cautions import ratio_caution
from bench.comparison import value_text
from bench.summary import finite, write_json
from bench.table import METRICS
from common.config import spell

Row = Mapping[str, Any]
NOTHING = "-"
NO_DIFFERENCE = "no difference shown"
# Where lines are broken if a table is too wide, and where again if it still is.
FOLDS = ({" [": "\n[", " shown": "\nshown"}, {"no difference": "no\ndifference"})


def median_cell(name: str, form: str) -> Callable[[Row], str]:
    """Return a function that writes a metric's median over the seeds."""
    return lambda row: _number(row["metrics"][name]["median"], form)


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def versus_cell(name: str) -> Callable[[Row], str]:
    """Return a function that writes the ratio to the baseline with its interval, if it is shown."""

    def cell(row: Row) -> str:
        if row["is_baseline"]:
            return "1x"
        versus = row["metrics"][name]["versus_baseline"]
        if versus is None:
            return NOTHING
        if not versus["difference_shown"]:
            return NO_DIFFERENCE
        if versus["ratio"] is None:  # of negative returns, say
            return "higher" if versus["probability_above"] > 0.5 else "lower"
        low, high = versus["ratio_interval"]
        return f"{_short(versus['ratio'])}x [{_short(low)}, {_short(high)}]"

    return cell


def _short(ratio: float) -> str:
    """Return a ratio in five characters at the most, up to 99,999."""
    if ratio < 1:
        return f"{ratio:.2g}" if ratio >= 0.001 else "0"
    return f"{ratio:.{max(0, 2 - int(math.log10(ratio)))}f}"


def interval_cell(name: str, form: str) -> Callable[[Row], str]:
    """Return a function that writes a metric's median with its interval, if there is one."""

    def cell(row: Row) -> str:
        metric = row["metrics"][name]
        if metric["interval"] is None:
            return _number(metric["median"], form)
        low, high = metric["interval"]
        return f"{format(metric['median'], form)} [{format(low, form)}, {format(high, form)}]"

    return cell


def _solved_cell(row: Row) -> str:
    """Return the time to solve with the number of seeds that it is the median of."""
    if row["solved"] is None:
        return NOTHING
    seconds = _number(row["metrics"]["wall_seconds_to_solve"]["median"], ".1f")
    return f"{seconds} [{row['solved']} of {row['completed']}]"


def _alarms_cell(row: Row) -> str:
    counts = row["metrics"]["alarms"]["values"]
    return f"{sum(counts):.0f}" if counts else NOTHING


def _cpu_cell(row: Row) -> str:
    value = row["metrics"]["cpu_utilisation"]["median"]
    return NOTHING if value is None else f"{value:.0%}"


# Three narrow tables: all of it side by side would not fit on a terminal. A column named VERSUS
# compares the one before it with the baseline.
VERSUS = "vs {base}"
VIEWS: dict[str, list[tuple[str, Callable[[Row], str]]]] = {
    "What was reached": [
        ("wall s to solve", _solved_cell),
        (VERSUS, versus_cell("wall_seconds_to_solve")),
        ("of training", median_cell("seconds_to_solve", ".1f")),
        ("final return", interval_cell("final_return", ".1f")),
        (VERSUS, versus_cell("final_return")),
    ],
    "How fast": [
        ("env steps/s", median_cell("env_steps_per_second", ",.0f")),
        (VERSUS, versus_cell("env_steps_per_second")),
        ("updates/s", median_cell("updates_per_second", ",.0f")),
        ("replay ratio", median_cell("replay_ratio", ".3g")),
    ],
    "What it cost": [
        ("lost writes", median_cell("lost_fraction", ".2g")),
        ("policy lag p95", median_cell("policy_lag_p95", ".0f")),
        ("gradient staleness p95", median_cell("gradient_staleness_p95", ".0f")),
        ("Jain's index", median_cell("jain_consumed", ".3f")),
        ("alarms", _alarms_cell),
        ("CPU", _cpu_cell),
        ("peak MiB", median_cell("peak_memory_mib", ",.0f")),
    ],
}


def views(table: Mapping[str, Any]) -> Iterable[tuple[str, list[str], list[list[str]]]]:
    """Yield (title, column titles, rows of cells) for each budget and view."""
    keys = [spell(name) for name in table["param"]["names"]] if table["param"] else ["strategy"]
    base = "first" if table["param"] else table["baseline"]
    for budget in table["budgets"]:
        equal = (
            f"{budget['steps']:,} env steps each"
            if budget["steps"] is not None
            else f"{budget['seconds']:g} s each"
        )
        for title, columns in VIEWS.items():
            shown = [each for each in columns if base is not None or each[0] != VERSUS]
            titles = [*keys, *(name.format(base=base) for name, _ in shown)]
            rows = [[*_key_cells(row), *(cell(row) for _, cell in shown)] for row in budget["rows"]]
            yield f"{title}: {equal}", titles, rows


def _key_cells(row: Row) -> list[str]:
    if row["param"]:
        return [value_text(value) for value in row["param"].values()]
    return [row["strategy"]]


def notes(table: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the table has to know."""
    seeds, level = len(table["seeds"]), table["level"]
    lines = [
        f"Medians over {seeds} {'seed' if seeds == 1 else 'seeds'}; in brackets the {level:.0%} "
        "bootstrap interval. Seconds to solve are over the seeds that solved, so many of so many: from "
        "the command's start, and of training alone. Alarms are all seeds' together. Policy lag and "
        "gradient staleness are in updates."
    ]
    if table["baseline"] is None:
        lines.append("Without single among the strategies nothing is compared with it.")
    else:
        lines.append(
            f"Ratios are to {table['baseline']}. {NO_DIFFERENCE.capitalize()}: the two intervals of "
            f"the median overlap, or a permutation test gives p > {1 - level:.2g}."
        )
    lines += ratio_caution(_ratios(table))
    if 2 <= seeds < 6:
        held = 1 - 0.5 ** (seeds - 1)
        lines.append(
            f"From {seeds} seeds an interval is at most the range of what was seen, which holds the "
            f"true median with a probability of {held:.0%}; --seeds for more."
        )
    if seeds < 4 and table["baseline"] is not None:
        lines.append("From fewer than four seeds no difference can be shown.")
    missing = [row for budget in table["budgets"] for row in budget["rows"]]
    left = sum(row["runs"] - row["completed"] for row in missing)
    if left:
        lines.append(f"{left} runs are not complete: the table is of the others.")
    lines += [f"Failed: {failed['run']}: {failed['error']}" for failed in table["failed"]]
    return [*lines, *_unstable(table), *scalability_lines(table)]


def _ratios(table: Mapping[str, Any]) -> dict[str, float]:
    """Return the median replay ratio of every row in which it was not what was varied."""
    budgets = table["budgets"]
    return {
        ", ".join([*_key_cells(row), *([budget["name"]] if len(budgets) > 1 else [])]): ratio
        for budget in budgets
        for row in budget["rows"]
        if (ratio := row["metrics"]["replay_ratio"]["median"]) is not None
        and "replay_ratio" not in (row["param"] or {})
    }


def _unstable(table: Mapping[str, Any]) -> list[str]:
    """Say in a sweep over workers from how many on it no longer solves what fewer solve."""
    lines = []
    for budget in table["budgets"]:
        rows = [row for row in budget["rows"] if list(row["param"] or {}) == ["workers"]]
        solved = {
            row["param"]["workers"]: row["solved"] / row["completed"]
            for row in rows
            if row["completed"] and row["solved"] is not None
        }
        fewest = min((number for number, share in solved.items() if share >= 0.5), default=math.inf)
        failing = [number for number, share in solved.items() if share < 0.5 and number > fewest]
        if failing:
            lines.append(
                f"Unstable under {budget['name']}: with {min(failing)} workers fewer than half of the "
                f"seeds solved, with {fewest} at least half."
            )
    return lines


def scalability_lines(table: Mapping[str, Any]) -> list[str]:
    """Return what a sweep over workers says about more of them."""
    return [line for fit in table["scalability"] for line in fit["lines"]]


def as_text(table: Mapping[str, Any], width: int | None = None) -> str:
    """Return the table for a terminal of ``width`` characters; that of this one if None."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, highlight=False, markup=False, width=width or Console().width)
    for title, titles, rows in views(table):
        console.print(title)
        console.print(_drawn(titles, rows, console.width) or "\n".join(_listed(titles, rows)))
        console.print()
    for line in notes(table):
        console.print(line)
    return stream.getvalue().rstrip()


def _drawn(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Any:
    """Return a table for ``rich``; on a narrow terminal intervals stand below their number.

    None if it would still be too wide, so that words would be cut in two.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for folds in FOLDS:
        if _natural_width(titles, rows) <= width:
            break
        titles = [title.replace(" ", "\n") for title in titles]
        rows = [[_folded(cell, folds) for cell in row] for row in rows]
    if _natural_width(titles, rows) > width:
        return None
    drawn = Table(box=box.ASCII2)
    for number, title in enumerate(titles):
        drawn.add_column(Text(title), justify="right" if number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _listed(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield a table's rows below each other, a line for each cell."""
    for row in rows:
        yield row[0]
        yield from (f"  {title}: {cell}" for title, cell in zip(titles[1:], row[1:], strict=True))


def _natural_width(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    columns = zip(titles, *rows, strict=True)
    widths = [max(len(line) for cell in column for line in cell.splitlines()) for column in columns]
    return sum(widths) + 3 * len(widths) + 1  # a border and two blanks for each


def _folded(cell: str, folds: Mapping[str, str]) -> str:
    for text, lines in folds.items():
        cell = cell.replace(text, lines)
    return cell


def as_markdown(table: Mapping[str, Any]) -> str:
    """Return the table as Markdown."""
    lines = [f"# {table['kind'].capitalize()} on {table['env_id']}", ""]
    for title, titles, cells in views(table):
        lines += [f"## {title}", ""]
        lines += [_markdown_row(titles), "|" + "---|" * len(titles)]
        lines += [_markdown_row(row) for row in cells]
        lines.append("")
    lines += [f"- {note}" for note in notes(table)]
    machine = table["machine"]
    lines.append(f"- Machine: {machine.get('cpu')}, {machine.get('usable_cores')} usable cores.")
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_csv(table: Mapping[str, Any]) -> str:
    """Return one line per budget and row, plain numbers; what is unknown is empty."""
    stream = io.StringIO()
    lines = [_csv_line(budget, row) for budget in table["budgets"] for row in budget["rows"]]
    writer = csv.DictWriter(stream, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def _csv_line(budget: Mapping[str, Any], row: Row) -> dict[str, Any]:
    line = {"budget": budget["name"], "steps": budget["steps"], "seconds": budget["seconds"]}
    line |= {"strategy": row["strategy"], **(row["param"] or {})}
    line |= {name: row[name] for name in ("runs", "completed", "failed", "solved")}
    for metric in METRICS:
        found = row["metrics"][metric.name]
        line[metric.name] = found["median"]
        line[f"{metric.name}_low"], line[f"{metric.name}_high"] = found["interval"] or (None, None)
        if metric.compared:
            versus = found["versus_baseline"] or {}
            line[f"{metric.name}_ratio"] = versus.get("ratio")
            low, high = versus.get("ratio_interval") or (None, None)
            line[f"{metric.name}_ratio_low"], line[f"{metric.name}_ratio_high"] = low, high
            line[f"{metric.name}_p_value"] = versus.get("p_value")
            line[f"{metric.name}_difference_shown"] = versus.get("difference_shown")
            line[f"{metric.name}_probability_above"] = versus.get("probability_above")
    return line


def write_tables(folder: Path, table: Mapping[str, Any]) -> None:
    """Write ``table.md``, ``table.csv`` and ``table.json``."""
    write_json(folder / "table.json", finite(table))
    (folder / "table.md").write_text(as_markdown(table), encoding="utf-8")
    (folder / "table.csv").write_text(as_csv(table), encoding="utf-8")
