"""The command that repeats a run or a comparison."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import strategies
from bench.options import SHORT_NAMES
from bench.saved import SavedRun, field_of, number_of, rows_of
from common.config import ConfigError


def command_of_run(run: SavedRun) -> str | None:
    """Return the ``bench run`` command of a run: what it chose beside the presets; None if unknown."""
    if run.strategy not in strategies.registered() or not run.config:
        return None
    choices = {name: value for name, value in run.config.items() if name != "env_id"}
    defaults = _defaults(run)
    chosen = {
        name: value
        for name, value in choices.items()
        if name == "seed" or name not in defaults or defaults[name] != value
    }
    return _shell("bench run", {"strategy": run.strategy, "env_id": run.env_id, **chosen})


def _defaults(run: SavedRun) -> Mapping[str, Any]:
    try:
        return dataclasses.asdict(strategies.load(run.strategy).Config.for_env(run.env_id))
    except (ConfigError, ImportError):
        return {}


def command_of_comparison(comparison: Mapping[str, Any]) -> str | None:
    """Return the ``bench compare`` or ``bench sweep`` command; None if the file does not say enough."""
    names, seeds = field_of(comparison, "strategies"), field_of(comparison, "seeds")
    if not isinstance(names, list) or not names or not isinstance(seeds, list):
        return None
    own = [str(name) for name in names if name in strategies.registered()]
    is_sweep = comparison.get("kind") == "sweep"
    chosen: dict[str, Any] = {"strategy": own[0]} if is_sweep and own else {"strategies": ",".join(own)}
    chosen["env_id"] = comparison.get("env_id")
    text = _shell("bench sweep" if is_sweep else "bench compare", chosen)
    text += "".join(_swept(comparison)) + ("" if len(own) == len(names) else " --peers")
    rest: dict[str, Any] = {"seeds": len(seeds)}
    for budget in rows_of(comparison, "budgets"):
        rest |= {name: v for name in ("steps", "seconds") if (v := number_of(budget, name)) is not None}
    if comparison.get("workers") is not None:
        rest["workers"] = comparison["workers"]
    options = field_of(comparison, "options")
    return _shell(text, rest | (dict(options) if isinstance(options, Mapping) else {}))


def _swept(comparison: Mapping[str, Any]) -> Sequence[str]:
    names, values = field_of(comparison, "param.names"), field_of(comparison, "param.values")
    if not isinstance(names, list) or not isinstance(values, list):
        return []
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [
        f" --param {shlex.quote(str(name))} --values {shlex.quote(','.join(map(_word, own)))}"
        for name, own in zip(names, lists, strict=False)
    ]


def _shell(command: str, choices: Mapping[str, Any]) -> str:
    parts = [command]
    for name, value in choices.items():
        option = SHORT_NAMES.get(name, name).replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{option}" if value else f"--no-{option}")
        else:
            parts.append(f"--{option} {shlex.quote(_word(value))}")
    return " ".join(parts)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)
