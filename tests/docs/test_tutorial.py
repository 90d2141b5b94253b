"""The lessons: what they run exists, what they quote is there, and their code is that of the files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from blocks import ROOT, blocks_of
from click.testing import CliRunner

from bench.summary_fields import FIELDS
from docs.generate import lesson, tutorial
from docs.generate.excerpts import excerpt
from docs.generate.pages import PART

PATHS = lesson.lesson_paths()
EACH = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
OUTPUT = re.compile(r"--output (runs/\S+)")
# From a name to the field, as far as it is spelled out: single.time.roles.actor.update
PATH_IN_EXPRESSION = re.compile(r"(?<![\w.\]\"'])([a-z]\w*)((?:\.\w+)+)(\(?)")

PAGE = """
# 3. Try

- **Commands:** <!-- took -->for ever<!-- end -->.

<!-- run: --seconds 1 -->
```sh
mkdir -p runs/3/a-run
cp s.json runs/3/a-run/summary.json
printf '  speed   9\\n\\n  other   8\\n\\n  1. Are?\\n     No.\\n  2. Old?\\n     Yes.\\n'
```

<!-- output: speed, 2 -->
```text
old
```

??? success "Answer"

    <!-- run -->
    ```sh
    cat s.json
    ```

    <!-- output -->
    ```text
    ```

    It is <!-- value: a_run.updates / 2 | .1f -->1.0<!-- end -->,
    not <!-- value: a_run.nothing | .1f -->7<!-- end -->.

<!-- holds: a_run.updates > 3 -->
<!-- holds: a_run.updates > 5 -->
"""


@EACH
def test_every_block_of_a_lesson_is_run(path: Path) -> None:
    page = PART.sub("", path.read_text(encoding="utf-8"))
    blocks = list(blocks_of(page))
    assert [b for b in blocks if b.language == "sh" and not b.is_run] == []
    assert [b for b in blocks if b.language == "python" and b.mark != "file"] == []
    assert len([b for b in blocks if b.is_run]) >= 2
    fenced = len(re.findall(r"^\s*```\w+$", page, re.MULTILINE))
    assert fenced == len(blocks), "a block that the tests do not see"


@EACH
def test_a_lesson_has_what_every_lesson_has(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    number = lesson.number_of(path)
    assert page.startswith(f"# {number}. ")
    for part in ("**You will see**", "**Commands:**", "**Measured on**", "## Exercises"):
        assert part in page
    learned = page.split("## What we learned\n\n")[1].split("\n\n")[0]
    assert len(re.findall(r"^- ", learned, re.MULTILINE)) == 3
    assert page.count('??? success "Answer"') == len(re.findall(r"^\*\*\d\. ", page, re.MULTILINE)) >= 2
    following = [each.name for each in PATHS if lesson.number_of(each) == number + 1]
    assert all(f"]({name})" in page for name in following)


@EACH
def test_a_lesson_writes_into_its_own_folder_and_never_twice_into_one(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    folders = [each for step in lesson.steps(page) for each in OUTPUT.findall(step.text)]
    assert len(set(folders)) == len(folders) >= 1
    assert all(each.startswith(f"runs/{lesson.number_of(path)}/") for each in folders)
    read = set(re.findall(r"runs/\d/[\w-]+", page))
    assert read <= set(folders)


@EACH
def test_numbers_and_claims_are_of_runs_and_fields_that_there_are(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    made = {lesson.name_of(each.split("/")[-1]) for each in OUTPUT.findall(page)}
    expressions = lesson.expressions(page)
    for expression in expressions:
        assert lesson.names_in(expression) <= made, expression
    runs = runs_in(page)
    faults = [name for each in expressions for name in unknown_fields(each, runs)]
    assert faults == [] and len(expressions) >= 3
    assert page.count("<!-- value") + page.count("<!-- holds") == len(expressions), "one is misspelt"


def runs_in(page: str) -> set[str]:
    """Return the names of the folders that ``bench run`` writes, in a page."""
    commands = [line for s in lesson.steps(page) for line in s.text.replace("\\\n", " ").split("\n")]
    found = [OUTPUT.search(line) for line in commands if line.startswith("bench run")]
    return {lesson.name_of(match[1].split("/")[-1]) for match in found if match}


def unknown_fields(expression: str, runs: set[str]) -> list[str]:
    """Return what an expression reads of a summary that no summary has."""
    found = []
    for name, path, is_call in PATH_IN_EXPRESSION.findall(expression):
        field = path[1:].rpartition(".")[0] if is_call else path[1:]
        known = any(re.match(_pattern(field), each) for each in FIELDS)
        if name in runs and field and not known and not _by_key(field):
            found.append(f"{name}.{field}")
    return found


def _pattern(field: str) -> str:
    return rf"{re.escape(field)}(\.|\[|$)"


def _by_key(field: str) -> bool:
    """Return whether a field is one of those named by a role, an activity or an option."""
    parts = field.split(".")
    starred = [each.split(".") for each in FIELDS if "*" in each]
    return any(
        len(parts) <= len(each) and all(b in (a, "*") for a, b in zip(parts, each, strict=False))
        for each in starred
    )


def test_a_field_that_does_not_exist_is_noticed() -> None:
    assert unknown_fields("a.updates_per_second > b.audit.lost_fraction", {"a", "b"}) == []
    assert unknown_fields("a.time.roles.actor.update", {"a"}) == []
    assert unknown_fields("a.updates_per_minute", {"a"}) == ["a.updates_per_minute"]
    assert unknown_fields("a.audit.found", {"a"}) == ["a.audit.found"]
    assert unknown_fields("table.anything.else", {"a"}) == []
    assert lesson.names_in("max(a.x, b.y) > sum(each.z for each in c)") == {"a", "b", "c"}


def test_a_refreshed_page_says_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "3-try.md"
    path.write_text(PAGE)
    work = tmp_path / "work"
    work.mkdir()
    (work / "s.json").write_text('{"updates": 5}\n')
    broken = tutorial.refresh(path, work, "a machine")
    page = path.read_text()
    assert broken == [
        "cannot be computed: a_run.nothing: AttributeError: there is no field nothing",
        "does not hold: a_run.updates > 5",
    ]
    assert "```text\n  speed   9\n  ...\n  2. Old?\n     Yes.\n```\n" in page
    assert '    ```text\n    {"updates": 5}\n    ```\n' in page
    assert "It is <!-- value: a_run.updates / 2 | .1f -->2.5<!-- end -->," in page
    assert "not <!-- value: a_run.nothing | .1f -->7<!-- end -->." in page
    assert "<!-- took -->about 10 seconds<!-- end -->" in page


def test_a_step_that_fails_ends_the_refresh_and_leaves_the_page(tmp_path: Path) -> None:
    path = tmp_path / "3-try.md"
    path.write_text(PAGE)
    with pytest.raises(click.ClickException, match=r"s\.json"):
        tutorial.refresh(path, tmp_path, "a machine")
    assert path.read_text() == PAGE


@pytest.mark.parametrize(
    "choice, expected",
    [
        ("", ["title", "", "  a 1", "  1. Q", "     A"]),
        ("1", ["  ...", "  1. Q", "     A"]),
        ("title, a", ["title", "  a 1", "  ..."]),
        ("from a to 1.", ["  a 1"]),
        ("from 1.", ["  1. Q", "     A"]),
    ],
)
def test_lines_are_chosen(choice: str, expected: list[str]) -> None:
    assert lesson.selected("title\n\n  a 1\n  1. Q\n     A\n", choice) == expected


@pytest.mark.parametrize("choice", ["b", "from b", "from a to b", "2"])
def test_lines_that_were_not_printed_are_a_fault(choice: str) -> None:
    with pytest.raises(ValueError, match="nothing was printed"):
        lesson.selected("title\n  a 1\n  1. Q\n     A\n", choice)


def test_values_are_read_from_what_the_runs_left(tmp_path: Path) -> None:
    (tmp_path / "two-workers").mkdir()
    summary = {"audit": {"lost_fraction": 0.5}, "workers": [{"updates": 3}], "time": {"update": 0.6}}
    (tmp_path / "two-workers" / "summary.json").write_text(json.dumps(summary))
    data = lesson.load_data(tmp_path)
    assert lesson.evaluate("two_workers.audit.lost_fraction * 2", data) == 1.0
    assert lesson.evaluate("sum(each.updates for each in two_workers.workers)", data) == 3
    # ``update`` and ``items`` are methods of a dict, and ``update`` is a field of ours.
    assert lesson.number("two_workers.time.update", ".0%", data) == "60%"
    with pytest.raises(ValueError, match="there is no field items"):
        lesson.evaluate("two_workers.items", data)
    with pytest.raises(ValueError, match="cannot write"):
        lesson.number("two_workers.workers", ".0%", data)
    with pytest.raises(ValueError, match="there is no field lost"):
        lesson.evaluate("two_workers.audit.lost", data)
    with pytest.raises(ValueError, match="three"):
        lesson.evaluate("three.updates", data)


def test_an_excerpt_is_what_stands_in_the_file() -> None:
    text = (ROOT / "strategies" / "sync.py").read_text(encoding="utf-8")
    block = excerpt("sync.wait_for_all")
    code = block.split("```python\n")[1].removesuffix("\n```")
    assert code in text and code.startswith("def wait_for_all(")
    section = excerpt("vector.actor_learner.act").split("```python\n")[1]
    assert section.startswith("# act\n") and "network.q_values" in section
    assert "# observe" not in section
    with pytest.raises(KeyError, match="nothing"):
        excerpt("sync.nothing")
    with pytest.raises(KeyError, match="section"):
        excerpt("sync.wait_for_all.act")


def test_an_unknown_lesson_is_refused_before_anything_runs() -> None:
    result = CliRunner().invoke(tutorial.main, ["99"])
    assert result.exit_code == 2 and "there is no lesson 99" in result.output
    assert [lesson.number_of(path) for path in tutorial.chosen([])] == list(range(1, 9))


def test_times_are_said_in_words() -> None:
    assert tutorial.duration(41.2) == "about 50 seconds"
    assert tutorial.duration(91) == "about 2 minutes"


@EACH
def test_no_line_begins_with_a_number_of_a_run(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    # A comment at the beginning of a line would end the paragraph.
    assert re.findall(r"^\s*<!-- (?:value|machine|took).*", page, re.MULTILINE) == []
    assert "<!-- value" in page
