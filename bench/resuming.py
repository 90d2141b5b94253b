"""Going on with a run that was stopped: what may be chosen anew, and what is said of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import strategies
from common.config import Config, ConfigError, spell
from common.events import EVENTS
from common.saved_run import FOLDER, SavedRun, load_saved_run
from common.telemetry import COUNTERS
from common.types import RunResult

# How long to go on, how to save and what to put up with: all else would make another run of it.
MAY_CHANGE = (
    *("steps", "seconds", "until_solved", "checkpoint_seconds", "checkpoint_replay"),
    *("worker_timeout", "max_restarts"),
)


def resumed(
    folder: Path, strategy_name: str | None, choices: Mapping[str, Any]
) -> tuple[str, Config, SavedRun]:
    """Return the strategy, the configuration and the checkpoint of a run to go on with.

    Args:
        folder: the run's.
        strategy_name: what the user has said it is; None if nothing.
        choices: what the user chose explicitly.

    Raises:
        ConfigError: there is no whole checkpoint, it is another run's, a choice would make another run
            of it, or nothing is left to do.
    """
    from bench.runner import load_config  # which imports this file

    in_folder = load_config(folder)
    with claimed(folder):  # a run that is still going on replaces its files
        saved = load_saved_run(folder)
    name, config = _saved_config(saved)
    _refuse_another_run(folder, in_folder, (name, config))
    if strategy_name not in (None, name):
        raise ConfigError(f"the run in {folder} is one of {name}, not of {strategy_name}")
    for option, value in choices.items():
        given = getattr(config, option, "no such option")
        if option not in MAY_CHANGE and value != given:
            raise ConfigError(
                f"{spell(option)} {value} is not allowed: the run in {folder} has {given}; only "
                f"{', '.join(map(spell, MAY_CHANGE))} may be new"
            )
    new = dataclasses.replace(config, **choices)
    _refuse_if_done(folder, saved, config, new)
    return name, new, saved


def _saved_config(saved: SavedRun) -> tuple[str, Config]:
    try:
        name, values = str(saved.contents["strategy"]), dict(saved.contents["config"])
        config: Config = strategies.load(name).Config(**values)
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"the checkpoint {saved.folder} is of no run known here: {text}") from None
    return name, config


def _refuse_another_run(
    folder: Path, in_folder: tuple[str, Config], in_checkpoint: tuple[str, Config]
) -> None:
    """Refuse a checkpoint that was not made by the run in whose folder it lies."""
    values = [
        {"strategy": name, **dataclasses.asdict(config)} for name, config in (in_folder, in_checkpoint)
    ]
    for option in {**values[0], **values[1]}:
        here, there = (each.get(option) for each in values)
        if here != there and option not in MAY_CHANGE:
            raise ConfigError(
                f"the checkpoint {folder / FOLDER} is of another run: {spell(option)} is {there} in it "
                f"and {here} in {folder / 'config.json'}"
            )


def _refuse_if_done(folder: Path, saved: SavedRun, old: Config, new: Config) -> None:
    """Refuse to go on where the budget is used up."""
    env_steps, seconds = saved.contents["env_steps"], saved.contents["training_seconds"]
    used = f"the run in {folder} has done {env_steps:,} env steps in {seconds:.1f} s of training"
    is_solved = saved.run["own"]["record"]["solved_at"] is not None
    if new.until_solved and is_solved:
        raise ConfigError(f"{used} and has solved {new.env_id}; to go on give --no-until-solved")
    budget = (new.steps, new.seconds, new.until_solved)
    has_ended = saved.contents["ended"] == "completed"
    unchanged = has_ended and budget == (old.steps, old.seconds, old.until_solved)
    if unchanged:
        raise ConfigError(
            f"the run in {folder} has completed its budget of {_budget(new)}; give more with --steps "
            "or --seconds, counted from the run's beginning"
        )
    if new.steps <= env_steps or (new.seconds is not None and new.seconds <= seconds):
        raise ConfigError(
            f"{used}, and nothing is left of its budget of {_budget(new)}; give more with --steps or "
            "--seconds, counted from the run's beginning"
        )


def _budget(config: Config) -> str:
    return f"{config.steps:,} env steps" + (f" and {config.seconds:g} s" if config.seconds else "")


def session_config(config: Config, saved: SavedRun | None) -> Config:
    """Return the configuration with which the processes of a run are started.

    Where replay was not saved, the warm-up is done once more: no updates are owed for its env steps.

    Raises:
        ConfigError: nothing would be left to learn from.
    """
    if saved is None:
        return config
    contents = saved.contents
    so_far = int(contents["warmup_env_steps"])  # of all warm-ups; the last one may not be through
    if not contents["replay"]:
        begun_at = so_far - config.warmup_env_steps
        so_far += min(config.warmup_env_steps, int(contents["env_steps"]) - begun_at)
    if config.steps < so_far:
        raise ConfigError(
            f"the run in {saved.folder.parent} has no replay saved and warms up again until {so_far:,} "
            f"env steps; give more than {config.steps:,} with --steps"
        )
    return dataclasses.replace(config, warmup_env_steps=so_far)


def resume_block(saved: SavedRun | None, result: RunResult) -> dict[str, Any] | None:
    """Return what the summary says of where a run went on from; None for a new run."""
    if saved is None:
        return None
    before = result.before
    return {
        "from": str(saved.folder),
        "continued_at_env_steps": before.env_steps,
        "continued_at_updates": before.updates,
        "training_seconds_before": before.training_seconds,
        "not_restored": _not_restored(saved, result),
    }


def _not_restored(saved: SavedRun, result: RunResult) -> list[str]:
    missing = []
    if not saved.contents["replay"]:
        missing.append("replay: it was not saved, and was warmed up again")
    counters = saved.run["telemetry"]["counters"]
    cut = result.total("episodes_cut") - int(counters[:, COUNTERS.index("episodes_cut")].sum())
    if cut:
        missing.append(
            f"running episodes: {cut} could not be brought back to where they were, and were cut there"
        )
    return missing


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes from going on with the run in a folder while this one works on it.

    A file lock: the kernel gives it back when this process ends, however that happens.

    Raises:
        ConfigError: another process works on it.
    """
    if sys.platform == "win32":  # a lock there would keep this process from writing the file, too
        yield
        return
    import fcntl

    try:
        descriptor = os.open(folder / EVENTS, os.O_RDONLY | os.O_CREAT, 0o666)
    except OSError:  # nobody can work on it
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(f"the run in {folder} is still going on in another process") from None
    try:
        yield
    finally:
        os.close(descriptor)
