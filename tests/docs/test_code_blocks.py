"""The commands in the pages exist as they are written; those marked so are run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from blocks import LENGTHENED, ROOT, Block, all_blocks, blocks_of, commands_in, fault_of

BLOCKS = all_blocks()
SHELL = [block for block in BLOCKS if block.language == "sh"]
PAGES_TO_RUN = sorted({block.page for block in SHELL if block.is_run})
RUN_SECONDS = 600

PAGE = """
Text with `code`.

<!-- run: --seconds 3 -->
```sh
bench run --strategy apex \\
    --workers 2   # a remark
X=1 bench list && ls | bench evaluate runs/a
```

1. In a list:

    ```sh
    python -m bench.seeds --strategy apex -- --steps 5
    ```

<!-- file: notes/a.txt -->
```text
bench nonsense
```
"""


def test_blocks_and_commands_are_found() -> None:
    found = list(blocks_of(PAGE))
    assert [(b.language, b.mark, b.argument) for b in found] == [
        ("sh", "run", "--seconds 3"),
        ("sh", "", ""),
        ("text", "file", "notes/a.txt"),
    ]
    assert PAGE.split("\n")[found[1].line - 1].strip().startswith("python -m bench.seeds")
    assert list(commands_in(found[0].text)) == [
        ["bench", "run", "--strategy", "apex", "--workers", "2"],
        ["bench", "list"],
        ["bench", "evaluate", "runs/a"],
    ]
    assert [fault_of(words) for words in commands_in(found[1].text)] == [None]


@pytest.mark.parametrize(
    "command, fault",
    [
        ("bench dance", "there is no bench dance"),
        ("bench run --strategy apex --workmen 2", "--workmen"),
        ("bench run --strategy apexx", "unknown strategy"),
        ("bench run --strategy apex --workers many", "not a whole number"),
        ("bench run --strategy apex --workers 0", "at least 1"),
        ("bench run --strategy single --workers 2", "one process"),
        ("bench run --strategy apex --lock", "no use in apex"),
        ("bench run --strategy apex --steps", "--steps"),
        ("bench evaluate", "missing"),
        ("python -m bench.seeds", "missing"),
        ("python -m bench.seeds --strategy apex --seed 3 --nonsense 1", "nonsense"),
        ("python -m bench.nonsense", "No module"),
    ],
)
def test_what_does_not_exist_is_a_fault(command: str, fault: str) -> None:
    (words,) = commands_in(command)
    assert fault in (fault_of(words) or "no fault")


@pytest.mark.parametrize("page", sorted({block.page for block in SHELL}))
def test_the_commands_of_a_page_exist(page: str) -> None:
    mine = [block for block in SHELL if block.page == page]
    faults = [
        f"{page}:{block.line}: {fault}"
        for block in mine
        for words in commands_in(block.text)
        if (fault := fault_of(words))
    ]
    assert faults == [] and len(mine) >= 1


def test_the_pages_have_commands() -> None:
    found = [words for block in SHELL for words in commands_in(block.text)]
    assert len(found) > 30
    assert {"run", "list", "evaluate"} <= {words[1] for words in found if words[0] == "bench"}


@pytest.mark.parametrize("language", ["python", "toml", "json"])
def test_other_blocks_can_be_read(language: str) -> None:
    readers = {"python": lambda text: compile(text, "block", "exec"), "toml": tomllib.loads}
    for block in (each for each in BLOCKS if each.language == language):
        assert readers.get(language, json.loads)(block.text) is not None, block
    with pytest.raises(ValueError if language != "python" else SyntaxError):
        readers.get(language, json.loads)("= {")


def shim(folder: Path) -> Path:
    """Make a folder with ``bench`` and ``python`` in it: this checkout under this interpreter."""
    folder.mkdir()
    for name, arguments in {
        "bench": '-m bench "$@"',
        "python": '"$@"',
        "pytest": '-m pytest "$@"',
    }.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}\n')
        path.chmod(0o755)
    return folder


def lengthened(block: Block) -> str:
    """Return a block with what its mark adds put behind every command that trains."""
    commands = "|".join(map(re.escape, LENGTHENED))
    text = block.text.replace("\\\n", " ")
    pattern = rf"^((?:{commands})\b[^#\n&|;]*)"
    return re.sub(pattern, rf"\1 {block.argument} ", text, flags=re.MULTILINE)


def test_a_mark_adds_to_the_commands_that_train() -> None:
    block = next(blocks_of(PAGE))
    lines = [line.split() for line in lengthened(block).split("\n")]
    assert lines[0][:7] == ["bench", "run", "--strategy", "apex", "--workers", "2", "--seconds"]
    assert lines[1] == block.text.split("\n")[-1].split()


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(2 * RUN_SECONDS)
@pytest.mark.parametrize("page", PAGES_TO_RUN)
def test_marked_blocks_run(page: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(shim(tmp_path / "bin")), os.environ["PATH"]])
    place = tmp_path / "work"
    place.mkdir()
    ran = 0
    for block in [each for each in BLOCKS if each.page == page]:
        if block.mark == "file":
            (place / block.argument).write_text(f"{block.text}\n")
        elif block.mark == "run":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", lengthened(block)],
                cwd=place,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS,
            )
            assert done.returncode == 0, f"{page}:{block.line}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 1
