"""``bench audit``: the ways to write shared weights side by side, and how much each loses here."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.config import ConfigError

if TYPE_CHECKING:
    from bench.write_paths import Budget, Cell

Result = dict[str, Any]

MAX_WORKERS = 64
MAX_HIDDEN_SIZE = 4096
MAX_WORK_MILLISECONDS = 1000.0
FIGURE, DATA = "lost-updates.png", "audit.json"
DEFAULT_SECONDS = 0.5


@click.command()
@click.option(
    "--workers", default="1,2,4,8", show_default=True, metavar="N,N,...", help="Numbers of processes."
)
@click.option(
    "--hidden-size",
    default="32,128,512",
    show_default=True,
    metavar="N,N,...",
    help="Widths of the network; the middle one where it is held fixed.",
)
@click.option(
    "--work-milliseconds",
    default="0,0.1,1,10",
    show_default=True,
    metavar="X,X,...",
    help="Processor time computed between reading and writing; the middle one where it is held fixed.",
)
@click.option("--seconds", type=float, help=f"Length of each race. [default: {DEFAULT_SECONDS}]")
@click.option("--updates", type=int, help="Instead of seconds: updates of each writer in each race.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"A new or empty folder for the figure {FIGURE} and the data {DATA}. [default: no files]",
)
@click.option("--json", "json_only", is_flag=True, help="Print the data and nothing else.")
def command(
    workers: str,
    hidden_size: str,
    work_milliseconds: str,
    seconds: float | None,
    updates: int | None,
    output: Path | None,
    json_only: bool,
) -> None:
    """Race the ways to write shared weights, and count what each loses.

    Example: bench audit --workers 1,2,4 --output audit

    No network is trained: real processes read the weights, compute for a while, and write them as the
    strategies do. Nothing may be lost with a single writer or under the lock.
    """
    from bench.audit_tables import print_tables
    from bench.machine import commit, machine, versions

    cells = make_cells(
        numbers("workers", workers, 1, MAX_WORKERS, whole=True),
        numbers("hidden size", hidden_size, 1, MAX_HIDDEN_SIZE, whole=True),
        numbers("work milliseconds", work_milliseconds, 0, MAX_WORK_MILLISECONDS),
    )
    budget = make_budget(seconds, updates)
    with output_folder(output):
        results = race_all(cells, budget)
        data = {
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
            "seconds": budget.seconds,
            "updates": budget.updates,
            "races": results,
        }
        if output is not None:
            write_files(output, data)
    if json_only:
        click.echo(json.dumps(data, indent=2))
        return
    print_tables(results)
    click.echo(
        "The figure is drawn with --output DIR."
        if output is None
        else f"The figure is {output / FIGURE}, the data {output / DATA}."
    )


def numbers(
    name: str, text: str, at_least: float, at_most: float, whole: bool = False
) -> tuple[float, ...]:
    """Return a list of numbers as it is written on the command line, in order and without doubles.

    Raises:
        ConfigError: one is no number or out of range.
    """
    kind = "whole numbers" if whole else "numbers"
    found = []
    for part in text.split(","):
        try:
            value: float = int(part) if whole else float(part)
        except ValueError:
            value = float("nan")
        if not at_least <= value <= at_most:
            raise ConfigError(
                f"{name} {part.strip()!r} is not allowed; give {kind} from {at_least:g} to "
                f"{at_most:g}, with commas between them"
            )
        found.append(value)
    return tuple(sorted(set(found)))


def make_budget(seconds: float | None, updates: int | None) -> Budget:
    """Return how long each race goes on.

    Raises:
        ConfigError: both are given, or one is not above zero.
    """
    from bench.write_paths import Budget

    if seconds is not None and updates is not None:
        raise ConfigError("seconds and updates exclude each other; give one of them")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds {seconds:g} is not allowed; give a number above 0")
    if updates is not None and updates < 1:
        raise ConfigError(f"updates {updates} is not allowed; give a whole number of at least 1")
    if updates is not None:
        return Budget(updates=updates)
    return Budget(seconds=seconds or DEFAULT_SECONDS)


def make_cells(
    workers: Sequence[float], hidden_sizes: Sequence[float], works: Sequence[float]
) -> list[Cell]:
    """Return every path at every number of workers, and those that can lose against the other two.

    Raises:
        ConfigError: more workers than memory holds.
    """
    from bench.machine import usable_cores
    from bench.write_paths import LOSES_NOTHING, PATHS, Cell
    from common.shared_memory import require_room_for_processes

    require_room_for_processes(int(max(workers)))
    hidden_size, work = int(middle(hidden_sizes)), middle(works)
    racing = [path for path in PATHS if path not in LOSES_NOTHING]
    some = int(fitting(workers, usable_cores()))
    first = [Cell(path, int(number), hidden_size, work) for number in workers for path in PATHS]
    others = [Cell(path, some, int(size), work) for size in hidden_sizes for path in racing]
    others += [Cell(path, some, hidden_size, each) for each in works for path in racing]
    # The order is relied on: the last race has the number of workers of the others.
    return first + [cell for cell in dict.fromkeys(others) if cell not in first]


def middle(values: Sequence[float]) -> float:
    """Return the middle value, the lower of two."""
    return values[(len(values) - 1) // 2]


def fitting(workers: Sequence[float], cores: int) -> float:
    """Return the most workers that have a core each, but two or more if there is such a number."""
    several = [number for number in workers if number >= 2] or list(workers)
    return max([number for number in several if number <= cores], default=several[0])


def race_all(cells: Sequence[Cell], budget: Budget) -> list[Result]:
    """Run the races one after another, with a line of progress on a terminal."""
    from bench.write_paths import RaceError, run_race

    results = []
    with click.progressbar(
        cells, label=f"{len(cells)} races", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as progress:
        for cell in progress:
            try:
                results.append(run_race(cell, budget))
            except RaceError as error:
                raise click.ClickException(
                    f"{cell.path} with {cell.workers} workers: {error}"
                ) from None
    return results


@contextlib.contextmanager
def output_folder(path: Path | None) -> Iterator[None]:
    """Make the folder before anything starts; take it away again if nothing gets into it.

    Raises:
        ConfigError: it is not empty or cannot be written.
    """
    if path is None:
        yield
        return
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"the output folder {path} is not empty; name a new or an empty one")
    except OSError as error:
        raise ConfigError(
            f"the output folder {path} cannot be written ({error.strerror}); name another one"
        ) from None
    try:
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):  # not empty any more
                folder.rmdir()
        raise


def write_files(folder: Path, data: dict[str, Any]) -> None:
    """Write the data and draw the figure: each whole or not at all."""
    from bench.audit_figure import draw
    from bench.summary import write_json

    write_json(folder / DATA, data)
    temporary = folder / f".{FIGURE}"
    try:
        draw(data["races"], temporary)
        os.replace(temporary, folder / FIGURE)
    finally:
        temporary.unlink(missing_ok=True)
