"""Solve an environment with several seeds, each in a fresh process, and print every one.

    python -m bench.seeds --strategy apex --seeds 10
    python -m bench.seeds --strategy apex --env LunarLander-v3 --seeds 5 -- --steps 800000

What stands after ``--`` is passed to ``bench run``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from common.envs import Lanes
from common.evaluate import FINAL_EPISODES, play_lanes


def run_seed(strategy: str, env_id: str, seed: int, more: tuple[str, ...]) -> dict[str, Any]:
    """Run one seed to the threshold in a process of its own and return its summary."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench", "run", "--strategy", strategy, "--env", env_id]
        command += ["--seed", str(seed), "--until-solved", "--json", "--quiet"]
        command += ["--output", str(Path(folder) / "run"), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(done.stderr.strip()[-2000:])
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def describe(seed: int, summary: dict[str, Any]) -> str:
    """Return one table row."""
    returns = summary["returns"]
    solved = returns["solved_at_seconds"] is not None
    return (
        f"| {seed} | {'yes' if solved else 'no'} | {_number(returns['solved_at_seconds'], 1)} | "
        f"{_number(returns['solved_after_command_seconds'], 1)} | "
        f"{_number(returns['solved_at_env_steps'], 0)} | {summary['updates']:,} | "
        f"{_number(returns['eval_mean'], 1)} |"
    )


def random_returns(env_id: str) -> tuple[float, ...]:
    """Return the returns of 100 episodes of the uniformly random policy."""
    lanes = Lanes(env_id, FINAL_EPISODES, np.random.SeedSequence(0))
    generator = np.random.default_rng(0)
    number = lanes.info.num_actions
    return play_lanes(lanes, lambda observation: generator.integers(number, size=len(observation)))


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


@click.command()
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--env", "env_id", default="CartPole-v1", show_default=True, help="Gymnasium id.")
@click.option("--seeds", default=10, show_default=True, help="Seeds 0 to N-1.")
@click.argument("more", nargs=-1)
def main(strategy: str, env_id: str, seeds: int, more: tuple[str, ...]) -> None:
    """Print a table with a row per seed, then how many solved and the medians."""
    click.echo(f"{strategy} on {env_id}")
    chance = random_returns(env_id)
    click.echo(f"the random policy returns {np.mean(chance):.1f} (std {np.std(chance):.1f})")
    click.echo("| seed | solved | training s | command s | env steps | updates | final, 100 episodes |")
    click.echo("|---|---|---|---|---|---|---|")
    summaries = []
    for seed in range(seeds):
        summaries.append(run_seed(strategy, env_id, seed, more))
        click.echo(describe(seed, summaries[-1]))
    solved = [s["returns"] for s in summaries if s["returns"]["solved_at_seconds"] is not None]
    click.echo(f"\nsolved {len(solved)} of {seeds}")
    if solved:
        training = statistics.median(r["solved_at_seconds"] for r in solved)
        command = statistics.median(r["solved_after_command_seconds"] for r in solved)
        click.echo(f"median {training:.1f} s of training, {command:.1f} s from the command's start")


if __name__ == "__main__":
    main()
