"""``bench compare``: several strategies and seeds under equal budgets, and what each of them gave."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from common.config import ConfigError, spell

DEFAULT_STEPS = 100_000
DEFAULT_SECONDS = 12.0
DEFAULT_SEEDS = 5
COMPLETED, FAILED, INTERRUPTED = 0, 1, 130

# Options of a run that a comparison decides, or that would give its runs unequal budgets.
LEFT_OUT = ("seed", "steps", "seconds", "until_solved")


class ManyRunsCommand(click.Command):
    """A command whose options are completed by those of ``bench run`` when they are first needed."""

    _completed = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options and those that reach every run."""
        if not self._completed:
            from bench.options import config_options

            self._completed = True
            self.params.extend(option for option in config_options() if option.name not in LEFT_OUT)
        return super().get_params(ctx)


def own_options(kind: str) -> Callable[[Any], Any]:
    """Return a decorator with the options that comparing and sweeping share."""
    options = [
        click.option(
            "--seeds",
            type=click.IntRange(min=1),
            default=DEFAULT_SEEDS,
            show_default=True,
            help="Seeds 0 to N-1.",
        ),
        click.option("--steps", metavar="N", help="Budget: env steps of each run."),
        click.option("--seconds", metavar="X", help="Budget: seconds of training of each run."),
        click.option(
            "--output",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help=f"Folder, new or empty. [default: runs/<time>-{kind}]",
        ),
        click.option(
            "--resume",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Go on with what was interrupted; nothing that is complete is done again.",
        ),
        click.option(
            "--json", "json_only", is_flag=True, help="Print the table as JSON, nothing else."
        ),
        click.option("--quiet", is_flag=True, help="Show no progress."),
    ]

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command("compare", cls=ManyRunsCommand)
@click.option("--strategies", metavar="NAME,NAME", help="Which, in the table's order. [default: all]")
@click.option("--peers", is_flag=True, help="Also run stable-baselines3's DQN (extra 'peers').")
@own_options("compare")
@click.pass_context
def command(
    ctx: click.Context, /, strategies: str | None, peers: bool, seeds: int, **values: Any
) -> int:
    """Run strategies with several seeds under equal budgets, one run at a time, and print a table.

    Example: bench compare --strategies single,vector,apex --seeds 5 --seconds 15

    Without --steps and --seconds there are two budgets, one after the other: 100,000 env steps, and
    12 seconds. Options of 'bench run' reach every run. --workers and --envs-per-worker reach the
    strategies that have a use for them; any other option must have a use in all of them.

    Exits with 0 if all runs completed, 1 if one failed, 2 for bad input, 130 if it was interrupted.
    """
    from bench.comparison import PEER, load
    from strategies import registered

    if values["resume"] is not None:
        refuse_other_options(ctx)
        return go_on(load(values["resume"]), "compare", values)
    names = list(registered()) if strategies is None else strategies.split(",")
    if peers:
        names.append(PEER)
    budgets = budgets_of(ctx, values, default=("steps", "seconds"))
    plan = {"kind": "compare", "budgets": budgets, "strategies": unique("strategy", names)}
    return go_on(make(plan, seeds, chosen_options(ctx), values["output"]), "compare", values)


def unique(what: str, names: Sequence[Any]) -> list[Any]:
    """Return the names.

    Raises:
        ConfigError: one is there twice, so that two runs would have one folder.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{what} {name!r} is given twice; once is enough")
    return list(names)


def refuse_other_options(ctx: click.Context) -> None:
    """Refuse whatever stands beside --resume: what is compared was decided at the start.

    Raises:
        ConfigError: an option was given.
    """
    for name in ctx.params:
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in ("resume", "json_only", "quiet"):
            raise ConfigError(
                f"--resume goes on with what was decided at the start; leave {spell(name)} out, or "
                "start a new comparison"
            )


def budgets_of(ctx: click.Context, values: dict[str, Any], default: Sequence[str]) -> list[Any]:
    """Return the budgets that were asked for, env steps first; else the default ones."""
    from bench.comparison import Budget
    from bench.options import Number, Whole

    if values["steps"] is None and values["seconds"] is None:
        both = [Budget("steps", DEFAULT_STEPS), Budget("seconds", seconds=DEFAULT_SECONDS)]
        return [budget for budget in both if budget.name in default]
    budgets = []
    if values["steps"] is not None:
        budgets.append(Budget("steps", Whole().convert(values["steps"], None, ctx)))
    if values["seconds"] is not None:
        budgets.append(Budget("seconds", seconds=Number().convert(values["seconds"], None, ctx)))
    return budgets


def chosen_options(ctx: click.Context) -> dict[str, Any]:
    """Return the options of ``bench run`` that were given."""
    from bench.options import config_options

    names = {option.name for option in config_options()} - set(LEFT_OUT)
    return {
        name: value
        for name, value in ctx.params.items()
        if name in names and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def make(plan: dict[str, Any], seeds: int, options: dict[str, Any], output: Path | None) -> Any:
    """Return a new comparison in a new folder, once every configuration in it was tried.

    Raises:
        ConfigError: something in it cannot work; no folder is left.
    """
    from bench.comparison import Comparison
    from bench.comparison_folder import make_folder
    from common.config import Config

    env_id = options.pop("env_id", Config.env_id)
    workers = options.pop("workers", None)
    comparison = Comparison(
        folder=Path(),
        env_id=env_id,
        seeds=list(range(seeds)),
        workers=workers,
        options=options,
        **plan,
    )
    comparison.check()
    comparison.folder = make_folder(plan["kind"], output)
    comparison.save()
    return comparison


def go_on(comparison: Any, kind: str, values: dict[str, Any]) -> int:
    """Do what is left of a comparison, write its tables and print one.

    Raises:
        ConfigError: it is of the other kind, or another process is at work on it.
    """
    from bench.cli import reserved_stdout
    from bench.comparison_folder import sole_owner
    from bench.machine import commit, differences, machine
    from bench.sequence import carry_out

    comparison.check()
    if comparison.kind != kind:
        raise ConfigError(
            f"{comparison.folder} holds a {comparison.kind}; go on with it by "
            f"'bench {comparison.kind} --resume {comparison.folder}'"
        )
    say = (lambda line: None) if values["quiet"] else _say
    if comparison.commit != commit():
        say(f"it was started at commit {comparison.commit}, and goes on at {commit()}")
    if other := differences(comparison.machine, machine()):
        say(f"it was started on another machine, so its speeds will not compare: {other}")
    with reserved_stdout() as stdout, sole_owner(comparison.folder):
        finished = carry_out(comparison, say)
        text = _write_tables(comparison, values["json_only"])
        print(text, file=stdout, flush=True)
    if not finished:
        say(f"interrupted; 'bench {kind} --resume {comparison.folder}' goes on")
        return INTERRUPTED
    return FAILED if any(run.status != "completed" for run in comparison.runs) else COMPLETED


def _say(line: str) -> None:
    click.echo(line, err=True)


def _write_tables(comparison: Any, json_only: bool) -> str:
    from bench.summary import finite
    from bench.table import result
    from bench.tabulate import as_text, write_tables

    table = result(comparison)
    write_tables(comparison.folder, table)
    if json_only:
        return json.dumps(finite(table), indent=2)
    if not any(run.status == "completed" for run in comparison.runs):
        return f"no run is complete\nfolder {os.fspath(comparison.folder)}"
    return f"{as_text(table)}\nfolder {os.fspath(comparison.folder)}: table.md, table.csv, table.json"
