"""Small pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.machine import PACKAGES


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell with a line break or a bar in it is made fit."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(value: Any) -> str:
    """Return a value as code, as a user would write it."""
    return f"`{shown(value)}`"


def named_versions(versions: Mapping[str, Any]) -> str:
    """Return the versions that a result depends on."""
    return ", ".join(f"{name} {versions[name]}" for name in PACKAGES)


def codes(values: Iterable[Any]) -> str:
    """Return several values as code, with commas between."""
    return ", ".join(code(value) for value in values)


def shown(value: Any) -> str:
    """Return a value as the command line spells it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def attributes_of(documentation: str | None) -> dict[str, str]:
    """Return the ``Attributes:`` of a Google docstring, by name, each on one line."""
    _, _, listed = (documentation or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for line in listed.split("\n"):
        match = re.match(r"\s{8}(\w+): (.*)", line)
        if match:
            name = match[1]
            found[name] = match[2].strip()
        elif found and line.strip():
            found[name] += f" {line.strip()}"
    return found
