"""What one slow worker costs: the same run with and without ``--straggler``.

    python -m bench.straggler

One of four workers is slowed by 5 ms per vector step. At a barrier everybody waits for it; without
one the others go on, and all that is lost is its own share. Each round runs all four cases in turn.
"""

from __future__ import annotations

import statistics
from typing import Any

import click

import strategies
from common.supervisor import RunProbe

WORKERS = 4
STRATEGIES = ("sync", "apex")
# Nobody evaluates, and apex's actors wait for no replay ratio: collecting is what is measured.
CHOICES: dict[str, dict[str, Any]] = {"sync": {}, "apex": {"replay_ratio": "free"}}
NEVER = 10**12


def env_steps_per_second(strategy: str, seconds: float, straggler: str | None) -> float:
    """Run a strategy for some seconds and return its env steps per second of training."""
    module = strategies.load(strategy)
    config = module.Config.for_env(
        "CartPole-v1",
        workers=WORKERS,
        envs_per_worker=8,
        steps=NEVER,
        seconds=seconds,
        straggler=straggler,
        evaluate_every_env_steps=NEVER,
        **CHOICES[strategy],
    )
    result = module.train(config, RunProbe())
    if result.status != "completed":
        raise click.ClickException(result.error or result.status)
    return float(result.env_steps / result.training_seconds)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Interleaved rounds.")
@click.option("--seconds", default=5.0, show_default=True, help="Seconds of each run.")
@click.option("--milliseconds", default=5.0, show_default=True, help="Delay per vector step.")
def main(rounds: int, seconds: float, milliseconds: float) -> None:
    """Print env steps/s with and without the slow worker, and the ratio, as medians over rounds."""
    ratios: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for number in range(rounds):
        for name in STRATEGIES:
            even = env_steps_per_second(name, seconds, None)
            slowed = env_steps_per_second(name, seconds, f"0:{milliseconds}")
            ratios[name].append(slowed / even)
            click.echo(
                f"round {number + 1}, {name}: {even:,.0f} env steps/s, {slowed:,.0f} with one of "
                f"{WORKERS} workers slowed by {milliseconds:g} ms a step, ratio {slowed / even:.2f}"
            )
    for name in STRATEGIES:
        click.echo(f"median ratio, {name}: {statistics.median(ratios[name]):.2f}")


if __name__ == "__main__":
    main()
