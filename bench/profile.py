"""``bench profile``: what this machine can do, part by part, and how much of it a strategy gets."""

from __future__ import annotations

import json
from typing import Any

import click
from click.core import ParameterSource

from bench.cli import RunCommand, reserved_stdout
from common.config import Config, ConfigError

OWN_OPTIONS = ("strategy", "device", "json_only")
# Options of a run that have no meaning here: a profile ends by time and evaluates nothing.
LEFT_OUT = (
    "device",
    "steps",
    "until_solved",
    "evaluate_every_env_steps",
    "evaluation_episodes",
    "evaluation_min_updates",
)
DEFAULT_SECONDS = 10.0
# Of each measurement beside the run's: a tenth of it, within bounds.
LEAST_SECONDS, MOST_SECONDS = 0.2, 1.0


class ProfileCommand(RunCommand):
    """A command with the options of a run, but for those without a meaning here."""

    left_out = LEFT_OUT


@click.command("profile", cls=ProfileCommand)
@click.option("--strategy", metavar="NAME", help="One of those that 'bench list' shows.")
@click.option("--device", is_flag=True, help="Ask whether an accelerator would pay, instead.")
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else.")
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> None:
    """Measure this machine's ceilings, run a strategy beside them, and say what holds it back.

    Example: bench profile --strategy apex --workers 2 --seconds 10

    Takes about a minute; --seconds is the length of the strategy's own run, 10 by default. The other
    options are those of 'bench run'.

    Example: bench profile --device --env CartPole-v1

    With --device, sweeps the network's width and the batch on the CPU and on the accelerator, if torch
    finds one, and shows from where on it is faster.
    """
    choices = {
        name: value
        for name, value in values.items()
        if name not in OWN_OPTIONS and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    with reserved_stdout() as stdout:
        if values["device"]:
            found, show = _profile_device(values["strategy"], choices)
        else:
            found, show = _profile_strategy(values["strategy"], choices)
        if values["json_only"]:
            print(json.dumps(found, indent=2, allow_nan=False), file=stdout)
        else:
            show(found, stdout)


def _profile_device(strategy: str | None, choices: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    from bench.device_sweep import crossover, sweep
    from bench.devices import find_devices
    from bench.machine import machine
    from bench.profile_tables import show_devices
    from common.envs import inspect_env

    useless = [name for name in choices if name != "env_id"]
    if strategy is not None or useless:
        name = "strategy" if strategy is not None else useless[0].replace("_", "-")
        raise ConfigError(f"--{name} has no use with --device, which takes --env alone")
    env_id = choices.get("env_id", Config.env_id)
    inspect_env(env_id)
    devices = find_devices()
    found: dict[str, Any] = {
        "env_id": env_id,
        "machine": machine(),
        "torch": devices.torch,
        "accelerator": devices.accelerator,
        "has_cuda_build": devices.has_cuda_build,
    }
    sides = ["cpu"] if devices.accelerator is None else ["cpu", devices.accelerator]
    cells = {}
    for side in sides:
        _say(f"one update at a time on {side}, over widths and batches")
        cells[side] = sweep(env_id, side)
    found["cells"] = {side: [vars(cell) for cell in cells[side]] for side in sides}
    found["faster_from_batch"] = crossover(cells["cpu"], cells[sides[1]]) if sides[1:] else None
    return found, show_devices


def _profile_strategy(strategy: str | None, choices: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    import strategies
    from bench.options import make_config
    from bench.profile_tables import show_profile
    from common.envs import inspect_env

    if strategy is None:
        names = ", ".join(strategies.registered())
        raise ConfigError(f"no strategy was given; name one with --strategy: {names}")
    config = make_config(strategy, {"seconds": DEFAULT_SECONDS, **choices})
    inspect_env(config.env_id)
    return profile(strategy, config), show_profile


def profile(strategy: str, config: Config) -> dict[str, Any]:
    """Measure the parts alone, the run, the thread trap and the vector environments.

    Raises:
        click.ClickException: something could not be measured.
    """
    from bench.ceilings import PARTS, measure, parts_of, process_counts
    from bench.machine import commit, cpu_in_use, machine, too_busy, usable_cores, versions
    from bench.thread_trap import compare_threads
    from bench.vector_envs import compare_vector_envs

    seconds = min(MOST_SECONDS, max(LEAST_SECONDS, (config.seconds or DEFAULT_SECONDS) / 10))
    cores, others = usable_cores(), cpu_in_use()
    if too_busy(others):
        _say(f"other programs use {others:.0%} of this machine: all figures will be too low")
    counts = sorted({*process_counts(cores), min(config.workers, cores)})
    ceilings: dict[str, Any] = {}
    for part in parts_of(strategy):
        _say(f"{part} alone, with {' and '.join(map(str, counts))} processes")
        rates = {str(number): measure(strategy, config, part, number, seconds) for number in counts}
        ceilings[part] = {"unit": PARTS[part][0], "by_processes": rates}
    _say(f"{strategy} itself, for {config.seconds:g} s")
    run = run_beside(strategy, config, ceilings)
    _say("the same work with one thread per process and with the libraries' own number")
    threads = [compare_threads(strategy, config, number, seconds) for number in sorted({1, cores})]
    _say("ways to step several environments")
    envs = compare_vector_envs(config.env_id, seconds)
    return {
        "strategy": strategy,
        "env_id": config.env_id,
        "config": vars(config),
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "cpu_in_use_before": others,
        "ceilings": ceilings,
        "run": run,
        "threads": threads,
        "vector_envs": envs,
    }


def run_beside(strategy: str, config: Config, ceilings: dict[str, Any]) -> dict[str, Any]:
    """Run the strategy, and return its speed, its share of each ceiling, and the diagnosis."""
    summary = _run(strategy, config)
    writers = sum(name != "actor" for name in _process_roles(summary))
    collectors = config.workers
    env_steps, updates = summary["env_steps_per_second"], summary["updates_per_second"]
    if env_steps is None:  # it ended before the first update
        env_steps = summary["env_steps"] / max(summary["training_seconds"], 1e-9)
    of_ceiling = {}
    for part, ceiling in ceilings.items():
        is_learning = part in ("update", "learning")
        reached = updates if is_learning else env_steps
        limit = _ceiling(ceiling, writers if is_learning else collectors)
        if part != "publish" and reached is not None:
            of_ceiling[part] = reached / limit
    return {
        "seconds": summary["training_seconds"],
        "env_steps_per_second": env_steps,
        "updates_per_second": updates,
        "of_ceiling": of_ceiling,
        "time": summary["time"],
    }


def _run(strategy: str, config: Config) -> dict[str, Any]:
    from datetime import datetime
    from pathlib import Path

    import strategies
    from bench.ceilings import quiet, refuse_failure
    from bench.machine import machine
    from bench.summary import RunFacts, make_summary
    from common.supervisor import RunProbe

    config = quiet(config, config.seconds or DEFAULT_SECONDS)
    result = strategies.load(strategy).train(config, RunProbe(final_evaluation=False))
    refuse_failure(result, f"{strategy} itself")
    facts = RunFacts(
        run_id="profile",
        folder=Path(),
        started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        wall_seconds=result.training_seconds,
        threshold=None,
        supervisor_rss_mib=0.0,
        machine=machine(),
        versions={},
        commit=None,
    )
    return make_summary(strategy, config, result, facts)


def _process_roles(summary: dict[str, Any]) -> list[str]:
    return [name.rpartition("-")[0] for name in summary["time"]["processes"]]


def _ceiling(ceiling: dict[str, Any], number: int) -> float:
    """Return a part's rate with so many processes, or with the nearest number that was measured."""
    measured = {int(count): rate for count, rate in ceiling["by_processes"].items()}
    return float(measured[max((count for count in measured if count <= number), default=1)])


def _say(text: str) -> None:
    click.echo(text, err=True)
