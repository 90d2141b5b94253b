"""The programs of docs/how-to/audit-your-own-loop.md run, and four lines are all that is added."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.audit import REPORT_FIELDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "audit-your-own-loop.md"
SECONDS = 90
UPDATES = 2 * 500
WEIGHTS = 4 * 64 + 64 + 64 + 1


def blocks() -> list[str]:
    found: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


def instead(program: str, variant: str) -> str:
    """Put the functions and assignments of a variant in the place of those of the same name."""
    for statement in ast.parse(variant).body:
        text = ast.get_source_segment(variant, statement)
        assert text is not None
        name = name_of(statement)
        old = [node for node in ast.walk(ast.parse(program)) if name_of(node) == name]
        lines = program.split("\n")
        if not old:  # something new goes before the processes are made
            (place,) = (i for i, line in enumerate(lines) if line.startswith("    workers ="))
            lines.insert(place, " " * 4 + text)
        else:
            first, last = old[-1].lineno - 1, old[-1].end_lineno  # type: ignore[attr-defined]
            indent = " " * (len(lines[first]) - len(lines[first].lstrip()))
            lines[first:last] = [indent + line for line in text.split("\n")]
        program = "\n".join(lines)
    return program


def name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.FunctionDef):
        return node.name
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def run(program: str, folder: Path) -> list[str]:
    """Run a program as its reader would, and return the lines that it printed."""
    path = folder / "own_loop.py"  # spawn imports the file in every child
    path.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip().split("\n")


def run_audited(program: str, folder: Path) -> dict[str, Any]:
    printed, loss = run(program, folder)
    assert 0 < float(loss.removeprefix("loss ")) < 0.4, "the trained weights are in the parent's model"
    report: dict[str, Any] = ast.literal_eval(printed)
    assert report["auditable"] and report["updates_issued_by_worker"] == [500, 500]
    assert report["writes_issued"] == UPDATES * WEIGHTS and report["elements"] == WEIGHTS
    return report


def test_four_lines_and_an_argument_are_all_that_is_added() -> None:
    before, after = blocks()[:2]
    old, new = before.split("\n")[1:], after.split("\n")[1:]
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    added = [line for kind, _, _, a, b in changes if kind == "insert" for line in new[a:b] if line]
    assert [line[-3:] for line in added] == ["# 1", "# 2", "# 3", "# 4"] and len(added) <= 5
    changed = [
        (old[i], new[j])
        for kind, a, b, c, d in changes
        if kind == "replace"
        for i, j in zip(range(a, b), range(c, d), strict=True)
    ]
    assert changed and all(there == here.replace(", audit)", ")") for there, here in changed)
    assert not any(kind == "delete" for kind, *_ in changes)


def test_the_page_explains_every_field() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert explained == set(REPORT_FIELDS) and len(blocks()) == 4


@pytest.mark.multiprocess
def test_the_audited_program_says_what_was_lost(tmp_path: Path) -> None:
    report = run_audited(blocks()[1], tmp_path)
    assert 0 <= report["writes_lost"] < 0.2 * report["writes_issued"]
    assert report["damaged_updates_at_least"] == report["worst_element_lost"] <= UPDATES


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_program_runs_without_the_audit_too(tmp_path: Path) -> None:
    (loss,) = run(blocks()[0], tmp_path)
    assert 0 < float(loss.removeprefix("loss ")) < 0.4
    assert "audit" not in blocks()[0]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_copying_back_undoes_whole_updates(tmp_path: Path) -> None:
    report = run_audited(instead(blocks()[1], blocks()[2]), tmp_path)
    assert report["lost_whole_at_most"] > 0
    assert sum(report["survivors_by_worker"]) < UPDATES


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("write", ["in-place", "copy-back"])
def test_under_the_lock_nothing_is_lost(tmp_path: Path, write: str) -> None:
    program = instead(blocks()[1], blocks()[3])
    if write == "copy-back":
        program = instead(program, blocks()[2])
    assert (program.count("copy-back") > 0) == (write == "copy-back") and "with lock:" in program
    report = run_audited(program, tmp_path)
    assert report["writes_lost"] == 0 and report["survivors_by_worker"] == [500, 500]
