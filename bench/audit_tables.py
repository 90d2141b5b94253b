"""The races of ``bench audit`` as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.write_paths import LOSES_NOTHING, PATHS, num_elements

Result = dict[str, Any]


def print_tables(results: Sequence[Result]) -> None:
    """Print what was lost against workers, width and work, and which whole updates survived."""
    from rich.console import Console

    console = Console(highlight=False)
    base = results[0]  # the races against the number of workers come first, at one width and one work
    fixed = {"hidden_size": base["hidden_size"], "work_milliseconds": base["work_milliseconds"]}
    width, work = (
        f"width {base['hidden_size']}",
        f"{base['work_milliseconds']:g} ms between read and write",
    )
    elements = num_elements(base["hidden_size"])
    console.print("Element writes that are lost, as a share of those issued (0 is exact)\n")
    console.print(f"by workers, {width} ({elements:,} weights), {work}")
    console.print(_table(console, "workers", at(results, **fixed)))
    number = results[-1]["workers"]  # of the races against the other two
    racing = [r for r in at(results, workers=number) if r["path"] not in LOSES_NOTHING]
    for name, title in (
        ("hidden_size", f"by width, {number} workers, {work}"),
        ("work_milliseconds", f"by ms between read and write, {number} workers, {width}"),
    ):
        rest = {key: value for key, value in fixed.items() if key != name}
        selected = at(racing, **rest)
        if len({r[name] for r in selected}) > 1:
            console.print(f"\n{title}")
            console.print(_table(console, name, selected))
    console.print("\nwhole updates under copy-back: whose are left")
    console.print(_survivors(console, at(results, path="copy-back", **fixed)))


def at(results: Sequence[Result], **fixed: Any) -> list[Result]:
    """Return the results with these values."""
    return [r for r in results if all(r[name] == value for name, value in fixed.items())]


def lost(result: Result) -> str:
    """Return the lost share; a bare 0 is exact, and anything unknown is no number."""
    audit = result["audit"]
    if not audit["auditable"]:
        return "not auditable"
    return f"{audit['lost_fraction']:.2g}" if audit["writes_lost"] else "0"


def _table(console: Any, name: str, results: Sequence[Result]) -> Any:
    table = _empty(console)
    table.add_column("")
    values = sorted({r[name] for r in results})
    for value in values:
        table.add_column(f"{value:g}", justify="right")
    for path in PATHS:
        row = {r[name]: lost(r) for r in at(results, path=path)}
        if row:
            table.add_row(path, *(row.get(value, "") for value in values))
    return table


def _survivors(console: Any, results: Sequence[Result]) -> Any:
    table = _empty(console)
    for title in ("workers", "updates", "lost whole, at most"):
        table.add_column(title, justify="right")
    table.add_column("survivors / issued, by worker", overflow="fold")
    for result in results:
        audit = result["audit"]
        if audit["auditable"]:
            pairs = zip(audit["survivors_by_worker"], audit["updates_issued_by_worker"], strict=True)
            table.add_row(
                f"{result['workers']}",
                f"{audit['updates_issued']:,}",
                f"{audit['lost_whole_at_most']:,}",
                ", ".join(f"{left}/{issued}" for left, issued in pairs),
            )
    return table


def _empty(console: Any) -> Any:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2)
