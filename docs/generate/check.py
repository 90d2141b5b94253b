"""Compares what the reference pages document with what there is.

The pages are made from the code, so this can only fail while a page is stale, or while the making
leaves something out. Both have happened to others.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import click

from bench.options import config_options
from bench.summary_fields import FIELDS
from common.types import Traits
from docs.generate.choices import field_owners
from docs.generate.cli import commands, measurements, option_names
from docs.generate.pages import DOCS

HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
ROW = re.compile(r"^\| (`[^|]*`) \|", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
# Not fields: they say which thing a row or a table is about.
NAME_TRAIT = "name"


def faults(documented: Collection[str], existing: Collection[str], kind: str) -> list[str]:
    """Return a sentence for each name that is on one side only."""
    gone = [
        f"{kind} {name} is documented and does not exist" for name in set(documented) - set(existing)
    ]
    new = [f"{kind} {name} exists and is not documented" for name in set(existing) - set(documented)]
    return sorted(gone + new)


def first_columns(text: str) -> dict[str, list[str]]:
    """Return, by heading, the names in the first column of the tables below it."""
    found: dict[str, list[str]] = {}
    pieces = HEADING.split(text)
    for title, below in zip(pieces[2::3], pieces[3::3], strict=True):
        cells = ROW.findall(below)
        found[title] = [name for cell in cells for name in CODE.findall(cell)]
    return found


def page(name: str, folder: Path = DOCS) -> str:
    """Return the text of a reference page."""
    return (folder / "reference" / f"{name}.md").read_text(encoding="utf-8")


def command_faults(
    text: str, of: Mapping[str, click.Command] | None = None, other: Collection[str] | None = None
) -> list[str]:
    """Compare a command line page with the commands: their names, and the options of each.

    Args:
        text: the page.
        of: all commands, those run with ``python -m`` included; as they are now if None.
        other: the choices of a run; as they are now if None.
    """
    existing = {**commands(), **measurements()} if of is None else of
    choices = choice_options() if other is None else set(other)
    tables = first_columns(text)
    documented = {title for title in tables if title.startswith(("bench ", "python -m "))}
    found = faults(documented, existing, "command")
    for name in documented & set(existing):
        own = option_names(existing[name]) - choices
        shared_names = {each for each in tables[name] if each in choices}
        found += faults(set(tables[name]) - shared_names, own, f"option of {name}:")
    return found + faults(tables.get("The choices of a run", []), choices, "choice")


def choice_options() -> set[str]:
    """Return every spelling of the options that set a field of the configuration."""
    return {name for item in config_options() for name in (*item.opts, *item.secondary_opts)}


def config_faults(text: str, existing: Iterable[str] | None = None) -> list[str]:
    """Compare a configuration page with the fields of all configurations."""
    tables = first_columns(text)
    until = list(tables).index("What is used where nothing is chosen")
    documented = {name for title in list(tables)[:until] for name in tables[title]}
    return faults(documented, set(field_owners() if existing is None else existing), "field")


def trait_faults(text: str, existing: Iterable[str] | None = None) -> list[str]:
    """Compare a page of traits with the fields of ``Traits``."""
    names = [item.name for item in dataclasses.fields(Traits)] if existing is None else existing
    documented = set(re.findall(r"^(?:### |- `)(\w+)", text, re.MULTILINE)) - {"At"}
    return faults(documented, set(names) - {NAME_TRAIT}, "trait")


def summary_faults(text: str, existing: Iterable[str] | None = None) -> list[str]:
    """Compare the page of the summary's fields with the list of them."""
    documented = {name for names in first_columns(text).values() for name in names}
    return faults(documented, set(FIELDS if existing is None else existing), "summary field")


def all_options() -> set[str]:
    """Return every option that any command has."""
    every = [*commands().values(), *measurements().values()]
    return {name for command in every for name in option_names(command)} | {"--help"}
