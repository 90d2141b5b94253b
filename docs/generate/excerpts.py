"""Excerpts of the strategies' files, so that the code in a lesson is the code that runs."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTIONS = ("act", "observe", "learn", "sync")


def excerpt(place: str) -> str:
    """Return a function of a strategy, or one section of it, as a block of code.

    Args:
        place: ``sync.wait_for_all`` or, for what stands under a section's comment,
            ``vector.actor_learner.act``.

    Raises:
        KeyError: there is no such function or section.
    """
    module, function, *section = place.split(".")
    path = ROOT / "strategies" / f"{module}.py"
    lines = _function(path.read_text(encoding="utf-8"), function)
    where = f"`{function}`"
    if section:
        lines = _section(lines, section[0], place)
        where += f", under `# {section[0]}`"
    code = textwrap.dedent("\n".join(lines)).rstrip()
    return f"`strategies/{module}.py`, {where}:\n\n```python\n{code}\n```"


def _function(text: str, name: str) -> list[str]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return text.split("\n")[node.lineno - 1 : node.end_lineno]
    raise KeyError(f"there is no function {name}")


def _section(lines: list[str], name: str, place: str) -> list[str]:
    """Return the lines from a section's comment to the next one's, or to where its block ends."""
    starts = [i for i, line in enumerate(lines) if line.strip().split(":")[0] == f"# {name}"]
    if not starts:
        raise KeyError(f"there is no section {place}")
    first = starts[0]
    indent = len(lines[first]) - len(lines[first].lstrip())
    last = first + 1
    while last < len(lines) and not _ends(lines[last], indent):
        last += 1
    return lines[first:last]


def _ends(line: str, indent: int) -> bool:
    text = line.lstrip()
    is_out = bool(text) and len(line) - len(text) < indent
    return is_out or text.removeprefix("# ").split(":")[0] in SECTIONS
