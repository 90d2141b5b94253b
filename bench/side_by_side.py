"""Saved runs side by side, on the terminal: a column per run, a row per number that matters.

    python -m bench.side_by_side runs/3/vector runs/3/sync
    python -m bench.side_by_side runs --field audit.elements_affected

Nothing is trained. A row that no run has a number for is left out; ``-`` is *not measured*, never zero.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.saved import SavedRun, field_of, load_runs, rows_of
from bench.summary_fields import FIELDS
from bench.time_shares import read, waiting
from common.config import ConfigError

NOTHING = "-"
MOST_RUNS = 8
GAP = "  "


class Line(NamedTuple):
    """One row: what it is called, and what it says of a run; None if that was not measured."""

    title: str
    of: Callable[[SavedRun], str | None]


def number(title: str, path: str, form: str = ",.0f") -> Line:
    """Return the row of one number of the summary."""

    def of(run: SavedRun) -> str | None:
        value = run.number(path)
        return None if value is None else format(value, form)

    return Line(title, of)


def span(title: str, path: str) -> Line:
    """Return the row of a distribution: its median, 95th percentile and largest value."""

    def of(run: SavedRun) -> str | None:
        values = [run.number(f"{path}.{name}") for name in ("p50", "p95", "max")]
        return None if None in values else " / ".join(f"{value:,.0f}" for value in values)

    return Line(title, of)


def writes_lost(run: SavedRun) -> str | None:
    """Return the share of writes that were lost; an exact zero looks like none other."""
    share = run.number("audit.lost_fraction")
    if share is None:
        return None
    return "0" if share == 0 else f"{share:.2%}" if share >= 0.0001 else f"{share:.1e}"


def waits(role: str) -> Callable[[SavedRun], str | None]:
    """Return a function that says how much of its time a role waits, evaluations left out."""

    def of(run: SavedRun) -> str | None:
        shares = read(run.summary).roles.get(role)
        return None if shares is None else f"{waiting(shares):.0%}"

    return of


def alarms(run: SavedRun) -> str | None:
    """Return the alarms by name; none if health was measured and there was none."""
    names = [str(row.get("name")) for row in rows_of(run.summary, "health.alarms")]
    return ", ".join(names) or ("none" if run.number("health.q_max") is not None else None)


def text(path: str) -> Callable[[SavedRun], str | None]:
    """Return a function that reads a text, or anything else, of the summary."""

    def of(run: SavedRun) -> str | None:
        value = field_of(run.summary, path)
        if value is None or isinstance(value, Mapping | list):
            return None
        return f"{value:.4g}" if isinstance(value, float) else f"{value}"

    return of


LINES = (
    number("env steps/s", "env_steps_per_second"),
    number("updates/s", "updates_per_second"),
    number("updates per env step", "replay_ratio.achieved", ".4g"),
    number("env steps", "env_steps"),
    number("final return", "returns.eval_mean", ".1f"),
    number("s of training to solve", "returns.solved_at_seconds", ".1f"),
    Line("writes lost", writes_lost),
    span("gradient staleness, updates", "gradient_staleness"),
    span("acting lag, updates", "acting_lag"),
    span("policy lag, updates", "policy_lag"),
    span("sample age, env steps", "sample_age"),
    *(Line(f"{role} waits", waits(role)) for role in ("actor", "learner", "actor_learner")),
    number("Jain's index, collected", "experience.jain_collected", ".3f"),
    Line("alarms", alarms),
    Line("bottleneck", text("time.bottleneck")),
)


def rows(runs: Sequence[SavedRun], fields: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield (title, a cell per run) of what at least one run has a number for."""
    for line in [*LINES, *(Line(name, text(name)) for name in fields)]:
        cells = [line.of(run) for run in runs]
        if any(cell is not None for cell in cells):
            yield line.title, [NOTHING if cell is None else cell for cell in cells]


def as_text(names: Sequence[str], found: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return an aligned table: titles to the left, numbers to the right."""
    lines = [("", names), *found]
    first = max(len(title) for title, _ in lines)
    widths = [max(len(cells[i]) for _, cells in lines) for i in range(len(names))]
    return "\n".join(
        (
            title.ljust(first)
            + "".join(f"{GAP}{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        )
        for title, cells in lines
    )


def find(folders: Sequence[Path]) -> list[tuple[str, SavedRun]]:
    """Return the runs in some folders, each with the shortest name that tells it from the others.

    Raises:
        ConfigError: a folder has none, or there are more than fit side by side.
    """
    runs = [run for folder in folders for run in load_runs(folder).runs]
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs do not fit side by side; name at most {MOST_RUNS}")
    names = [run.folder.resolve().name for run in runs]
    doubled = len(set(names)) < len(names)
    return [(str(run.folder) if doubled else name, run) for run, name in zip(runs, names, strict=True)]


def known_field(name: str) -> str:
    """Return the name of a field that a summary has.

    Raises:
        ConfigError: no summary has it.
    """
    if not any(_is_field(name, each) for each in FIELDS):
        raise ConfigError(
            f"no summary has a field {name!r}; docs/reference/summary.md lists those that there are"
        )
    return name


def _is_field(name: str, listed: str) -> bool:
    """Return whether a name is that of a listed field, in which ``*`` stands for any key."""
    parts, wanted = name.split("."), listed.split(".")
    return len(parts) == len(wanted) and all(b in (a, "*") for a, b in zip(parts, wanted, strict=True))


@click.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--field", "fields", metavar="NAME", multiple=True, help="One more field of the summary.")
def main(folders: Sequence[Path], fields: Sequence[str]) -> Any:
    """Print saved runs side by side: a column for each run in the folders.

    Example: python -m bench.side_by_side runs/one runs/two --field audit.elements_affected
    """
    try:
        extra = [known_field(name) for name in fields]
        found = find(folders)
    except ConfigError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    click.echo(as_text([name for name, _ in found], list(rows([run for _, run in found], extra))))


if __name__ == "__main__":
    main()
