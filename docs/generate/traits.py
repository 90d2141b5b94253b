"""The traits of all strategies, side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

import strategies
from common.types import Traits
from docs.generate.markdown import attributes_of, code, codes, shown, table

# Short enough for one table; every other trait has a section of its own.
AT_A_GLANCE = ("parent", "processes", "single_process", "can_lose_updates", "ratios", "roles")


def all_traits() -> list[Traits]:
    """Return the header of each of our strategies, in teaching order."""
    return [strategies.traits_of(name) for name in strategies.STRATEGIES]


def trait_names() -> list[str]:
    """Return the names of all traits but the strategy's own name."""
    return [item.name for item in dataclasses.fields(Traits) if item.name != "name"]


def meanings() -> dict[str, str]:
    """Return what each trait means, from the docstring of ``Traits``."""
    found = attributes_of(Traits.__doc__)
    return {name: text.replace("``", "`") for name, text in found.items()}


def family() -> str:
    """Return the tree of parents, then each strategy with its sentence."""
    rows = [
        (f"[`{each.name}`](reference/strategies/{each.name}.md)", each.summary, each.paper)
        for each in all_traits()
    ]
    tree = "\n".join(_branches(None, ""))
    return f"```text\n{tree}\n```\n\n{table(('strategy', 'in one sentence', 'paper'), rows)}"


def _branches(parent: str | None, indent: str) -> list[str]:
    """Return the lines of the tree below a strategy; below none, the whole of it."""
    children = [each.name for each in all_traits() if each.parent == parent]
    lines = []
    for child in children:
        is_last = child == children[-1]
        mark, below = ("+-- ", "    " if is_last else "|   ") if parent else ("", "")
        lines.append(f"{indent}{mark}{child}")
        lines += _branches(child, indent + below)
    return lines


def render() -> str:
    """Return the table of the short traits, then a section for each of the others."""
    explained = [f"- {code(name)}: {meanings()[name]}" for name in AT_A_GLANCE]
    parts = ["### At a glance", _glance(), "\n".join(explained)]
    parts += [_section(name) for name in trait_names() if name not in AT_A_GLANCE]
    return "\n\n".join(parts)


def _glance() -> str:
    rows = [
        (code(each.name), *(_value(getattr(each, name)) for name in AT_A_GLANCE))
        for each in all_traits()
    ]
    return table(("strategy", *map(code, AT_A_GLANCE)), rows)


def _section(name: str) -> str:
    rows = [(code(each.name), _value(getattr(each, name))) for each in all_traits()]
    meaning = meanings()[name]
    sentence = meaning[0].upper() + meaning[1:]
    return f"### {name}\n\n{sentence}\n\n{table(('strategy', code(name)), rows)}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return codes(value) or "none"
    return shown(value)
