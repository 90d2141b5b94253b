"""The generated parts of a strategy's page, from its file; the rest of the page is kept by hand."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
from collections.abc import Mapping
from pathlib import Path

import strategies
from common.config import Config
from docs.generate.choices import configs, field_of, has_use
from docs.generate.config import environments
from docs.generate.markdown import code, shown, table
from docs.generate.traits import meanings, trait_names

ROOT = Path(__file__).parents[2]
HEADER_FIELDS = ("Processes", "Weights", "Experience", "Correction", "Can go wrong")
CONTEXT_LINES = 2

SKELETON = """\
# {name}

<!-- generated: strategy-idea {name} -->
<!-- end of generated -->

## The step from its parent

<!-- generated: strategy-diff {name} -->
<!-- end of generated -->

## Choices

<!-- generated: strategy-choices {name} -->
<!-- end of generated -->

## Traits

<!-- generated: strategy-traits {name} -->
<!-- end of generated -->

## What to look at

Not written yet: which fields of the summary show what is special here.

## Departures from the paper

Not written yet: numbered, each with what the paper does.

## Measured results

<!-- generated: strategy-results {name} -->
<!-- end of generated -->
"""


def source(name: str) -> str:
    """Return the text of a strategy's file."""
    return (ROOT / "strategies" / f"{name}.py").read_text(encoding="utf-8")


def idea(name: str) -> str:
    """Return the header of the file: the sentence, the diagram, the fields, the paper."""
    header = ast.get_docstring(ast.parse(source(name))) or ""
    first, _, rest = header.partition("\n")
    starts = re.search(rf"^{HEADER_FIELDS[0]}:", rest, re.MULTILINE)
    assert starts is not None, f"strategies/{name}.py has no header fields"
    diagram = rest[: starts.start()].strip("\n")
    fields = _fields(rest[starts.start() :])
    lines = "\n".join(f"- **{title}:** {text}" for title, text in fields.items())
    return f"{first}\n\n```text\n{_dedented(diagram)}\n```\n\n{lines}\n\nFile: `strategies/{name}.py`."


def _fields(text: str) -> dict[str, str]:
    """Return the header's fields by title, each on one line."""
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n(?=[A-Z][\w ]*:\s)|\n\s*\n", text):
        match = re.match(r"([A-Z][\w ]*):\s+(.*)", paragraph, re.DOTALL)
        if match:
            found[match[1]] = " ".join(match[2].split())
        elif paragraph.strip():
            found["Note"] = " ".join([found.get("Note", ""), *paragraph.split()]).strip()
    return found


def _dedented(diagram: str) -> str:
    return "\n".join(line[4:].rstrip() for line in diagram.split("\n"))


def difference(name: str) -> str:
    """Return the diff of the file to its parent's, headers and traits left out."""
    parent = strategies.traits_of(name).parent
    if parent is None:
        return "It has no parent: it is the baseline that the others start from."
    removed, added, lines = diff(body(parent), body(name))
    counts = f"{removed} lines of `strategies/{parent}.py` go and {added} come"
    link = f"[`{parent}`]({parent}.md)"
    return (
        f"Its parent is {link}. {counts}, header and traits left out: they are above and below.\n\n"
        '<details markdown="1">\n<summary>The diff</summary>\n\n'
        f"```diff\n{lines}\n```\n\n</details>"
    )


def body(name: str) -> str:
    """Return a strategy's file without its header and its ``TRAITS``."""
    text = source(name)
    lines = text.split("\n")
    for node in reversed(ast.parse(text).body):
        is_header = isinstance(node, ast.Expr) and node.lineno == 1
        is_traits = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TRAITS"
        if is_header or is_traits:
            assert node.end_lineno is not None
            del lines[node.lineno - 1 : node.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip("\n")


def diff(old: str, new: str) -> tuple[int, int, str]:
    """Return the number of lines removed and added, and the diff with a little context."""
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), n=CONTEXT_LINES, lineterm=""))[
        2:
    ]
    removed = sum(line.startswith("-") for line in lines)
    added = sum(line.startswith("+") for line in lines)
    shown_lines = ["@@" if line.startswith("@@") else line.rstrip() for line in lines]
    return removed, added, "\n".join(shown_lines)


def choices_of(name: str) -> str:
    """Return the values in which the strategy differs from the common defaults, by environment."""
    config = configs()[name]
    resolved = {env_id: config.for_env(env_id) for env_id in environments()}
    rows = []
    for field in (item.name for item in dataclasses.fields(config)):
        values = {env_id: getattr(each, field) for env_id, each in resolved.items()}
        common = getattr(Config, field, None)
        if field != "env_id" and has_use(field, name) and set(values.values()) != {common}:
            text = field_of(config, field).metadata["help"]
            rows.append((code(field), _by_env(values), text))
    return (
        "What is used where nothing is chosen, and differs from the common default "
        "([all choices](../config.md)):\n\n" + table(("field", "value", "what it does"), rows)
    )


def _by_env(values: Mapping[str, object]) -> str:
    """Return the value, or the values with the environments that they are for."""
    envs: dict[str, list[str]] = {}
    for env_id, value in values.items():
        envs.setdefault(code(value), []).append(env_id)
    if len(envs) == 1:
        return next(iter(envs))
    return "; ".join(f"{value} {', '.join(names)}" for value, names in envs.items())


def traits_of(name: str) -> str:
    """Return the strategy's traits as a table; `traits.md` has those of all side by side."""
    traits = strategies.traits_of(name)
    rows = [(code(each), _value(getattr(traits, each)), meanings()[each]) for each in trait_names()]
    return table(("trait", "here", "what it says"), rows)


def _value(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else shown(value)
