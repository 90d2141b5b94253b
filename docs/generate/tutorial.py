"""Run the lessons' commands and write what they print into the pages.

    python -m docs.generate.tutorial        all lessons, in some minutes, on a quiet machine
    python -m docs.generate.tutorial 3 5    two of them

Everything else in the pages is kept by hand. What a page claims about its runs is checked, too: the
command names each claim that does not hold and exits with 1. It writes the pages all the same, so that
the text can be set right beside what was measured.
"""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from bench.machine import ROOT, commit, cpu_in_use, too_busy, usable_cores
from docs.generate import lesson
from docs.generate.pages import filled

COMMAND_SECONDS = 600
# As an installed toolkit would have them, under this interpreter.
PRELUDE = f"""
bench() {{ {shlex.quote(sys.executable)} -m bench "$@"; }}
python() {{ {shlex.quote(sys.executable)} "$@"; }}
"""


def run_step(step: lesson.Step, work: Path) -> tuple[str, float]:
    """Do a step in a folder, and return what it printed to standard output and its seconds.

    Raises:
        click.ClickException: it failed, or took far too long.
    """
    if step.file is not None:
        (work / step.file).write_text(f"{step.text}\n", encoding="utf-8")
        return "", 0.0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    started = time.perf_counter()
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", PRELUDE + step.text],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=COMMAND_SECONDS)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # a session of its own: nothing else is in it
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise click.ClickException(f"more than {COMMAND_SECONDS} s: {step.text}") from None
        raise
    if process.returncode != 0:
        raise click.ClickException(f"{step.text}\n{output}\n{errors}")
    return output, time.perf_counter() - started


def refresh(path: Path, work: Path, machine: str) -> list[str]:
    """Run a lesson, rewrite its page, and return what it claims and the runs do not show."""
    page = path.read_text(encoding="utf-8")
    number = str(lesson.number_of(path))
    outputs: dict[int, str] = {}
    seconds = 0.0
    for step in lesson.steps(page):
        outputs[step.position], taken = run_step(step, work)
        seconds += taken
        if step.file is None:
            click.echo(f"lesson {number}, {taken:.0f} s: {step.text.splitlines()[0]}", err=True)
    data = lesson.load_data(work / "runs" / number)
    try:
        new = lesson.with_values(lesson.with_outputs(page, outputs), data)
    except ValueError as error:
        raise click.ClickException(f"{path.name}: {error}") from None
    for made, target in lesson.figures(page):
        shown = path.parent / target
        shown.parent.mkdir(exist_ok=True)
        shutil.copyfile(work / made, shown)
    new = lesson.with_notes(new, {"machine": machine, "took": duration(seconds)})
    path.write_text(new, encoding="utf-8")
    click.echo(f"{path.name}: {seconds:.0f} s", err=True)
    return lesson.faults(new, data)


def duration(seconds: float) -> str:
    """Return a time as a page says it, rounded up."""
    if seconds > 90:
        return f"about {-(-seconds // 60):.0f} minutes"
    return f"about {-(-seconds // 10) * 10:.0f} seconds"


def where_measured() -> str:
    """Return what the numbers of a page were measured on, and whether other work ran there."""
    cores = f"{usable_cores()} shared {platform.machine().replace('_', '-')} cores"
    text = f"{cores}, {datetime.date.today().isoformat()}, commit {(commit() or 'unknown')[:10]}"
    in_use = cpu_in_use()
    if too_busy(in_use):
        text += f"; other programs used {in_use:.0%} of it, so the speeds are too low"
    return text


def chosen(numbers: Sequence[int]) -> list[Path]:
    """Return the pages of some lessons; of all if none is named.

    Raises:
        click.BadParameter: there is no such lesson.
    """
    paths = {lesson.number_of(path): path for path in lesson.lesson_paths()}
    unknown = [number for number in numbers if number not in paths]
    if unknown:
        raise click.BadParameter(
            f"there is no lesson {unknown[0]}; they are {', '.join(map(str, paths))}"
        )
    return [paths[number] for number in (sorted(set(numbers)) or paths)]


@click.command()
@click.argument("numbers", metavar="[LESSON]...", nargs=-1, type=int)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the commands run, and what they leave stays. [default: a temporary folder]",
)
def main(numbers: Sequence[int], work: Path | None) -> None:
    """Run the commands of the lessons, all or some, and write what they print into the pages.

    Example: python -m docs.generate.tutorial 3 5

    Exits with 1 if the runs do not show what a page claims.
    """
    machine = where_measured()
    found = {}
    for path in chosen(numbers):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) if work is None else work
            place.mkdir(parents=True, exist_ok=True)
            found[path.name] = refresh(path, place, machine)
    for name, faults in found.items():
        for fault in faults:
            click.echo(f"{name}: {fault}")
    first = lesson.LESSONS / "index.md"  # it has the times of all lessons
    first.write_text(filled(first.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(1 if any(found.values()) else 0)


if __name__ == "__main__":
    main()
