"""Does the runs of a comparison, one at a time, each in a fresh process.

A run that fails is noted and the rest goes on. Whatever ends this process, also ``kill -9``, ends the
run that is going on; what is complete then stays, and is not repeated when the comparison goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

from bench.comparison import PEER, Comparison, PlannedRun, load_summary, value_text
from bench.display import duration
from bench.estimates import Estimate
from bench.machine import ROOT
from bench.options import SHORT_NAMES
from common.processes import heeded_signals

POLL_SECONDS = 0.05
STOP_TIMEOUT_SECONDS = 10.0
ERROR_BYTES = 4_000

Say = Callable[[str], None]


@dataclass
class Interrupts:
    """How often the user has asked to stop."""

    count: int = 0


@contextmanager
def counted_interrupts() -> Iterator[Interrupts]:
    """Count what asks to end instead of leaving at once: the run that goes on has to be told."""
    interrupts = Interrupts()

    def on_signal(number: int, frame: FrameType | None) -> None:
        interrupts.count += 1

    previous = {number: signal.signal(number, on_signal) for number in heeded_signals()}
    try:
        yield interrupts
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def carry_out(comparison: Comparison, say: Say) -> bool:
    """Do every run that is not complete yet, and return whether it came to the end.

    Args:
        comparison: its ``comparison.json`` is rewritten after each run.
        say: hears a line now and then.
    """
    estimate = take_stock(comparison)
    todo = [run for run in comparison.runs if run.status != "completed"]
    comparison.save()
    say(opening(comparison, todo, estimate))
    with counted_interrupts() as interrupts:
        for number, run in enumerate(todo):
            left = todo[number:]
            say(
                f"[{len(comparison.runs) - len(left) + 1}/{len(comparison.runs)}] {run.budget}: "
                f"{run.label}; {len(left) - 1} more after it, about "
                f"{duration(estimate.seconds(left))} left"
            )
            started = time.perf_counter()
            do_run(comparison, run, interrupts)
            if run.status == "completed":
                estimate.add(run, time.perf_counter() - started)
            comparison.save()
            say(f"    {outcome(comparison, run, time.perf_counter() - started)}")
            if interrupts.count:
                return False
    return True


def take_stock(comparison: Comparison) -> Estimate:
    """Set the status of every run by what its folder holds, and return how long those took."""
    estimate = Estimate(comparison)
    for run in comparison.runs:
        summary = load_summary(comparison.folder / run.path)
        if summary is not None and comparison.is_complete(run):
            run.status, run.error = "completed", None
            estimate.add(run, summary["wall_seconds"])
        elif run.status == "completed":
            run.status = "pending"
    return estimate


def opening(comparison: Comparison, todo: list[PlannedRun], estimate: Estimate) -> str:
    """Return what is going to happen, and how long it will take."""
    budgets = ", then ".join(f"{budget.text} each" for budget in comparison.budgets)
    done = len(comparison.runs) - len(todo)
    rest = f", {done} of them complete already" if done else ""
    basis = "by those that are complete" if done else "a guess until the first runs are done"
    return (
        f"{comparison.kind} on {comparison.env_id}: {', '.join(comparison.strategies)}; "
        f"seeds {comparison.seeds[0]} to {comparison.seeds[-1]}; {budgets}\n"
        f"{len(comparison.runs)} runs, one at a time{rest}: about {duration(estimate.seconds(todo))} "
        f"({basis})\n"
        f"folder {comparison.folder}; Ctrl-C stops, and "
        f"'bench {comparison.kind} --resume {comparison.folder}' goes on"
    )


def outcome(comparison: Comparison, run: PlannedRun, seconds: float) -> str:
    """Return how a run went, in a line."""
    if run.status != "completed":
        return f"{run.status} after {duration(seconds)}" + (f": {run.error}" if run.error else "")
    summary = load_summary(comparison.folder / run.path) or {}
    mean, speed = summary["returns"]["eval_mean"], summary["env_steps_per_second"]
    parts = ["" if mean is None else f"final return {mean:.1f}"]
    parts.append("" if speed is None else f"{speed:,.0f} env steps/s")
    return f"completed in {duration(seconds)}: {', '.join(part for part in parts if part)}"


def do_run(comparison: Comparison, run: PlannedRun, interrupts: Interrupts) -> None:
    """Do one run in a fresh process and note how it went."""
    folder = comparison.folder / run.path
    if folder.exists():  # half of an earlier try: its files must not mix with the new ones
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as errors:
        code = wait_for(start(command(comparison, run), errors), interrupts)
        said = _last_line(errors)
    run.error = None
    if comparison.is_complete(run):
        run.status = "completed"
    elif interrupts.count:
        run.status = "interrupted"
    else:
        run.status = "failed"
        run.error = _reason(load_summary(folder), said, code)


def command(comparison: Comparison, run: PlannedRun) -> list[str]:
    """Return the command of a run, without the interpreter."""
    output = str(comparison.folder / run.path)
    arguments = ["--output", output]
    for name, value in comparison.choices_of(run).items():
        spelled = SHORT_NAMES.get(name, name).replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{'' if value else 'no-'}{spelled}")
        else:
            arguments += [f"--{spelled}", value_text(value)]
    if run.strategy == PEER:
        return ["bench.peers", *arguments]
    return ["bench.child", "run", "--strategy", run.strategy, "--quiet", *arguments]


def start(module: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with a module and its arguments.

    The process is in a session of its own, so that a Ctrl-C reaches it once, through us. It ends when
    the pipe to it closes, which happens at the latest when we end.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        # -P: a folder "bench" or "common" where the user happens to be is not ours.
        [sys.executable, "-P", "-m", *module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[bytes], interrupts: Interrupts) -> int:
    """Wait for a run to end and return its exit code.

    The first interrupt is passed on, and the run has some seconds to write its summary; the second
    kills it.
    """
    deadline, told = float("inf"), False
    try:
        while process.poll() is None:
            if interrupts.count and not told:
                told, deadline = True, time.perf_counter() + STOP_TIMEOUT_SECONDS
                process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
            if interrupts.count > 1 or time.perf_counter() > deadline:
                process.kill()
            time.sleep(POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    return process.returncode


def _last_line(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - ERROR_BYTES))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("Error: ") if lines else ""


def _reason(summary: dict[str, Any] | None, said: str, code: int) -> str:
    """Return why a run has failed, in a line."""
    error = (summary or {}).get("error")
    if error:
        return str(error).strip().splitlines()[-1]
    if code < 0:
        return f"the run's process was ended by {signal.Signals(-code).name}"
    return said or f"the run's process left with exit code {code} and no summary"
