"""The lessons of the tutorial: what in a page is run, and what is filled in from what came of it.

Comments in a page say what is what; everything around them is kept by hand:

    <!-- run: --seconds 1 -->            before a block ``sh``: a step. What follows the colon is added
                                         by the tests, which have less time, and not here.
    <!-- file: slow.py -->               before a block: it is written into that file first.
    <!-- output: speed, 5 -->            before a block ``text``: what the last step printed. All of it,
                                         or only the lines that begin so and the answers of these
                                         numbers, or ``from A to B``: from the line that begins with A
                                         to before the one that begins with B.
    <!-- value: EXPRESSION | FORMAT -->  around a number in the text, to ``<!-- end -->``.
    <!-- holds: EXPRESSION -->           what the text claims. If it does not hold, the refresh says so.
    <!-- figure: PATH -->               before an image: the file that is copied there.
    <!-- machine -->, <!-- took -->      around where it was measured and how long the commands took.

In an expression the name of a run's folder is its ``summary.json`` (of an audit's, a comparison's or a
sweep's folder its data), with a point for every level: ``sync.updates_per_second``.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LESSONS = Path(__file__).parents[1] / "tutorial"
DATA = ("summary.json", "audit.json", "table.json", "replay-ratio.json")
# What an expression may use besides the runs.
HELPERS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (abs, all, any, len, max, min, round, sum)
}

BLOCK = re.compile(
    r"^(?P<indent>[ ]*)<!-- (?P<mark>run|file|output)(?:: (?P<argument>[^\n]*?))? -->\n"
    r"(?P<open>[ ]*```\w+\n)(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
VALUE = re.compile(r"(<!-- value: (?P<expression>.+?) \| (?P<form>\S+) -->)(?P<text>.*?)(<!-- end -->)")
HOLDS = re.compile(r"<!-- holds: (?P<expression>.+?) -->")
FIGURE = re.compile(r"<!-- figure: (?P<path>\S+) -->\n[ ]*!\[[^\]]*\]\((?P<target>[^)\s]+)\)")
NOTE = re.compile(r"(<!-- (?P<name>machine|took) -->)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
HEADLINE = re.compile(r"^[\w-]+ on \S+, seed ")
ANSWER = re.compile(r"^  (\d)\. ")
LEFT_OUT = "  ..."


class Fields:
    """An object of JSON whose fields are attributes. No ``dict``: ``update`` is one of our fields."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"there is no field {name}") from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]


@dataclass(frozen=True)
class Step:
    """A block that is run, or written into a file.

    Attributes:
        text: without the indentation that a list gives it.
        file: to write it into; None for commands.
        position: of the block in the page.
    """

    text: str
    file: str | None
    position: int


def lesson_paths() -> list[Path]:
    """Return the lessons' pages in order."""
    return sorted(LESSONS.glob("[0-9]*.md"), key=number_of)


def number_of(path: Path) -> int:
    """Return which lesson a page is."""
    return int(path.name.split("-")[0])


def steps(page: str) -> list[Step]:
    """Return what is done in a page, in order."""
    return [
        Step(
            _without_indent(match),
            match["argument"] if match["mark"] == "file" else None,
            match.start(),
        )
        for match in BLOCK.finditer(page)
        if match["mark"] != "output"
    ]


def _without_indent(match: re.Match[str]) -> str:
    lines = match["text"].rstrip("\n").split("\n")
    return "\n".join(line.removeprefix(match["indent"]) for line in lines)


def with_outputs(page: str, outputs: Mapping[int, str]) -> str:
    """Return a page with its output blocks filled.

    Args:
        page: the page.
        outputs: what each step printed, by its position in the page.

    Raises:
        ValueError: a block asks for lines that were not printed.
    """

    def fill(match: re.Match[str]) -> str:
        if match["mark"] != "output":
            return match[0]
        last = max(position for position in outputs if position < match.start())
        chosen = selected(outputs[last], match["argument"] or "")
        indent = match["indent"]
        text = "".join(f"{indent}{line}".rstrip() + "\n" for line in chosen)
        head = match[0][: match.start("text") - match.start()]
        return f"{head}{text}{indent}```"

    return BLOCK.sub(fill, page)


def selected(output: str, choice: str) -> list[str]:
    """Return the chosen lines of what a step printed, with ``...`` where something was left out.

    Raises:
        ValueError: there is no such line.
    """
    lines = [line.rstrip() for line in output.strip("\n").split("\n")]
    if choice.startswith("from "):
        first, _, end = choice.removeprefix("from ").partition(" to ")
        start = _line_with(lines, first, 0)
        stop = _line_with(lines, end, start + 1) if end else len(lines)
        return "\n".join(lines[start:stop]).strip("\n").split("\n")
    if not choice:
        return lines
    wanted = [each.strip() for each in choice.split(",")]
    kept = [_is_wanted(line, answer, wanted) for line, answer in _with_answers(lines)]
    missing = [each for each in wanted if not any(_begins(line, each) for line in lines)]
    if missing:
        raise ValueError(f"nothing was printed that begins with {missing[0]!r}")
    return list(_with_gaps(lines, kept))


def _line_with(lines: Sequence[str], start: str, after: int) -> int:
    for i in range(after, len(lines)):
        if lines[i].lstrip().startswith(start):
            return i
    raise ValueError(f"nothing was printed that begins with {start!r}")


def _begins(line: str, start: str) -> bool:
    return line.startswith(f"  {start}. ") if start.isdecimal() else line.lstrip().startswith(start)


def _with_answers(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each line with the number of the answer that it is part of, if it is part of one."""
    answer = ""
    for line in lines:
        match = ANSWER.match(line)
        answer = match[1] if match else answer if line.startswith("     ") else ""
        yield line, answer


def _is_wanted(line: str, answer: str, wanted: Sequence[str]) -> bool:
    if answer:
        return answer in wanted
    return bool(HEADLINE.match(line)) or any(_begins(line, each) for each in wanted)


def _with_gaps(lines: Sequence[str], kept: Sequence[bool]) -> Iterator[str]:
    was_kept = True
    for line, keep in zip(lines, kept, strict=True):
        if keep:
            yield line
        elif was_kept and line:
            yield LEFT_OUT
        was_kept = keep or (was_kept and not line)


def load_data(folder: Path) -> dict[str, Any]:
    """Return what the runs below a folder left, by the folders' names as they stand in expressions."""
    found: dict[str, Any] = {}
    for name in DATA:
        for path in sorted(folder.rglob(name)):
            text = path.read_text(encoding="utf-8")
            found.setdefault(name_of(path.parent.name), json.loads(text, object_hook=Fields))
    return found


def name_of(folder: str) -> str:
    """Return the name in expressions of a folder."""
    return folder.replace("-", "_")


def evaluate(expression: str, data: Mapping[str, Any]) -> Any:
    """Return the value of an expression of a page of ours.

    Raises:
        ValueError: it cannot be computed from what there is.
    """
    try:
        return eval(expression, {"__builtins__": {}, **HELPERS, **data})
    except Exception as error:
        raise ValueError(f"{expression}: {type(error).__name__}: {error}") from None


def number(expression: str, form: str, data: Mapping[str, Any]) -> str:
    """Return the value of an expression as a page writes it.

    Raises:
        ValueError: it cannot be computed, or is nothing that can be written so.
    """
    value = evaluate(expression, data)
    try:
        return format(value, form)
    except (TypeError, ValueError):
        raise ValueError(f"{expression} is {value!r}, which {form!r} cannot write") from None


def with_values(page: str, data: Mapping[str, Any]) -> str:
    """Return a page with the numbers in its text as they are in the runs; what fails stays as it is."""

    def fill(match: re.Match[str]) -> str:
        text = match["text"]
        with contextlib.suppress(ValueError):
            text = number(match["expression"], match["form"], data)
        return f"{match[1]}{text}{match[5]}"

    return VALUE.sub(fill, page)


def faults(page: str, data: Mapping[str, Any]) -> list[str]:
    """Return what a page claims and the runs do not show, and what cannot be computed from them."""
    found = []
    for match in VALUE.finditer(page):
        try:
            number(match["expression"], match["form"], data)
        except ValueError as error:
            found.append(f"cannot be computed: {error}")
    for claim in claims(page):
        try:
            if not evaluate(claim, data):
                found.append(f"does not hold: {claim}")
        except ValueError as error:
            found.append(f"cannot be computed: {error}")
    return found


def claims(page: str) -> list[str]:
    """Return the expressions that a page says hold."""
    return [match["expression"] for match in HOLDS.finditer(page)]


def expressions(page: str) -> list[str]:
    """Return every expression of a page."""
    return [match["expression"] for match in VALUE.finditer(page)] + claims(page)


def names_in(expression: str) -> set[str]:
    """Return the runs that an expression speaks of."""
    tree = ast.parse(expression, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    local = {
        node.id
        for each in ast.walk(tree)
        if isinstance(each, ast.comprehension)
        for node in ast.walk(each.target)
        if isinstance(node, ast.Name)
    }
    return names - local - set(HELPERS)


def figures(page: str) -> list[tuple[str, str]]:
    """Return (file that a step makes, where the page shows it from) of each figure."""
    return [(match["path"], match["target"]) for match in FIGURE.finditer(page)]


def with_notes(page: str, notes: Mapping[str, str]) -> str:
    """Return a page with its notes on the machine and the time replaced."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}{notes.get(match['name'], match['text'])}{match[4]}"

    return NOTE.sub(fill, page)


def note(page: str, name: str) -> str:
    """Return a note of a page; empty if it has none."""
    return next((match["text"] for match in NOTE.finditer(page) if match["name"] == name), "")


def contents() -> str:
    """Return the table of the lessons, for the tutorial's first page."""
    from docs.generate.markdown import table

    rows = []
    for path in lesson_paths():
        page = path.read_text(encoding="utf-8")
        title = TITLE.search(page)
        assert title is not None, path
        rows.append((f"[{title[1]}]({path.name})", note(page, "took")))
    return table(("lesson", "its commands take"), rows)
