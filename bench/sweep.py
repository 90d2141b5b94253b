"""``bench sweep``: one strategy under several values of an option, or of two."""

from __future__ import annotations

from typing import Any

import click

from bench.compare import (
    ManyRunsCommand,
    budgets_of,
    chosen_options,
    go_on,
    make,
    own_options,
    refuse_other_options,
    unique,
)
from common.config import ConfigError, spell

MOST_PARAMS = 2
# What a sweep decides otherwise, or what is no value on an axis.
NOT_SWEPT = {
    "strategy": "'bench compare --strategies' puts strategies side by side",
    "seed": "give --seeds",
    "steps": "it is the budget, give --steps",
    "seconds": "it is the budget, give --seconds",
    "until_solved": "its runs would have different budgets",
}
BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


@click.command("sweep", cls=ManyRunsCommand)
@click.option("--strategy", metavar="NAME", help="One of those that 'bench list' shows. Required.")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="OPTION",
    help="A numeric or boolean option of 'bench run', as replay_ratio; give it twice for a grid.",
)
@click.option(
    "--values", "texts", multiple=True, metavar="X,X,..", help="Its values, a list for each --param."
)
@own_options("sweep")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    strategy: str | None,
    params: tuple[str, ...],
    texts: tuple[str, ...],
    seeds: int,
    **values: Any,
) -> int:
    """Run a strategy with several values of an option, and print a table with a row for each value.

    Example: bench sweep --strategy apex --param replay_ratio --values 0.03,0.125,0.5,2

    Each row is compared with the first. Over 'workers' it says how many pay off here. Without --steps
    and --seconds each run trains for 12 seconds. Options of 'bench run' reach every run.

    Exits with 0 if all runs completed, 1 if one failed, 2 for bad input, 130 if it was interrupted.
    """
    from bench.comparison import load

    if values["resume"] is not None:
        refuse_other_options(ctx)
        return go_on(load(values["resume"]), "sweep", values)
    options = chosen_options(ctx)
    plan = {
        "kind": "sweep",
        "budgets": budgets_of(ctx, values, default=("seconds",)),
        "strategies": [_known(strategy)],
        "param": swept(params, texts, options),
    }
    return go_on(make(plan, seeds, options, values["output"]), "sweep", values)


def _known(strategy: str | None) -> str:
    from strategies import load, registered

    if strategy is None:
        raise ConfigError(f"no strategy was given; name one with --strategy: {', '.join(registered())}")
    load(strategy)
    return strategy


def swept(
    params: tuple[str, ...], texts: tuple[str, ...], options: dict[str, Any]
) -> dict[str, list[Any]]:
    """Return the names and values of a sweep.

    Args:
        params: names of options, with ``_`` or ``-``.
        texts: the values of each, separated by commas.
        options: what every run is told; none of it may be swept as well.

    Raises:
        ConfigError: an option cannot be swept, or a value is none of its values.
    """
    if not params or len(params) != len(texts) or len(params) > MOST_PARAMS:
        raise ConfigError(
            f"there are {len(params)} --param and {len(texts)} --values; give one --values for each "
            f"--param, and one or {MOST_PARAMS} of them"
        )
    names = unique("option", [name.replace("-", "_") for name in params])
    for name in names:
        if name in options:
            raise ConfigError(f"{spell(name)} is swept; leave the option itself out")
    values = [parse_values(name, text) for name, text in zip(names, texts, strict=True)]
    return {"names": names, "values": values}


def parse_values(name: str, text: str) -> list[Any]:
    """Return the values of an option, as the command line of ``bench run`` would read each.

    Raises:
        ConfigError: the option cannot be swept, or a value is none of its values.
    """
    from bench.options import config_options

    known = {option.name: option for option in config_options()}
    if name in NOT_SWEPT:
        raise ConfigError(f"{spell(name)} cannot be swept: {NOT_SWEPT[name]}")
    if name not in known:
        raise ConfigError(f"there is no option {name!r} to sweep; 'bench run --help' lists them")
    return unique(f"value of {spell(name)}", [_value(known[name], each) for each in text.split(",")])


def _value(option: click.Parameter, text: str) -> Any:
    from bench.options import Whole

    word = text.strip()
    value: Any
    if getattr(option, "is_flag", False):
        value = BOOLEANS.get(word.lower())
    else:
        try:
            value = option.type.convert(word, None, None)
        except click.BadParameter:
            value = None
    if not isinstance(value, int | float):
        numbers = "whole numbers" if isinstance(option.type, Whole) else "numbers"
        allowed = ", ".join(BOOLEANS) if getattr(option, "is_flag", False) else numbers
        raise ConfigError(
            f"{word!r} is no value of {spell(str(option.name))} that can be swept; give {allowed}"
        )
    return value
