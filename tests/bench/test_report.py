"""The page of a report: its numbers are those of the files, it loads nothing, and nothing breaks it."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from page import Page
from saved_runs import (
    make_summary,
    save_comparison,
    write_comparison,
    write_run,
    write_sweep,
)

import strategies
from bench import report
from bench.group_answers import answers_of
from bench.group_table import tables_for
from bench.groups import make_groups
from bench.lost_writes import load_lost_writes
from bench.repeat import command_of_comparison, command_of_run
from bench.report import make_scopes, render, write_report
from bench.report_figures import plans_for
from bench.runner import run
from bench.saved import SavedRun, field_of, load_runs
from common.config import Config, ConfigError

STRATEGIES = ("single", "hogwild", "apex")
SEEDS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison in which one run failed and one was interrupted."""
    folder = tmp_path_factory.mktemp("report") / "comparison"
    comparison = write_comparison(folder, STRATEGIES, SEEDS)
    by_name = {run["run"]: run for run in comparison["runs"]}
    failed = by_name["runs/steps/single/seed2"]
    failed |= {"status": "failed", "error": "actor-0 failed:\nValueError: <b>boom</b> & $x$"}
    for file in (folder / failed["run"]).iterdir():
        file.unlink()
    interrupted = folder / "runs/steps/apex/seed1/summary.json"
    summary = json.loads(interrupted.read_text())
    interrupted.write_text(json.dumps({**summary, "status": "interrupted"}))
    by_name["runs/steps/apex/seed1"]["status"] = "interrupted"
    save_comparison(folder, "compare", comparison["runs"], STRATEGIES, SEEDS, ("steps",))
    return folder


@pytest.fixture(scope="module")
def written(folder: Path) -> dict[str, Any]:
    return write_report(folder)


@pytest.fixture(scope="module")
def page(written: Mapping[str, Any]) -> Page:
    return Page(Path(written["page"]).read_text(encoding="utf-8"))


def summary_of(folder: Path, run: str) -> dict[str, Any]:
    return dict(json.loads((folder / run / "summary.json").read_text()))


def shown_number(text: str) -> float:
    number = float(text.rstrip("%").replace(",", ""))
    return number / 100 if text.endswith("%") else number


# --- The numbers ---


def test_every_number_of_a_run_is_the_one_in_its_summary(page: Page, folder: Path) -> None:
    found = [
        e for e in page.all("data") if "data-run" in e.attributes and "data-stat" not in e.attributes
    ]
    fields = set()
    for element in found:
        path = element.attributes["data-field"]
        if path.startswith("timeline."):
            continue
        value = field_of(summary_of(folder, element.attributes["data-run"]), path)
        assert float(element.attributes["value"]) == value, path
        # The text is that number as rounded for a reader: to 1% and half a unit at the worst.
        assert shown_number(element.text) == pytest.approx(value, rel=0.05, abs=0.5), path
        fields.add(path)
    expected = {"env_steps", "updates", "wall_seconds", "returns.eval_mean", "audit.writes_lost"}
    assert expected | {"env_steps_per_second", "replay_ratio.achieved"} <= fields
    assert len(found) > 60


def completed(folder: Path, group: str) -> list[dict[str, Any]]:
    """The summaries that count for a group of the page, found by its strategy."""
    strategy = group.split(" / ")[-1]
    paths = sorted((folder / "runs/steps" / strategy).glob("*/summary.json"))
    found = [json.loads(path.read_text()) for path in paths]
    return [summary for summary in found if summary["status"] == "completed"]


def test_every_median_sum_and_interval_is_that_of_the_completed_runs(page: Page, folder: Path) -> None:
    seen = set()
    for element in page.having("data-stat", "data-group"):
        stat, path = element.attributes["data-stat"], element.attributes.get("data-field", "")
        runs = completed(folder, element.attributes["data-group"])
        values = [value for run in runs if isinstance(value := field_of(run, path), int | float)]
        oracle = {
            "median": lambda values=values: statistics.median(values),
            "sum": lambda values=values: sum(values),
            # From two or three values the interval of the median reaches from one end to the other.
            "low": lambda values=values: min(values),
            "high": lambda values=values: max(values),
            "completed": lambda runs=runs: len(runs),
            "solved": lambda runs=runs: sum(
                run["returns"]["solved_at_seconds"] is not None for run in runs
            ),
        }
        if stat == "mean" or path in ("alarms", "largest process, MiB"):
            continue
        assert float(element.attributes["value"]) == pytest.approx(oracle[stat]()), (path, stat)
        seen.add((stat, path))
    assert {"median", "sum", "low", "high", "completed", "solved"} == {stat for stat, _ in seen}
    assert ("median", "env_steps_per_second") in seen
    assert ("sum", "audit.writes_lost") in seen


def test_the_page_leads_with_the_six_answers_of_every_strategy(page: Page, folder: Path) -> None:
    headings = [(e.tag, " ".join(e.text.split())) for e in page.all("h1", "h2", "h3")]
    assert headings[0] == ("h1", "Comparison of 3 strategies on CartPole-v1")
    assert headings[1] == ("h2", "The six answers: CartPole-v1, 3,000 env steps each")
    assert headings[2] == ("h3", "1 Are updates overwritten?")
    assert headings[7] == ("h3", "6 Would a GPU help?")
    second = [text for tag, text in headings if tag == "h2"]
    assert [text.split(":")[0] for text in second] == [
        "The six answers",
        "Results",
        "Figures",
        "Every run",
        "Machine and configuration",
    ]
    answers = [e for e in page.all("td") if e.attributes.get("role") == "cell"]
    assert answers[0].text.startswith("No: 0 of")
    lost = sum(run["audit"]["writes_lost"] for run in completed(folder, "hogwild"))
    assert f"{lost:,} of" in answers[1].text
    assert len(answers) == 6 * len(STRATEGIES)


def test_a_single_run_speaks_in_its_own_words(tmp_path: Path) -> None:
    summary = write_run(tmp_path / "run", "apex", 4)
    (group,) = make_groups(load_runs(tmp_path / "run"))
    assert [str(text.striptags()) for text in answers_of(group)] == [
        answer["answer"] for answer in summary["answers"]
    ]
    old = {name: value for name, value in summary.items() if name != "answers"}
    (tmp_path / "run/summary.json").write_text(json.dumps(old))
    (group,) = make_groups(load_runs(tmp_path / "run"))
    composed = [str(text.striptags()) for text in answers_of(group)]
    assert composed[0] == f"No: 0 of {old['audit']['writes_issued']:,} writes were lost."
    assert composed[4] == "apex is bound by the update. Try --batch-size 64."


def test_what_was_not_measured_is_a_dash_and_never_zero(tmp_path: Path) -> None:
    health = {"q_mean": None, "q_max": None, "q_bound": None, "alarms": []}
    audit = {**dict.fromkeys(make_summary()["audit"]), "reason": "no update was made"}
    write_run(tmp_path / "a", "apex", 1, health=health, audit=audit, answers=None)
    write_run(tmp_path / "b", "vector", 1)
    groups = make_groups(load_runs(tmp_path))
    unmeasured = next(group for group in groups if group.strategy == "apex")
    texts = [str(text.striptags()) for text in answers_of(unmeasured)]
    assert texts[0] == "Not counted: no update was made."
    assert texts[3].endswith("learning health was not measured.")
    cost = tables_for(groups)[1]
    cells = {group.strategy: dict(zip(cost.titles, cells, strict=True)) for group, cells in cost.rows}
    assert cells["apex"]["alarms"].striptags() == cells["apex"]["writes lost"].striptags() == "-"
    assert cells["vector"]["alarms"].striptags() == "0"


# --- Failures ---


def test_runs_that_did_not_complete_are_listed_with_their_error(page: Page, written: Any) -> None:
    status = {
        e.attributes["data-run"]: e.text
        for e in page.all("td")
        if e.attributes.get("class") == "status"
    }
    assert status["runs/steps/single/seed2"] == "failed"
    assert status["runs/steps/apex/seed1"] == "interrupted"
    assert sum(text == "completed" for text in status.values()) == written["completed"] == 7
    (error,) = [e.text for e in page.all("pre") if e.attributes.get("data-field") == "error"]
    assert error == "actor-0 failed:\nValueError: <b>boom</b> & $x$"
    assert "boom</b>" not in [e.tag for e in page.elements]
    (notice,) = [e.text for e in page.all("p") if e.attributes.get("class") == "notice"]
    assert "2 runs are not completed" in " ".join(notice.split())


def test_half_written_foreign_and_strange_files_are_named_or_left_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "good", "apex", 0)
    write_run(tmp_path / "deep/er/new", "vector", 0, schema=99, status="completed", extra={"a": 1})
    write_run(tmp_path / "old", "single", 0, schema=0)
    half = write_run(tmp_path / "half", "sync", 1) and tmp_path / "half/summary.json"
    half.write_text(half.read_text()[:200])
    write_run(tmp_path / "killed", "impala", 2)
    (tmp_path / "killed/summary.json").unlink()
    for name, text in {"foreign": '{"accuracy": 1}', "list": "[1]", "text": "hello"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/config.json").write_text("{}")  # of another program: not ours to name
    saved = load_runs(tmp_path)
    status = {run.name: (run.strategy, run.status) for run in saved.runs}
    assert status == {
        "good": ("apex", "completed"),
        "deep/er/new": ("vector", "completed"),
        "old": ("single", "completed"),
        "half": ("sync", "unfinished"),
        "killed": ("impala", "unfinished"),
    }
    assert {name for name, _ in saved.unread} == {"foreign", "list", "text"}
    html = render(saved, [])
    assert "summary.json is half-written or not JSON" in html
    assert "it has no summary: killed, or still running" in html
    assert "written in a newer format (schema 99, this is 1)" in html
    assert "written in an older or unknown format (schema 0, this is 1)" in html
    assert "it names no strategy" in html


def test_nothing_to_report_is_one_sentence(tmp_path: Path, invoke: Any) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/comparison.json").write_text('{"runs": 3}')
    cases = {"empty": "holds no run", "file": "is a file", "nowhere": "does not exist"}
    for name, words in {**cases, "foreign": "comparison.json: it lists no runs"}.items():
        with pytest.raises(ConfigError) as caught:
            write_report(tmp_path / name)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    result = invoke("report", "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: nowhere does not exist")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "foreign"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "single", 0)
    (tmp_path / "taken").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(tmp_path / "run", tmp_path / "taken" / "page.html")
    assert not list((tmp_path / "run").glob("*.html"))


def leaves(value: Any, replacement: Any) -> Any:
    """Return a summary in which everything but what makes it one is replaced."""
    return {
        name: item if name in ("schema", "strategy", "status", "seed") else replacement
        for name, item in value.items()
    }


def draw_everything(folder: Path) -> str:
    """Make the page with every figure drawn, but none saved as a file."""
    saved = load_runs(folder)
    for group in make_groups(saved):
        for plan in plans_for([group], saved):
            if plan.draw() is not None:
                plan.caption()
    return render(saved, list(without_figures(saved)))


def without_figures(saved: Any) -> Any:
    original = report.make_scopes
    assert original is make_scopes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.report_figures.draw_all", lambda *_: [])
        yield from make_scopes(saved, Path())


@pytest.mark.parametrize("strange", [None, "text", 3, [], {}, [None], {"workers": 5, "roles": [1]}])
def test_a_summary_of_nothing_but_strange_values_makes_a_page(tmp_path: Path, strange: Any) -> None:
    write_run(tmp_path / "run", "hogwild", 0)
    summary = leaves(make_summary("hogwild"), strange)
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    (tmp_path / "run/events.jsonl").write_text(
        json.dumps({"kind": "health", "q_max": strange}) + '\n{"ki'
    )
    html = draw_everything(tmp_path)
    assert "hogwild" in html
    assert Page(html).mismatched == []


def test_a_run_that_stopped_before_it_collected_makes_a_page(tmp_path: Path) -> None:
    shares = {"share_collected": None, "share_consumed": None}
    workers = [{"worker": number, "env_steps": 0, "episodes": 0, **shares} for number in range(2)]
    summary = make_summary("apex")
    summary |= {"status": "interrupted", "experience": {**summary["experience"], "workers": workers}}
    write_run(tmp_path / "run", "apex", 0)
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    assert "interrupted" in draw_everything(tmp_path)


def test_a_report_that_is_interrupted_before_its_first_figure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    write_run(tmp_path / "run", "apex", 0)
    monkeypatch.setattr("bench.report.make_scopes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def paths_into(value: Any) -> list[list[Any]]:
    """Every place in nested objects and lists."""
    names = (
        list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    )
    return [[name, *rest] for name in names for rest in [[], *paths_into(value[name])]]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("first", range(2))
def test_any_single_strange_field_makes_a_page(tmp_path: Path, first: int) -> None:
    """Every field of a summary, one after the other, at every depth."""
    strange = itertools.cycle([None, "text", -1, [], {}, [None], 10**400, float("nan"), True])
    for _ in range(4 * first):
        next(strange)
    write_run(tmp_path / "run", "apex", 0)
    alarm = {"name": "a", "value": 1.0, "limit": 2.0, "at_env_steps": 3, "meaning": "m", "remedy": "r"}
    whole = make_summary("apex", health={"q_mean": 1.0, "alarms": [alarm]})
    paths = [path for path in paths_into(whole) if path != ["strategy"]]
    assert len(paths) > 100
    for path in paths:
        summary = json.loads(json.dumps(whole))
        place = summary
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = next(strange)
        (tmp_path / "run/summary.json").write_text(json.dumps(summary))
        assert "<main" in draw_everything(tmp_path), path


@pytest.mark.slow
def test_two_hundred_runs_make_a_page(tmp_path: Path) -> None:
    names = ("single", "vector", "sync", "hogwild", "a3c", "impala", "apex", "pqn")
    write_comparison(tmp_path / "many", names, seeds=25)
    written = write_report(tmp_path / "many")
    assert written["runs"] == written["completed"] == 200
    html = Path(written["page"]).read_text()
    assert len(html) < 8_000_000
    assert html.count('class="status"') == 200


# --- A page for everybody ---


def test_the_page_loads_nothing(page: Page) -> None:
    loading = ("src", "href", "srcset", "xlink:href", "data", "action", "poster")
    targets = [e.attributes[name] for e in page.elements for name in loading if name in e.attributes]
    assert targets
    assert all(target.startswith(("#", "data:")) for target in targets)
    assert "http" not in re.sub(r"<pre.*?</pre>", "", page.html, flags=re.S)
    assert not page.all("script", "iframe", "object", "embed")
    assert not re.search(r"@import|@font-face|url\((?!#)", page.html)


def test_the_page_can_be_used_with_a_keyboard_and_a_screen_reader(page: Page) -> None:
    assert page.mismatched == page.unclosed == []
    levels = [int(e.tag[1]) for e in page.all("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [e.attributes["id"] for e in page.having("id")]
    assert len(ids) == len(set(ids))
    links = [e.attributes["href"][1:] for e in page.all("a")]
    named = [
        name for e in page.having("aria-labelledby") for name in e.attributes["aria-labelledby"].split()
    ]
    assert set(links) | set(named) <= set(ids)
    assert page.all("a")[0].attributes["class"] == "skip"
    assert {"header", "nav", "main", "footer"} <= {e.tag for e in page.elements}
    (html,) = page.all("html")
    assert html.attributes["lang"] == "en"
    for table in page.all("table"):
        assert "aria-labelledby" in table.attributes or page.html.count("<caption>") > 0
    assert all("scope" in e.attributes for e in page.all("th"))
    scrolls = [e for e in page.elements if e.attributes.get("class") == "scroll"]
    assert scrolls
    assert all(e.attributes["tabindex"] == "0" and e.attributes["aria-label"] for e in scrolls)


def test_every_figure_says_its_number_in_words(page: Page, written: Any) -> None:
    pictures = [e for e in page.all("svg") if e.attributes.get("role") == "img"]
    assert (
        len(pictures)
        == len(written["figures"])
        == len(page.all("figure"))
        == len(page.all("figcaption"))
    )
    for picture in pictures:
        assert re.search(r"\d", picture.attributes["aria-label"])
        assert len(picture.attributes["aria-label"]) > 40
    names = {
        "learning-env-steps",
        "learning-seconds",
        "throughput",
        "lost-writes-hogwild",
        "timeline-apex",
    }
    assert names <= set(written["figures"])
    for name in written["figures"]:
        for ending in ("png", "svg"):
            assert (Path(written["figures_folder"]) / f"{name}.{ending}").stat().st_size > 1_000


def test_both_themes_have_every_colour(page: Page) -> None:
    css = page.html[page.html.index("<style>") : page.html.index("</style>")]
    light, dark = css.split("@media (prefers-color-scheme: dark)")[:2]
    used = set(re.findall(r"var\(--([a-z0-9_-]+)\)", page.html))
    assert {"ink", "surface", "strategy-apex", "activity-update"} <= used
    for name in used:
        assert f"--{name}: #" in light
        assert f"--{name}: #" in dark


# --- Groups, budgets and sweeps ---


def test_runs_that_differ_in_more_than_their_seed_are_not_put_together(tmp_path: Path) -> None:
    for seed in range(2):
        for write in ("in-place", "copy-back"):
            config = {"env_id": "CartPole-v1", "seed": seed, "write": write}
            write_run(tmp_path / f"{write}{seed}", "hogwild", seed, config=config)
    write_run(tmp_path / "other", "hogwild", 0, env_id="Acrobot-v1")
    groups = make_groups(load_runs(tmp_path))
    assert [(group.env_id, group.label, len(group.runs)) for group in groups] == [
        ("Acrobot-v1", "hogwild", 1),
        ("CartPole-v1", "hogwild, write copy-back", 2),
        ("CartPole-v1", "hogwild, write in-place", 2),
    ]
    assert [scope.title for scope in without_figures(load_runs(tmp_path))] == [
        "Acrobot-v1",
        "CartPole-v1",
    ]


def test_each_budget_of_a_comparison_is_a_part_of_its_own(tmp_path: Path) -> None:
    comparison = write_comparison(tmp_path / "c", ("single", "sb3-dqn"), 2, ("steps", "seconds"))
    comparison["runs"][-1] |= {"status": "pending", "run": "runs/not/there"}
    save_comparison(tmp_path / "c", "compare", comparison["runs"], ("single",), 2, ("steps", "seconds"))
    saved = load_runs(tmp_path / "c")
    scopes = list(without_figures(saved))
    assert [scope.title for scope in scopes] == [
        "CartPole-v1, 3,000 env steps each",
        "CartPole-v1, 10 seconds each",
    ]
    assert [group.label for group in scopes[1].groups] == ["single", "sb3-dqn"]
    page = Page(render(saved, scopes))
    assert "1 still to do" in page.all("header")[0].text
    assert [e.tag for e in page.all("h2")] == ["h2"] * 4
    assert not [e for e in page.elements if e.attributes.get("id") == "not-completed"]


def test_how_a_strategy_stands_to_the_baseline_is_taken_from_the_comparisons_table(
    tmp_path: Path,
) -> None:
    write_comparison(tmp_path / "c", ("single", "apex"), 2)

    def row(strategy: str, **versus: Any) -> dict[str, Any]:
        metrics = {"env_steps_per_second": {"versus_baseline": versus or None}}
        return {"strategy": strategy, "param": None, "metrics": metrics}

    rows = [row("single"), row("apex", ratio=3.5, difference_shown=True)]
    table = {"baseline": "single", "budgets": [{"name": "steps", "rows": rows}]}
    (tmp_path / "c/table.json").write_text(json.dumps(table))

    def cells() -> list[str]:
        saved = load_runs(tmp_path / "c")
        reached = tables_for(make_groups(saved), saved.table)[0]
        place = list(reached.titles).index("env steps/s")
        return [str(own[place].striptags()) for _, own in reached.rows]

    assert "x single" not in cells()[0]
    assert cells()[1].endswith("3.5 x single")
    rows[1]["metrics"]["env_steps_per_second"]["versus_baseline"]["difference_shown"] = False
    (tmp_path / "c/table.json").write_text(json.dumps(table))
    assert cells()[1].endswith("no difference to single shown")


def test_alarms_are_listed_with_what_they_mean(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", "replay_ratio", [0.5, 2, 8], seeds=1)
    saved = load_runs(tmp_path / "s")
    scopes = list(without_figures(saved))
    assert [(group.label, alarm["name"]) for group, _, _, alarm in scopes[0].alarms] == [
        ("apex, replay ratio 2", "q_bound"),
        ("apex, replay ratio 8", "q_bound"),
    ]
    page = Page(render(saved, scopes))
    found = [
        e for e in page.all("data") if e.attributes.get("data-field", "").startswith("health.alarms.0")
    ]
    assert {(e.attributes["data-field"].split(".")[-1], e.text) for e in found} == {
        ("value", "300"),
        ("limit", "150"),
        ("at_env_steps", "900"),
    }
    assert "the Q values are impossible" in page.html
    assert page.all("h1")[0].text == "Sweep of apex on CartPole-v1"


# --- The command that repeats it ---


@pytest.mark.parametrize(
    ("strategy", "choices"),
    [
        ("single", {}),
        ("hogwild", {"write": "copy-back", "lock": True, "workers": 4, "seed": 7}),
        ("apex", {"replay_ratio": "free", "seconds": 2.5, "straggler": "1:5", "layer_norm": True}),
        ("vector", {"env_id": "Acrobot-v1", "max_grad_norm": None, "audit": False, "steps": 123_456}),
    ],
)
def test_the_command_gives_the_same_configuration(strategy: str, choices: dict[str, Any]) -> None:
    from click.core import ParameterSource

    from bench.cli import OWN_OPTIONS, run_command
    from bench.options import make_config

    env_id = choices.get("env_id", "CartPole-v1")
    config: Config = strategies.load(strategy).Config.for_env(
        env_id, **{name: value for name, value in choices.items() if name != "env_id"}
    )
    summary = {"config": json.loads(json.dumps(dataclasses.asdict(config))), "env_id": env_id}
    text = command_of_run(SavedRun("r", Path("r"), strategy, config.seed, "completed", summary=summary))
    assert text is not None
    words = shlex.split(text)
    assert words[:4] == ["bench", "run", "--strategy", strategy]
    context = run_command.make_context("run", words[2:])
    chosen = {
        name: value
        for name, value in context.params.items()
        if name not in OWN_OPTIONS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    assert make_config(strategy, chosen) == config
    assert len(chosen) <= len(choices) + 2  # what the presets say is not repeated


def test_the_commands_of_comparisons_and_what_has_none() -> None:
    budgets = [{"name": "steps", "steps": 5000, "seconds": None}]
    common = {"env_id": "CartPole-v1", "budgets": budgets, "seeds": [0, 1, 2], "workers": 2}
    compare = {**common, "kind": "compare", "strategies": ["single", "apex", "sb3-dqn"], "options": {}}
    assert command_of_comparison(compare) == (
        "bench compare --strategies single,apex --env CartPole-v1 --peers --seeds 3 --steps 5000 "
        "--workers 2"
    )
    param = {"names": ["layer_norm"], "values": [[False, True]]}
    sweep = {
        **common,
        "kind": "sweep",
        "strategies": ["apex"],
        "param": param,
        "options": {"gamma": 0.9},
    }
    assert command_of_comparison(sweep) == (
        "bench sweep --strategy apex --env CartPole-v1 --param layer_norm --values false,true "
        "--seeds 3 --steps 5000 --workers 2 --gamma 0.9"
    )
    assert command_of_comparison({"kind": "compare"}) is None
    assert command_of_run(SavedRun("r", Path("nowhere"), "sb3-dqn", 0, "completed")) is None


# --- As a user does it ---


def run_and_report(folder: Path, strategy: str, **choices: Any) -> tuple[dict[str, Any], Page]:
    """Train for a moment, make the page, and hold what every page must have to the summary."""
    small = {"hidden_size": 32, "batch_size": 16, "steps": 400, "warmup_env_steps": 100}
    config = strategies.load(strategy).Config(evaluate_every_env_steps=10_000, **small, **choices)
    summary = run(strategy, config, folder)
    assert summary["status"] == "completed"
    written = write_report(folder)
    assert {"learning-env-steps", "throughput", f"timeline-{strategy}"} <= set(written["figures"])
    page = Page(Path(written["page"]).read_text())
    (answer,) = [
        e for e in page.having("data-field") if e.attributes["data-field"] == "answers.0.answer"
    ]
    assert answer.text == summary["answers"][0]["answer"]
    return summary, page


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_real_run_makes_a_page_whose_numbers_are_its_own(tmp_path: Path) -> None:
    summary, page = run_and_report(tmp_path / "run", "single")
    shown = {
        e.attributes["data-field"]: float(e.attributes["value"])
        for e in page.having("value", "data-run")
    }
    for path in ("env_steps", "updates", "returns.eval_mean", "audit.writes_lost", "wall_seconds"):
        assert shown[path] == field_of(summary, path)
    timeline = json.loads((tmp_path / "run/timeline.json").read_text())
    (role,) = timeline["roles"]
    assert {"act", "env_step", "write", "sample", "update"} <= {span[2] for span in role["spans"]}
    trace = json.loads((tmp_path / "run/timeline.trace.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == len(role["spans"])
    assert not (tmp_path / "run/lost_writes.npz").exists()  # nothing was lost


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_writers_that_copy_back_leave_their_losses_and_where_they_met(tmp_path: Path) -> None:
    summary, page = run_and_report(tmp_path / "run", "hogwild", write="copy-back", workers=2)
    assert summary["audit"]["writes_lost"] > 0
    parts = load_lost_writes(tmp_path / "run")
    assert sum(int(part.lost.sum()) for part in parts) == summary["audit"]["writes_lost"]
    lost = [e for e in page.all("data") if e.attributes.get("data-field") == "audit.writes_lost"]
    assert {int(e.attributes["value"]) for e in lost} == {summary["audit"]["writes_lost"]}
    timeline = json.loads((tmp_path / "run/timeline.json").read_text())
    assert timeline["all_at_work"] is True
    assert {mark["kind"] for mark in timeline["meetings"]} == {"undone"}
    names = {span[2] for role in timeline["roles"] for span in role["spans"]}
    assert {"pull", "update", "publish"} <= names


HEAVY = ("torch", "matplotlib", "seaborn", "pandas", "scipy", "jinja2")


def imported(code: str) -> list[str]:
    """Return which heavy packages a fresh interpreter has loaded after some code."""
    code = f"import sys; {code}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return list(ast.literal_eval(done.stdout))


def test_drawing_is_imported_only_to_draw() -> None:
    assert imported("import bench.report, bench.runner, bench.saved, bench.svg") == []
    assert imported("import jinja2") == ["jinja2"]  # the test can see one


@pytest.mark.slow
def test_a_report_loads_no_torch(tmp_path: Path) -> None:
    write_comparison(tmp_path / "c", ("single", "hogwild"), 2)
    folder = f"__import__('pathlib').Path({str(tmp_path / 'c')!r})"
    loaded = imported(f"from bench.report import write_report; write_report({folder})")
    assert "torch" not in loaded
    assert "matplotlib" in loaded
