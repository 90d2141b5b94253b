"""A long run in which a worker is killed again and again: does memory stay flat, does speed hold?

    python -m bench.soak --minutes 30

Once a second the private memory of each process and the run's counters are sampled. The table compares
the minute around minute 5 (or the middle of a shorter run) with the last one.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import psutil

import strategies
from bench.runner import run
from common.events import NullObserver
from common.supervisor import private_mib
from common.types import Death

NEVER = 10**12
REFERENCE_SECONDS = 300.0
SPEED = "env steps/s"


class Soak(NullObserver):
    """Samples a run, and kills one of its actors every so many seconds.

    Attributes:
        samples: (seconds of training, value) by role; and the run's speed.
        kills: processes killed.
        deaths: deaths that the run has reported.
    """

    def __init__(self, kill_every: float) -> None:
        self._kill_every, self._next_kill = kill_every, kill_every
        self._chance = random.Random(0)
        self._last: tuple[float, int] | None = None
        self.samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.kills = self.deaths = 0

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Sample once a second of training; kill when it is time."""
        if seconds <= 0 or (self._last is not None and seconds - self._last[0] < 1):
            return
        if self._last is not None:
            rate = (env_steps - self._last[1]) / (seconds - self._last[0])
            self.samples[SPEED].append((seconds, rate))
        self._last = (seconds, env_steps)
        children = _children()
        for name, pid in children:
            role = name.rpartition("-")[0]
            self.samples[role].append((seconds, private_mib(pid)))
        self.samples["supervisor"].append((seconds, private_mib(os.getpid())))
        if seconds >= self._next_kill:
            self._next_kill = seconds + self._kill_every
            self._kill([pid for name, pid in children if name.startswith("actor-")])

    def _kill(self, pids: list[int]) -> None:
        if pids:
            os.kill(self._chance.choice(pids), signal.SIGKILL)
            self.kills += 1

    def on_death(self, death: Death, outcome: str) -> None:
        """Count it."""
        self.deaths += 1
        click.echo(f"{death.role}-{death.worker} at {death.at_env_steps:,} env steps: {outcome}")

    def around(self, name: str, seconds: float, window: float) -> float:
        """Return the median of what was sampled in a window around a moment."""
        values = [
            value for at, value in self.samples[name] if abs(at - seconds) <= window / 2 and value
        ]
        return statistics.median(values) if values else float("nan")


def _children() -> list[tuple[str, int]]:
    """Return name and id of the processes that are at work; they are named by their roles (Linux)."""
    found = []
    for process in psutil.Process().children():
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.name(), process.pid))
        except psutil.Error:
            continue
    return [(name, pid) for name, pid in found if name.rpartition("-")[2].isdigit()]


@click.command()
@click.option("--strategy", default="apex", show_default=True, help="One that has actors.")
@click.option("--minutes", default=30.0, show_default=True, help="Minutes of training.")
@click.option("--kill-every", default=60.0, show_default=True, help="Seconds between two kills.")
@click.option("--workers", default=2, show_default=True, help="Actors.")
def main(strategy: str, minutes: float, kill_every: float, workers: int) -> None:
    """Train, kill, and print memory and speed early and late, and what is left at the end."""
    seconds = 60 * minutes
    config = strategies.load(strategy).Config.for_env(
        "CartPole-v1", workers=workers, steps=NEVER, seconds=seconds, max_restarts=NEVER
    )
    soak, began = Soak(kill_every), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        summary = run(strategy, config, Path(folder) / "run", lambda _: [soak])
        size = (Path(folder) / "run" / "events.jsonl").stat().st_size
    print_table(soak, min(REFERENCE_SECONDS, seconds / 2), seconds)
    print_end(summary, soak, size, time.perf_counter() - began)


def print_table(soak: Soak, early: float, seconds: float) -> None:
    """Print one row per role, and the speed."""
    window = min(60.0, seconds / 3)
    late = seconds - window / 2
    click.echo(f"\n| | around {early / 60:.1f} min | last {window:.0f} s | ratio |\n|---|---|---|---|")
    for name in soak.samples:
        first, last = soak.around(name, early, window), soak.around(name, late, window)
        unit = "" if name == SPEED else " MiB"
        click.echo(f"| {name} | {first:,.1f}{unit} | {last:,.1f}{unit} | {last / first:.3f} |")


def print_end(summary: dict[str, Any], soak: Soak, event_bytes: int, seconds: float) -> None:
    """Print how it ended."""
    experience = summary["experience"]
    accounted = sum(experience[part] for part in ("stored", "dropped", "in_flight_at_end"))
    click.echo(
        f"\n{summary['status']} after {seconds:.0f} s: {soak.kills} kills, {soak.deaths} deaths "
        f"reported, {summary['processes']['restarts']} restarts, {summary['env_steps']:,} env steps of "
        f"which {summary['env_steps'] - accounted} are unaccounted for; "
        f"{event_bytes / 1024:.0f} KiB of events; processes left: {len(_children())}"
    )


if __name__ == "__main__":
    main()
