"""What measuring costs: each strategy with and without it, in pairs, one run at a time.

    python -m bench.cost --of audit
    python -m bench.cost --of instruments --strategy hogwild --strategy apex --rounds 9 --seconds 10

Without the audit nothing is rounded and nothing counted; without the instruments neither staleness nor
shares nor health are measured (``--no-audit``, ``--no-instruments``). Which run of a pair comes first
changes from round to round, so that a machine whose speed drifts favours neither. Nobody evaluates, and
there are no more processes than cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import click

import strategies
from bench.machine import usable_cores
from common.supervisor import RunProbe

NEVER = 10**12
MEASURERS = {"audit": ("audit",), "instruments": ("instruments",), "all": ("audit", "instruments")}


def updates_per_second(strategy: str, env_id: str, seconds: float, switches: dict[str, bool]) -> float:
    """Run a strategy for some seconds and return its updates per second from the first update on."""
    module = strategies.load(strategy)
    config = module.Config.for_env(
        env_id,
        steps=NEVER,
        seconds=seconds,
        evaluate_every_env_steps=NEVER,
        **switches,
        **workers_of(strategy),
    )
    result = module.train(config, RunProbe(final_evaluation=False))
    if result.status != "completed":
        raise click.ClickException(f"{strategy}: {result.error or result.status}")
    if not result.steady_updates or not result.steady_seconds:
        raise click.ClickException(
            f"{strategy} made no update in {seconds:g} s; give it more --seconds"
        )
    return float(result.steady_updates / result.steady_seconds)


def workers_of(strategy: str) -> dict[str, Any]:
    """Return as many workers as leave each process a core."""
    traits = strategies.traits_of(strategy)
    if traits.single_process:
        return {}
    has_learner = "learner" in traits.roles
    return {"workers": max(1, usable_cores() - has_learner)}


@click.command()
@click.option(
    "--of",
    "measurer",
    type=click.Choice(list(MEASURERS)),
    default="all",
    show_default=True,
    help="What is switched off in one run of each pair.",
)
@click.option(
    "--strategy", "names", multiple=True, metavar="NAME", help="May be repeated. [default: all]"
)
@click.option("--env", "env_id", default="CartPole-v1", show_default=True, help="Gymnasium id.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Pairs of each.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=8.0,
    show_default=True,
    help="Of each run, from the start of training.",
)
def main(measurer: str, names: Sequence[str], env_id: str, rounds: int, seconds: float) -> None:
    """Print updates/s with and without it, pair by pair, and the ratios as a table."""
    chosen = list(names) or list(strategies.STRATEGIES)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for number in range(rounds):
        for name in chosen:
            order = (True, False) if number % 2 == 0 else (False, True)
            rates = {
                on: updates_per_second(name, env_id, seconds, dict.fromkeys(MEASURERS[measurer], on))
                for on in order
            }
            pairs[name].append((rates[True], rates[False]))
            ratio = rates[True] / rates[False]
            click.echo(f"round {number + 1}, {name}: {_rates(rates[True], rates[False])}, {ratio:.3f}")
    click.echo(
        f"\n| strategy | updates/s with {measurer} | without | ratio: median | lowest | highest |"
    )
    click.echo("|---|---|---|---|---|---|")
    for name, rows in pairs.items():
        click.echo(table_row(name, rows))


def table_row(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    """Return a row of the table: medians, and the ratio of each pair as median and range."""
    with_it, without = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [one / other for one, other in pairs]
    return (
        f"| `{name}` | {with_it:,.0f} | {without:,.0f} | {statistics.median(ratios):.3f} | "
        f"{min(ratios):.3f} | {max(ratios):.3f} |"
    )


def _rates(with_it: float, without: float) -> str:
    return f"{with_it:,.0f} updates/s with it, {without:,.0f} without"


if __name__ == "__main__":
    main()
