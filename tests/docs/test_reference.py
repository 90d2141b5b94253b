"""The reference says what there is: no more, no less, and nothing that is not so any more."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import strategies
from docs.generate import check
from docs.generate.__main__ import main as generate
from docs.generate.cli import commands, measurements, render
from docs.generate.pages import DOCS, PART, PARTS, filled, missing_pages, part_names, stale

ROOT = DOCS.parent
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
# Options of other programs that the pages name.
OTHER_PROGRAMS = re.compile(r"--(benchmark-[a-z-]+|strict|group-by|csv|sort|columns|histogram|forest)$")


def test_the_pages_are_what_the_code_makes_of_them_now() -> None:
    assert [path.name for path in stale()] == [], "run python -m docs.generate"
    assert missing_pages() == {}
    assert CliRunner().invoke(generate, ["--check"]).exit_code == 0
    used = [name for path in PAGES for name in part_names(path.read_text())]
    assert {name.split()[0] for name in used} == set(PARTS)
    assert len(used) == len(set(used))


def test_a_page_that_was_edited_by_hand_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(check.page("traits"))
    (tmp_path / "b.md").write_text(check.page("traits").replace("Mnih et al. 2016", "Nobody 2016"))
    assert [path.name for path in stale(tmp_path, tmp_path / "a.md")] == ["b.md"]
    assert stale(tmp_path, tmp_path / "b.md")[tmp_path / "b.md"] == check.page("traits")


def test_a_changed_page_is_made_again() -> None:
    text = check.page("traits")
    assert filled(text) == text and PART.search(text) is not None
    assert filled(text.replace("Mnih et al. 2016", "Nobody 2016")) == text
    with pytest.raises(KeyError, match="nothing-makes-this"):
        filled("<!-- generated: nothing-makes-this -->\n<!-- end of generated -->")


def test_every_command_and_option_is_documented_and_exists() -> None:
    text = check.page("cli")
    assert check.command_faults(text) == []
    assert {"bench run", "bench list", "bench evaluate"} <= set(commands())
    assert "python -m bench.seeds" in measurements()


def test_a_command_that_goes_or_comes_is_noticed() -> None:
    text = check.page("cli")
    existing = {**commands(), **measurements()}
    fewer = {name: command for name, command in existing.items() if name != "bench evaluate"}
    assert check.command_faults(text, fewer) == [
        "command bench evaluate is documented and does not exist"
    ]
    more = {**existing, "bench dance": click.Command("dance")}
    assert check.command_faults(text, more) == ["command bench dance exists and is not documented"]


def test_an_option_that_goes_or_comes_is_noticed() -> None:
    text = check.page("cli")
    existing = {**commands(), **measurements()}
    evaluate = existing["bench evaluate"]
    changed = [item for item in evaluate.params if item.name != "gif"]
    changed.append(click.Option(["--png"]))
    existing["bench evaluate"] = click.Command("evaluate", params=changed)
    assert check.command_faults(text, existing) == [
        "option of bench evaluate: --gif is documented and does not exist",
        "option of bench evaluate: --png exists and is not documented",
    ]
    choices = check.choice_options() - {"--workers"} | {"--workmen"}
    found = check.command_faults(text, {}, choices)
    assert "choice --workers is documented and does not exist" in found
    assert "choice --workmen exists and is not documented" in found


def test_a_command_is_documented_as_soon_as_it_is_there() -> None:
    option = click.Option(["--height/--no-height"], help="How high.", show_default=True)
    text = render({"bench jump": click.Command("jump", params=[option], help="Jump.")})
    assert "### bench jump" in text and "| `--height`, `--no-height` | yes or no |" in text
    assert check.first_columns(text)["bench jump"] == ["--height", "--no-height"]


def test_fields_traits_and_summary_fields_are_documented_and_exist() -> None:
    assert check.config_faults(check.page("config")) == []
    assert check.trait_faults(check.page("traits")) == []
    assert check.summary_faults(check.page("summary")) == []


def test_a_field_or_trait_that_goes_or_comes_is_noticed() -> None:
    fields = set(check.field_owners()) - {"gamma"} | {"delta"}
    assert check.config_faults(check.page("config"), fields) == [
        "field delta exists and is not documented",
        "field gamma is documented and does not exist",
    ]
    traits = {item.name for item in check.dataclasses.fields(check.Traits)} - {"paper"} | {"colour"}
    assert check.trait_faults(check.page("traits"), traits) == [
        "trait colour exists and is not documented",
        "trait paper is documented and does not exist",
    ]
    names = set(check.FIELDS) - {"env_steps"} | {"moon_phase"}
    assert check.summary_faults(check.page("summary"), names) == [
        "summary field env_steps is documented and does not exist",
        "summary field moon_phase exists and is not documented",
    ]


def test_every_strategy_has_a_page_with_all_its_parts() -> None:
    wanted = ["idea", "diff", "choices", "traits", "results"]
    for name in strategies.STRATEGIES:
        text = (DOCS / "reference" / "strategies" / f"{name}.md").read_text(encoding="utf-8")
        assert part_names(text) == [f"strategy-{part} {name}" for part in wanted]
        assert "## Departures from the paper" in text and "## Measured results" in text
        assert ("```diff" in text) == (strategies.traits_of(name).parent is not None)


def test_options_named_in_the_text_exist() -> None:
    known = check.all_options()
    named = {
        (path.name, option)
        for path in PAGES
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", path.read_text(encoding="utf-8"))
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", code)
    }
    unknown = {each for each in named if each[1] not in known and not OTHER_PROGRAMS.match(each[1])}
    assert unknown == set() and len(named) > 40
    assert "--workers" in known and "--workmen" not in known


def test_commands_named_in_the_text_exist() -> None:
    existing = {*commands(), *measurements(), "python -m bench"}
    named = {
        match[0]
        for path in PAGES
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", path.read_text(encoding="utf-8"))
        if (match := re.match(r"bench [a-z]+|python -m (?:bench|docs)[a-z._]*", code))
    }
    assert named - existing == set() and {"bench run", "python -m bench.seeds"} <= named


def test_each_word_of_the_glossary_stands_there_once() -> None:
    text = check.page("glossary")
    words = re.findall(r"^\*\*(.+)\*\*$", text, re.MULTILINE)
    assert len(words) == len(set(words)) > 30
    assert len(words) == len(re.findall(r"^:   ", text, re.MULTILINE))


def test_each_unit_in_a_name_is_explained() -> None:
    units = check.first_columns(check.page("glossary"))["Units in names"]
    names = {name.split(".")[-1].removesuffix("[]") for name in check.FIELDS}
    names |= set(check.field_owners())
    for unit in ("_env_steps", "_seconds", "_per_second", "_mib", "_fraction"):
        assert unit in units and any(name.endswith(unit) for name in names)
    assert [name for name in names if re.search(r"_(ms|us|secs|millis|minutes|mb|pct)$", name)] == []
