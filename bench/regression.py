"""Is this version slower than that one? An answer that holds on a noisy machine.

    python -m bench.regression --baseline HEAD~5
    python -m bench.regression --baseline HEAD --false-alarms 20

Two speeds measured one after the other differ by ten percent and more on a shared machine, because the
machine changes in between. So the two versions are measured in pairs: a process of each, both alive at
the same time, doing the same part in turns of some milliseconds, in the order A B B A. What is judged
is the ratio within a pair.

Two processes of the very same code differ too, by where things lie in memory. So the whole is done
with several pairs of processes, and each pair of processes gives one number, the median ratio of its
turns. A part is called slower only if every pair of processes says so, by more than the tolerance. If
nothing had changed, each would say so with probability one half at the most: with 7 of them a false
alarm has a probability of at most 1/128 for each part, and far less with a tolerance.
``--false-alarms N`` measures it: a version against itself, N times.

Exits with 0 if no part is slower, 1 if one is, 2 for bad input.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from common.processes import THREAD_VARIABLES

ROOT = Path(__file__).resolve().parents[1]
TURN_SECONDS = 0.02

# What is compared: a part of ``bench.parts`` with its arguments.
PARTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "env, 64 lanes": ("lanes", (64,)),
    "act, batch 8": ("acting", (8,)),
    "update, batch 128": ("update", (128,)),
    "sample, uniform": ("sampling", (100_000, False)),
    "sample, prioritized": ("sampling", (100_000, True)),
    "insert 512": ("inserting", (100_000,)),
    "publish": ("publishing", ()),
}

# Runs in the version that is measured, with the measuring code of this one: reads a line with a part
# and a number of calls, answers with the seconds they took.
# An installed copy of the toolkit must not stand in for what a version lacks.
SERVER = """
import bench, json, pathlib, runpy, sys, time
parts = runpy.run_path(sys.argv[1])
tree = pathlib.Path.cwd().resolve()
prepared = {}
for line in sys.stdin:
    name, function, arguments, calls = json.loads(line)
    try:
        if name not in prepared:
            prepared[name] = parts[function](*arguments)
            for own in ("bench", "common", "strategies"):
                path = getattr(sys.modules.get(own), "__file__", None)
                if path and tree not in pathlib.Path(path).resolve().parents:
                    del prepared[name]
                    raise ImportError(f"No module named {own!r} in this version")
        part = prepared[name]
        began = time.perf_counter()
        for _ in range(calls):
            part()
        answer = {"seconds": time.perf_counter() - began}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Verdict:
    """What is said of one part.

    Attributes:
        part: its name.
        ratios: seconds now over seconds then, one of each pair of processes.
        tolerance: how much slower still counts as equal.
    """

    part: str
    ratios: tuple[float, ...]
    tolerance: float

    @property
    def median(self) -> float:
        """The middle ratio."""
        return statistics.median(self.ratios)

    @property
    def is_slower(self) -> bool:
        """Whether every pair of processes says that it is slower by more than the tolerance."""
        return min(self.ratios) > 1 + self.tolerance

    @property
    def is_faster(self) -> bool:
        """Whether every pair of processes says that it is faster by more than the tolerance."""
        return max(self.ratios) < 1 / (1 + self.tolerance)

    @property
    def word(self) -> str:
        """The verdict."""
        return "SLOWER" if self.is_slower else "faster" if self.is_faster else "no difference shown"


def confidence(num_pairs: int) -> float:
    """Return with which probability the true median lies between the lowest and highest of n ratios."""
    return float(1 - 2 * 0.5**num_pairs)


class Version:
    """A process that does parts of one version when it is told to.

    Args:
        tree: the version's files.
    """

    def __init__(self, tree: Path) -> None:
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONPATH": str(tree)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(ROOT / "bench" / "parts.py")],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, part: str, calls: int) -> float:
        """Do a part so often and return how long it took.

        Raises:
            MissingPartError: this version cannot do it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([part, *PARTS[part], calls]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise MissingPartError(answer["error"])
        return float(answer["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class MissingPartError(Exception):
    """A version has not got a part, or has it under another name."""


def calls_for(version: Version, part: str) -> int:
    """Return how many calls fill a turn; also warms the part up."""
    calls = 1
    while True:
        seconds = version.seconds(part, calls)
        if seconds >= TURN_SECONDS / 4:
            return max(1, round(calls * TURN_SECONDS / seconds))
        calls *= 4


def ratio_of_pair(now: Callable[[], float], then: Callable[[], float], turns: int) -> float:
    """Return the median of now / then over turns in the order A B B A."""
    ratios = []
    for number in range(turns):
        if number % 2:
            after = then()
            ratios.append(now() / after)
        else:
            before = now()
            ratios.append(before / then())
    return statistics.median(ratios)


def compare(
    baseline: Path, current: Path, parts: Sequence[str], num_pairs: int, turns: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the ratios of each part, one for each pair of processes, and why others have none."""
    ratios: dict[str, list[float]] = {part: [] for part in parts}
    failed: dict[str, str] = {}
    for _ in range(num_pairs):
        with contextlib.closing(Version(baseline)) as then, contextlib.closing(Version(current)) as now:
            for part in parts:
                if part in failed:
                    continue
                try:
                    ratios[part].append(_ratio(now, then, part, turns))
                except MissingPartError as error:
                    failed[part] = str(error)
    return {part: values for part, values in ratios.items() if part not in failed}, failed


def _ratio(now: Version, then: Version, part: str, turns: int) -> float:
    calls = calls_for(then, part)
    now.seconds(part, calls)
    return ratio_of_pair(lambda: now.seconds(part, calls), lambda: then.seconds(part, calls), turns)


@contextlib.contextmanager
def files_of(ref: str) -> Iterator[Path]:
    """Yield a folder with the files of a commit; the repository itself is not touched.

    Raises:
        UsageError: there is no such commit.
    """
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", ref]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise click.UsageError(f"the baseline {ref!r} cannot be read: {reason}")
    with tempfile.TemporaryDirectory(prefix="parallel-dqn-bench-baseline-") as folder:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            # The data filter is not in the first releases of Python 3.11.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            archive.extractall(folder)
        yield Path(folder)


def verdicts(ratios: Mapping[str, Sequence[float]], tolerance: float) -> list[Verdict]:
    """Judge every part."""
    return [Verdict(part, tuple(values), tolerance) for part, values in ratios.items()]


def _line(verdict: Verdict) -> str:
    low, high = min(verdict.ratios), max(verdict.ratios)
    return f"{verdict.part:22} {verdict.median:6.3f}  ({low:.3f} to {high:.3f})  {verdict.word}"


def _print(found: Sequence[Verdict], failed: Mapping[str, str], num_pairs: int) -> None:
    level = confidence(num_pairs)
    click.echo(f"{'part':22} {'ratio':>6}  ({level:.1%} interval of the median); above 1 is slower now")
    for verdict in found:
        click.echo(_line(verdict))
    for part, reason in failed.items():
        click.echo(f"{part:22} not compared: {reason}")


def _false_alarms(tree: Path, repeats: int, options: Mapping[str, Any], tolerance: float) -> None:
    """Compare a version with itself, and print how often that is called slower."""
    alarms = comparisons = 0
    worst = 1.0
    for number in range(repeats):
        ratios, _ = compare(tree, tree, **options)
        found = verdicts(ratios, tolerance)
        alarms += sum(verdict.is_slower for verdict in found)
        comparisons += len(found)
        worst = max([worst, *(min(verdict.ratios) for verdict in found)])
        click.echo(
            f"run {number + 1} of {repeats}: {alarms} false alarms in {comparisons} comparisons; a "
            f"tolerance of {worst - 1:.3f} would have raised none"
        )


@click.command()
@click.option("--baseline", required=True, metavar="REF", help="The commit to compare with.")
@click.option("--processes", default=7, show_default=True, help="Pairs of processes.")
@click.option("--turns", default=12, show_default=True, help="Turns of each part in each pair.")
@click.option("--tolerance", default=0.05, show_default=True, help="Slower by this is still equal.")
@click.option(
    "--part", "chosen", multiple=True, metavar="NAME", help="Only this part; may be repeated."
)
@click.option(
    "--false-alarms",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compare the baseline with itself N times instead, and count the alarms.",
)
def main(
    baseline: str,
    processes: int,
    turns: int,
    tolerance: float,
    chosen: tuple[str, ...],
    false_alarms: int | None,
) -> None:
    """Say whether the working tree is slower than a commit, part by part.

    Example: python -m bench.regression --baseline HEAD
    """
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        raise click.UsageError(f"there is no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    options: dict[str, Any] = {"parts": chosen or tuple(PARTS), "num_pairs": processes, "turns": turns}
    with files_of(baseline) as tree:
        if false_alarms is not None:
            _false_alarms(tree, false_alarms, options, tolerance)
            return
        ratios, failed = compare(tree, ROOT, **options)
    found = verdicts(ratios, tolerance)
    _print(found, failed, processes)
    sys.exit(1 if any(verdict.is_slower for verdict in found) else 0)


if __name__ == "__main__":
    main()
