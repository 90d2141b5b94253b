"""Finds the blocks of code in the pages, and judges the commands in them without starting any.

A shell block is run by a slow test if the line before it is ``<!-- run -->``. With
``<!-- run: --seconds 3 -->`` that is added to every command in it that trains. A block of any language
after ``<!-- file: NAME -->`` is written into that file first.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.cli import cli
from bench.options import config_options, make_config
from common.config import ConfigError
from docs.generate.cli import commands, measurements

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<mark>run|file)(?:: (?P<argument>[^\n]*))? -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
HERE_DOCUMENT = re.compile(r"<<'(\w+)'\n.*?^\s*\1$", re.DOTALL | re.MULTILINE)
SEPARATORS = {"&&", "||", "|", ";", "&"}
# What the argument of a mark is added to.
LENGTHENED = (
    *(f"bench {name}" for name in ("run", "compare", "profile", "sweep", "audit")),
    "python -m bench.replay_ratio",
)


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        page: where it stands, below the root.
        line: of its first line.
        language: as marked.
        text: without the indentation that a list gives it.
        mark: ``run`` or ``file``, if it has one.
        argument: of the mark: what is added to commands that train, or the file's name.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    argument: str = ""

    @property
    def is_run(self) -> bool:
        """Whether a test runs it."""
        return self.mark == "run"


def blocks_of(text: str, page: str = "page") -> Iterator[Block]:
    """Yield the blocks of a page."""
    for match in BLOCK.finditer(text):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["text"].split("\n")]
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("text")) + 1,
            language=match["language"],
            text="\n".join(lines).strip("\n"),
            mark=match["mark"] or "",
            argument=match["argument"] or "",
        )


def all_blocks() -> list[Block]:
    """Return the blocks of all pages."""
    pages = ((path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in PAGES)
    return [block for page, text in pages for block in blocks_of(text, page)]


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words of every command of a shell block that is one of ours."""
    text = HERE_DOCUMENT.sub("", text)
    for line in text.replace("\\\n", " ").split("\n"):
        words = shlex.split(line, comments=True)
        command: list[str] = []
        for word in [*words, ";"]:
            if word not in SEPARATORS:
                command.append(word)
                continue
            if _is_ours(command):
                yield command
            command = []


def _is_ours(words: list[str]) -> bool:
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        del words[0]
    return words[:1] == ["bench"] or (
        words[:2] == ["python", "-m"] and words[2:3] and words[2].split(".")[0] in ("bench", "docs")
    )


def fault_of(words: list[str]) -> str | None:
    """Return what is wrong with a command, if anything is: no such command, option or value."""
    try:
        if words[0] == "bench":
            return _fault_of_bench(words[1:])
        name = " ".join(words[:3])
        known = measurements()
        if name not in known:
            importlib.import_module(words[2])  # a module without a command line of its own
            return None if name == "python -m bench" else f"{name} cannot be run"
        _parse(known[name], name, words[3:])
    except (click.UsageError, ConfigError, ImportError) as error:
        return f"{' '.join(words)}: {error}"
    return None


def _fault_of_bench(words: list[str]) -> str | None:
    if words[:1] in ([], ["--help"], ["-h"]):
        return None
    command = commands().get(f"bench {words[0]}")
    if command is None:
        return f"there is no bench {words[0]}"
    if {"--help", "-h"} & set(words):
        return None
    given = _parse(command, f"bench {words[0]}", words[1:])
    if words[0] == "run" and "strategy" in given:
        strategy = given["strategy"]
        choices = {o.name: given[o.name] for o in config_options() if o.name in given}
        make_config("single" if strategy == "yours" else strategy, choices)
    return None


def _parse(command: click.Command, name: str, words: list[str]) -> dict[str, Any]:
    """Return the options that are given, each converted as the command would.

    Raises:
        click.UsageError: there is no such option, or an argument or a value is missing or wrong.
    """
    context = click.Context(command, info_name=name, parent=click.Context(cli))
    given, _, _ = command.make_parser(context).parse_args(list(words))
    found: dict[str, Any] = {}
    for item in command.get_params(context):
        value = given.get(item.name or "")
        is_given = value is not None and getattr(value, "name", "") != "UNSET"
        if not is_given and item.required:
            raise click.UsageError(f"{item.human_readable_name} is missing")
        if is_given:
            found[item.name or ""] = item.type_cast_value(context, value)
    return found
