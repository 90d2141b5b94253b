"""The choices of a run: every field of ``Config`` and of the strategies' own, with all its defaults."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import strategies
from common.config import Config
from docs.generate.markdown import code, codes

Field = dataclasses.Field[Any]


@dataclass(frozen=True)
class Choice:
    """One field, in words.

    Attributes:
        name: the field's name.
        kind: its type.
        allowed: which values.
        default: with the strategies that have another one.
        help: what it does, with what strategies say otherwise.
        users: the strategies in which it has a use.
    """

    name: str
    kind: str
    allowed: str
    default: str
    help: str
    users: str


@functools.cache
def configs() -> dict[str, type[Config]]:
    """Return the ``Config`` of each of our strategies, in teaching order."""
    return {name: strategies.load(name).Config for name in strategies.STRATEGIES}


def choices() -> list[Choice]:
    """Return all choices: the common ones first, then what strategies add."""
    return [choice_of(name) for name in field_owners()]


@functools.cache
def common_names() -> list[str]:
    """Return the fields of the common ``Config``."""
    return [item.name for item in dataclasses.fields(Config)]


@functools.cache
def field_owners() -> dict[str, list[str]]:
    """Return the strategies that know each field, used there or not."""
    owners: dict[str, list[str]] = {name: list(configs()) for name in common_names()}
    for strategy, config in configs().items():
        for item in dataclasses.fields(config):
            if item.name not in common_names():
                owners.setdefault(item.name, []).append(strategy)
    return owners


def has_use(name: str, strategy: str) -> bool:
    """Return whether a choice means anything to a strategy; where it does not, it is refused."""
    traits = strategies.traits_of(strategy)
    fixed = name == "workers" and traits.single_process
    return strategy in field_owners()[name] and name not in traits.unused_options and not fixed


def choice_of(name: str, strategy: str | None = None) -> Choice:
    """Describe one field, as all strategies have it or as one of them has."""
    owners = [strategy] if strategy else field_owners()[name]
    users = [strategy for strategy in owners if has_use(name, strategy)]
    first, hint = _declaration(name, owners)
    return Choice(
        name=name,
        kind=_kind(hint),
        allowed=_allowed(first, hint),
        default=_default(name, first, users or owners),
        help=_help(name, first, users or owners),
        users="all" if users == list(configs()) else codes(users),
    )


def field_of(config: type[Config], name: str) -> Field:
    """Return one field of a configuration."""
    found: Field = config.__dataclass_fields__[name]
    return found


def _declaration(name: str, owners: list[str]) -> tuple[Field, Any]:
    """Return the field where it is declared first, and its type."""
    owner = Config if name in common_names() else configs()[owners[0]]
    return field_of(owner, name), typing.get_type_hints(owner)[name]


def _kind(hint: Any) -> str:
    words = {int: "int", float: "float", str: "str", bool: "bool", type(None): "None"}
    return " or ".join(words[part] for part in typing.get_args(hint) or (hint,))


def _allowed(item: Field, hint: Any) -> str:
    """Return which values a field takes: its choices, or its kind of number with its limits."""
    limits = item.metadata
    parts = set(typing.get_args(hint)) or {hint}
    if limits["choices"]:
        text = " or ".join(code(value) for value in limits["choices"])
    elif bool in parts:
        text = "yes or no"
    elif {int, float} & parts:
        text = " ".join(["whole number" if int in parts else "number", _limits(limits)]).strip()
        text += ", or a word" if str in parts else ""
    else:
        text = "text"
    return f"{text}, or `none`" if type(None) in parts else text


def _limits(limits: Any) -> str:
    words = {"at_least": "at least", "above": "above", "at_most": "at most"}
    found = [f"{word} {limits[name]:g}" for name, word in words.items() if limits[name] is not None]
    return ", ".join(found)


def _default(name: str, declared: Field, users: Iterable[str]) -> str:
    """Return the default; where strategies differ, which has which."""
    by_value: dict[str, list[str]] = {}
    for strategy in users:
        value = field_of(configs()[strategy], name).default
        by_value.setdefault(code(value), []).append(strategy)
    first = code(declared.default)
    others = [f"{value} ({', '.join(names)})" for value, names in by_value.items() if value != first]
    return "; ".join([first, *others] if first in by_value else others)


def _help(name: str, declared: Field, users: Iterable[str]) -> str:
    """Return the help line; where strategies say something else, that too."""
    by_text: dict[str, list[str]] = {}
    for strategy in users:
        text = field_of(configs()[strategy], name).metadata["help"]
        by_text.setdefault(text, []).append(strategy)
    first = declared.metadata["help"]
    others = [f"{codes(names)}: {text}" for text, names in by_text.items() if text != first]
    return " ".join([first, *others] if first in by_text else others)
