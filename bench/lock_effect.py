"""What lost updates do to learning: ``hogwild`` with and without its lock, at equal env steps.

    python -m bench.lock_effect --seeds 10 --copy-back-seeds 5

In place, few writes are lost; copied back, most updates are. The lock loses none and changes nothing
else, so that the difference between a row and the one below it is what the losses do (and what the
waiting does, which costs seconds, not env steps). One run at a time, each in a fresh process; the ways
take turns, seed by seed.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

# (how it writes, whether under the lock), in the order of the table.
WAYS = (("in-place", False), ("in-place", True), ("copy-back", False), ("copy-back", True))
RESAMPLES = 10_000

Summary = dict[str, Any]


def run(seed: int, write: str, lock: bool, choices: Sequence[str]) -> Summary:
    """Run once in a process of its own and return the summary."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench", "run", "--strategy", "hogwild", "--seed", str(seed)]
        command += ["--write", write, "--lock" if lock else "--no-lock", *choices]
        command += ["--json", "--quiet", "--output", str(Path(folder) / "run")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(done.stderr.strip()[-2000:])
    summary: Summary = json.loads(done.stdout)
    if not summary["audit"]["auditable"]:
        raise click.ClickException(f"seed {seed}, {write}: {summary['audit']['reason']}")
    return summary


def env_steps_to_solve(summary: Summary) -> float:
    """Return when a run had solved its environment; infinity if it had not."""
    steps = summary["returns"]["solved_at_env_steps"]
    return math.inf if steps is None else float(steps)


def final_return(summary: Summary) -> float:
    """Return the mean return of 100 episodes of the final weights."""
    return float(summary["returns"]["eval_mean"])


def resampled_medians(values: Sequence[float], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return the medians of the values drawn anew with replacement, ``[RESAMPLES]``."""
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(values), size=(RESAMPLES, len(values)))
    medians: np.ndarray[Any, Any] = np.median(np.asarray(values, dtype=float)[drawn], axis=1)
    return medians


def interval(medians: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the middle 95% (percentile bootstrap), each end a value that was drawn."""
    low, high = np.quantile(medians, [0.025, 0.975], method="nearest")
    return float(low), float(high)


def difference_interval(unlocked: Sequence[float], locked: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the median with the lock minus that without."""
    return interval(resampled_medians(locked, seed=1) - resampled_medians(unlocked, seed=2))


def number(value: float) -> str:
    """Return a number for the table."""
    return "not solved" if math.isinf(value) else f"{value:,.0f}" if value > 1000 else f"{value:.1f}"


def described(values: Sequence[float]) -> str:
    """Return median and interval."""
    low, high = interval(resampled_medians(values))
    return f"{number(float(np.median(values)))} ({number(low)} to {number(high)})"


def table_row(write: str, lock: bool, summaries: Sequence[Summary]) -> str:
    """Return one way's row."""
    lost = [summary["audit"]["lost_fraction"] for summary in summaries]
    speed = [summary["env_steps_per_second"] or 0.0 for summary in summaries]
    solved = [env_steps_to_solve(summary) for summary in summaries]
    return (
        f"| {write} | {'yes' if lock else 'no'} | {len(summaries)} | {np.median(lost):.2g} "
        f"({min(lost):.2g} to {max(lost):.2g}) | {described([final_return(s) for s in summaries])} | "
        f"{sum(map(math.isfinite, solved))} | {described(solved)} | {np.median(speed):,.0f} |"
    )


def verdict(write: str, unlocked: Sequence[Summary], locked: Sequence[Summary]) -> str:
    """Say whether the final returns with and without the lock are told apart."""
    low, high = difference_interval(
        [final_return(summary) for summary in unlocked], [final_return(summary) for summary in locked]
    )
    shown = "no difference shown" if low <= 0 <= high else "a difference is shown"
    return (
        f"{write}: median final return with the lock minus without, 95% interval {low:+.1f} to "
        f"{high:+.1f}: {shown}"
    )


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=10, show_default=True, help="In place.")
@click.option(
    "--copy-back-seeds", type=click.IntRange(0), default=5, show_default=True, help="Copied back."
)
@click.option("--steps", type=click.IntRange(1), default=40_000, show_default=True, help="Of each run.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("--env", "env_id", default="CartPole-v1", show_default=True, help="Gymnasium id.")
@click.argument("more", nargs=-1)
def main(
    seeds: int, copy_back_seeds: int, steps: int, workers: int, env_id: str, more: tuple[str, ...]
) -> None:
    """Print every run, then a table of medians with intervals. What follows -- goes to bench run."""
    choices = ["--env", env_id, "--steps", str(steps), "--workers", str(workers), *more]
    summaries: dict[tuple[str, bool], list[Summary]] = {way: [] for way in WAYS}
    for seed in range(max(seeds, copy_back_seeds)):
        for write, lock in WAYS:
            if seed < (seeds if write == "in-place" else copy_back_seeds):
                summaries[write, lock].append(run(seed, write, lock, choices))
                click.echo(_line(seed, write, lock, summaries[write, lock][-1]))
    click.echo(f"\nhogwild on {env_id}, {workers} workers, {steps:,} env steps")
    click.echo(
        "| write | lock | runs | lost share: median (range) | final return: median (95% interval) | "
        "solved | env steps until solved: median (95% interval) | env steps/s: median |"
    )
    click.echo("|---|---|---|---|---|---|---|---|")
    for way, rows in summaries.items():
        if rows:
            click.echo(table_row(*way, rows))
    click.echo("")
    for write in ("in-place", "copy-back"):
        if summaries[write, False]:
            click.echo(verdict(write, summaries[write, False], summaries[write, True]))


def _line(seed: int, write: str, lock: bool, summary: Summary) -> str:
    return (
        f"seed {seed}, {write}{', locked' if lock else ''}: final return {final_return(summary):.1f}, "
        f"env steps until solved: {number(env_steps_to_solve(summary))}, "
        f"lost share {summary['audit']['lost_fraction']:.2g}"
    )


if __name__ == "__main__":
    main()
