"""The family of strategies as a table, from their ``TRAITS``."""

from __future__ import annotations

import dataclasses
from typing import Any

import strategies
from common.types import Traits

# What the table shows of each strategy, in this order.
COLUMNS = {
    "collects": "collects",
    "computes_gradients": "computes gradients",
    "writes_weights": "writes weights",
    "guard": "guard",
    "experience": "experience",
    "can_go_wrong": "can go wrong",
}
WIDE_COLUMNS = 140


def traits_of_all() -> list[Traits]:
    """Return the traits in teaching order."""
    return [strategies.traits_of(name) for name in strategies.registered()]


def as_json() -> list[dict[str, Any]]:
    """Return the traits as plain values."""
    return [dataclasses.asdict(traits) for traits in traits_of_all()]


def print_table() -> None:
    """Print the table: a column per trait where the terminal is wide, a row per trait elsewhere."""
    from rich.console import Console

    console = Console(highlight=False)
    table = _wide if console.width >= WIDE_COLUMNS else _narrow
    console.print(table(console.is_terminal))


def _wide(is_terminal: bool) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if is_terminal else box.ASCII2, show_lines=True)
    table.add_column("strategy", no_wrap=True, style="bold")
    for title in COLUMNS.values():
        table.add_column(title)
    for traits in traits_of_all():
        table.add_row(traits.name, *(getattr(traits, name) for name in COLUMNS))
    return table


def _narrow(is_terminal: bool) -> Any:
    """Return the table with a row per trait: seven columns do not fit into 80 characters."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for number, traits in enumerate(traits_of_all()):
        if number:
            table.add_row()
        first = traits.name
        for name, title in {"summary": "", **COLUMNS}.items():
            table.add_row(first, title, getattr(traits, name))
            first = ""
    return table
