"""The default comparison, from the table and the figures that are kept of one run of ``bench compare``.

    bench compare --output compared && bench report compared
    python -m docs.generate.comparison compared

keeps them; ``python -m docs.generate`` writes them into the pages.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click

import strategies
from bench import stats
from bench.tabulate import NO_DIFFERENCE, interval_cell, median_cell, notes, versus_cell, views
from bench.wording import rate
from docs.generate.markdown import code, named_versions, table

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "data" / "comparison.json"
FIGURES = ROOT / "docs" / "reference" / "figures"
REPORT_FIGURES = Path("report-figures")  # where bench report has put them
# What of a report's figures the page shows, by its name there and here: the learning by env steps under
# the first budget, by seconds under the second.
SHOWN_FIGURES = {
    "1-learning-env-steps.png": "learning-env-steps.png",
    "2-learning-seconds.png": "learning-seconds.png",
    "2-throughput.png": "throughput.png",
}
ONE_PROCESS = ("single", "vector")
# Metric, its name in a sentence, and whether more of it is slower.
SPEEDS = (
    ("env_steps_per_second", "env steps/s", False),
    ("updates_per_second", "updates/s", False),
    ("wall_seconds_to_solve", "wall seconds to solve", True),
)
SLOWER_HEADERS = ("strategy", "slower than", "in", "median of both", "ratio [95% interval]", "budget")

FRONT_HEADERS = (
    *("strategy", "processes", "who writes the weights"),
    *("env steps/s", "updates/s", "updates per env step", "seconds to solve", "return"),
)

Row = Mapping[str, Any]


@cache
def kept() -> dict[str, Any]:
    """Return the table that is kept."""
    found: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def render() -> str:
    """Return where it was measured, the tables, and where a parallel strategy is slower."""
    found = kept()
    parts = [where(found)]
    parts += [f"## {title}\n\n{table(titles, rows)}" for title, titles, rows in views(found)]
    parts.append("\n".join(f"- {note}" for note in notes(found)))
    rows = list(slower_rows(found))
    parts.append(f"## Slower than one process\n\n{SLOWER}\n\n{table(SLOWER_HEADERS, rows)}")
    return "\n\n".join(parts)


SLOWER = (
    "Every place where a strategy of several processes is slower than a strategy of one, by the median "
    "of all seeds; those that never solved count as later than all others (the tables above leave "
    f"them out of the seconds). Where the two are not told apart it says *{NO_DIFFERENCE}*."
)


def where(found: Mapping[str, Any]) -> str:
    """Return which machine, versions and commit a table is of."""
    machine = found["machine"]
    return (
        f"Measured at commit {code(found['commit'][:10])} on {machine['usable_cores']} shared cores "
        f"({machine['cpu']}, {machine['memory_mib'] / 1024:.0f} GiB of memory), with Python "
        f"{machine['python']}, {named_versions(found['versions'])}."
    )


def slower_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each strategy of several processes, one of one, budget and kind of speed."""
    for budget in found["budgets"]:
        by_name = {row["strategy"]: row for row in budget["rows"]}
        several = [name for name in by_name if not strategies.traits_of(name).single_process]
        for name in several:
            for other in ONE_PROCESS:
                yield from _slower(by_name[name], by_name[other], _budget(budget))


def _budget(budget: Mapping[str, Any]) -> str:
    if budget["steps"] is not None:
        return f"{budget['steps']:,} env steps"
    return f"{budget['seconds']:g} s"


def _slower(row: Row, base: Row, budget: str) -> Iterator[tuple[str, ...]]:
    for name, said, more_is_slower in SPEEDS:
        values, base_values = _values(row, name), _values(base, name)
        middle, base_middle = stats.median(values), stats.median(base_values)
        if middle <= base_middle if more_is_slower else middle >= base_middle:
            continue
        yield (
            code(row["strategy"]),
            code(base["strategy"]),
            said,
            " to ".join("never" if math.isinf(each) else rate(each) for each in (middle, base_middle)),
            _ratio(stats.compared(values, base_values)),
            budget,
        )


def _values(row: Row, name: str) -> list[float]:
    """Return a metric of each seed; what was never reached is infinitely late."""
    return [math.inf if value is None else value for value in row["metrics"][name]["values"]]


def _ratio(found: stats.Comparison) -> str:
    if not found.difference_shown:
        return NO_DIFFERENCE
    if found.ratio is None or found.ratio_interval is None:
        return "some seeds never"
    return f"{found.ratio:.2g} [{found.ratio_interval.low:.2g}, {found.ratio_interval.high:.2g}]"


def front() -> str:
    """Return the family and what each reached in one table, for the README."""
    budget = kept()["budgets"][-1]
    return table(FRONT_HEADERS, map(_front_row, budget["rows"]))


def _front_row(row: Row) -> tuple[str, ...]:
    traits = strategies.traits_of(row["strategy"])
    low, high = row["metrics"]["final_return"]["interval"]
    seconds = median_cell("wall_seconds_to_solve", ".1f")(row)
    return (
        f"[{code(traits.name)}](docs/reference/strategies/{traits.name}.md)",
        traits.processes,
        f"{traits.writes_weights}{' (**updates can be lost**)' if traits.can_lose_updates else ''}",
        median_cell("env_steps_per_second", ",.0f")(row),
        median_cell("updates_per_second", ",.0f")(row),
        median_cell("replay_ratio", ".2g")(row),
        f"{seconds} ({row['solved']} of {row['completed']})",
        f"{median_cell('final_return', '.0f')(row)} [{low:.0f}, {high:.0f}]",
    )


def of_strategy(name: str) -> str:
    """Return what one strategy reached under each budget, and the command."""
    rows = [
        (_budget(budget), row)
        for budget in kept()["budgets"]
        for row in budget["rows"]
        if row["strategy"] == name
    ]
    if not rows:
        return "Not measured yet."
    lines = [("under", *(budget for budget, _ in rows))]
    lines += [(title, *(cell(row) for _, row in rows)) for title, cell in RESULTS]
    return (
        f"{where(kept())} Medians over {len(kept()['seeds'])} seeds, in brackets the 95% bootstrap "
        f"interval:\n\n{table(lines[0], lines[1:])}\n\n"
        f"```sh\nbench compare --strategies {','.join(dict.fromkeys(('single', name)))}\n```"
    )


def _solved(row: Row) -> str:
    return f"{row['solved']} of {row['completed']}"


RESULTS = (
    ("env steps/s", interval_cell("env_steps_per_second", ",.0f")),
    ("to `single`", versus_cell("env_steps_per_second")),
    ("updates/s", interval_cell("updates_per_second", ",.0f")),
    ("updates per env step", median_cell("replay_ratio", ".3g")),
    ("solved", _solved),
    ("wall seconds to solve", interval_cell("wall_seconds_to_solve", ".1f")),
    ("return of the final weights", interval_cell("final_return", ".1f")),
    ("fraction of writes lost", median_cell("lost_fraction", ".2g")),
    ("policy lag, 95th percentile, in updates", median_cell("policy_lag_p95", ",.0f")),
    ("gradient staleness, 95th percentile, in updates", median_cell("gradient_staleness_p95", ".0f")),
    ("memory at the peak, MiB", median_cell("peak_memory_mib", ",.0f")),
)


def keep(folder: Path) -> list[Path]:
    """Copy a comparison's table and a report's figures to where the pages take them from.

    Raises:
        click.ClickException: the folder has no table of all strategies, or no report.
    """
    source = folder / "table.json"
    figures = {folder / REPORT_FIGURES / there: FIGURES / here for there, here in SHOWN_FIGURES.items()}
    for path in (source, *figures):
        if not path.is_file():
            raise click.ClickException(
                f"{path} is not there; bench compare --output {folder}, then bench report {folder}"
            )
    found = json.loads(source.read_text(encoding="utf-8"))
    lacking = set(strategies.STRATEGIES) - {row["strategy"] for row in found["budgets"][-1]["rows"]}
    if lacking:
        raise click.ClickException(f"{source} lacks {', '.join(sorted(lacking))}")
    KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    return [KEPT, *(Path(shutil.copyfile(there, here)) for there, here in figures.items())]


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    """Keep a comparison's table and its report's figures for the pages.

    Example: python -m docs.generate.comparison compared
    """
    for path in keep(folder):
        click.echo(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
