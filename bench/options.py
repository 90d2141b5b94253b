"""The options of a run, made from the declarations in the strategies' ``Config`` classes.

An option exists once, where its default and its limits are declared with ``common.config.option``;
the command line is derived from that and so cannot differ from it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

import strategies
from common.config import Config, ConfigError, spell
from common.types import Traits

if TYPE_CHECKING:  # generic for type checkers only: older versions of click have no type argument
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

# Spelled shorter on the command line than in the code.
SHORT_NAMES = {"env_id": "env"}


class Whole(ParamType):
    """A whole number; ``1e6`` and ``1_000_000`` are fine too."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer."""
        if not isinstance(value, str):
            return value
        try:
            return int(value)
        except ValueError:
            pass
        try:
            number = float(value)
            if number == int(number):
                return int(number)
        except (ValueError, OverflowError):
            pass
        self.fail(f"{value!r} is not a whole number; 50000, 1e6 and 1_000_000 are", param, ctx)


class Text(ParamType):
    """Any text."""

    name = "TEXT"


class Number(ParamType):
    """A number."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the float."""
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)


class NumberOrWord(ParamType):
    """A number, or a word that the ``Config`` judges."""

    name = "X|word"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the float, or the text as it is."""
        try:
            return float(value)
        except ValueError:
            return value


class OrNone(ParamType):
    """Another type, or ``none``."""

    def __init__(self, other: ParamType) -> None:
        self._other = other
        self.name = f"{other.name}|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return None or what the other type makes of it."""
        if value == "none":
            return None
        return self._other.convert(value, param, ctx)


def config_options() -> list[click.Option]:
    """Return an option for each field of the common ``Config`` and of all strategies' own."""
    configs = {name: strategies.load(name).Config for name in strategies.registered()}
    common = {item.name for item in dataclasses.fields(Config)}
    options: dict[str, click.Option] = {}
    for config in (Config, *configs.values()):
        hints = typing.get_type_hints(config)
        for item in dataclasses.fields(config):
            if item.name not in options and "help" in item.metadata:
                describe = _help if item.name in common else _own_help
                options[item.name] = _option(item, hints[item.name], describe(item, configs))
    return list(options.values())


def _option(item: dataclasses.Field[Any], hint: Any, help_text: str) -> click.Option:
    name = SHORT_NAMES.get(item.name, item.name).replace("_", "-")
    if hint is bool:
        return click.Option([f"--{name}/--no-{name}", item.name], default=None, help=help_text)
    kind = _param_type(hint)
    metavar = "|".join(item.metadata["choices"]) or kind.name  # Config checks the choices
    return click.Option([f"--{name}", item.name], type=kind, metavar=metavar, help=help_text)


def _param_type(hint: Any) -> ParamType:
    parts = set(typing.get_args(hint)) or {hint}
    kind: ParamType = Text()
    if {float, str} <= parts:
        kind = NumberOrWord()
    elif float in parts:
        kind = Number()
    elif int in parts:
        kind = Whole()
    return OrNone(kind) if type(None) in parts else kind


def _help(item: dataclasses.Field[Any], configs: Mapping[str, type[Config]]) -> str:
    """Return what a common option does, its default, and the strategies in which either is another."""
    (first,) = [field.default for field in dataclasses.fields(Config) if field.name == item.name]
    parts = [_shown(first)]
    for name, config in configs.items():
        own = {field.name: field.default for field in dataclasses.fields(config)}
        if own[item.name] != first:
            parts.append(f"{name} {_shown(own[item.name])}")
    text = f"{item.metadata['help']} [default: {', '.join(parts)}]"
    for name, config in configs.items():
        own_text = config.__dataclass_fields__[item.name].metadata["help"]
        if own_text != item.metadata["help"]:
            text += f" {name}: {own_text}"
    return text


def _own_help(item: dataclasses.Field[Any], configs: Mapping[str, type[Config]]) -> str:
    """Return what an option is to each of the strategies that have it; no other takes it."""
    owners: dict[str, list[str]] = {}
    for name, config in configs.items():
        for field in dataclasses.fields(config):
            if field.name == item.name:
                text = f"{field.metadata['help']} [default: {_shown(field.default)}]"
                owners.setdefault(text, []).append(name)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in owners.items())


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value}"


def make_config(strategy_name: str, choices: Mapping[str, Any]) -> Config:
    """Return the configuration of a run from what the user chose explicitly; presets fill the rest.

    Raises:
        ConfigError: no such strategy, a value is not allowed, or an option has no use here.
    """
    strategy = strategies.load(strategy_name)
    _refuse_useless(strategy.Config, strategies.traits_of(strategy_name), choices)
    rest = dict(choices)
    env_id = rest.pop("env_id", Config.env_id)
    config: Config = strategy.Config.for_env(env_id, **rest)
    return config


def _refuse_useless(config: type[Config], traits: Traits, choices: Mapping[str, Any]) -> None:
    known = {item.name for item in dataclasses.fields(config)}
    for name, value in choices.items():
        if name not in known or name in traits.unused_options:
            raise ConfigError(f"{spell(name)} has no use in {traits.name}; leave the option out")
        if name == "workers" and traits.single_process and value != 1:
            raise ConfigError(
                f"workers {value} is not allowed: {traits.name} is one process, so it is 1"
            )
        if name == "replay_ratio" and value == "free" and "free" not in traits.ratios:
            raise ConfigError(
                f"replay ratio 'free' has no use in {traits.name}; give updates per env step"
            )
