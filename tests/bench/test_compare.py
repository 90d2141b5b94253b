"""Comparisons: what is planned, what counts as complete, and what an interruption leaves."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import psutil
import pytest
from compare_rig import (
    SECONDS,
    STEPS,
    leave,
    leave_all,
    planned,
    run_instantly,
    start_instantly,
    state,
    summary_of,
)

import strategies
from bench import sequence
from bench.cli import cli
from bench.compare import DEFAULT_SECONDS, DEFAULT_STEPS
from bench.comparison import NEVER, PEER, Comparison, PlannedRun, load
from bench.comparison_folder import sole_owner
from bench.estimates import TYPICAL_ENV_STEPS_PER_SECOND, Estimate
from bench.options import make_config
from bench.sequence import command, take_stock
from bench.table import result, seconds_to_solve
from bench.tabulate import NO_DIFFERENCE, as_csv, as_markdown, as_text, versus_cell, write_tables
from common.config import ConfigError

BAD_COMPARISONS = {
    "unknown strategy": (("--strategies", "single,apx"), ("'apx'", "did you mean 'apex'")),
    "twice": (("--strategies", "apex,apex"), ("strategy 'apex' is given twice",)),
    "unknown env": (("--env", "CartPol-v1"), ("CartPol-v1", "did you mean CartPole-v1")),
    "no seeds": (("--seeds", "0"), ("--seeds", "0")),
    "no steps": (("--steps", "many"), ("'many' is not a whole number",)),
    "no seconds": (("--seconds", "0"), ("seconds 0.0", "more than 0")),
    "steps below warm-up": (("--steps", "10"), ("steps 10", "warm-up")),
    "useless in one": (("--replay-ratio", "1"), ("replay ratio has no use in a3c",)),
    "useless in some": (
        ("--strategies", "single,hogwild", "--lock"),
        ("lock has no use in single",),
    ),
    "bad value": (("--gamma", "2"), ("gamma 2", "at most 1")),
    "until solved": (("--until-solved",), ("--until-solved",)),
    "seed": (("--seed", "3"), ("--seed",)),
    "resume of nothing": (("--resume", "nowhere"), ("nowhere holds no comparison",)),
    "resume otherwise": (("--resume", "x", "--steps", "5"), ("leave steps out",)),
    "peer's own": (
        ("--peers", "--strategies", "single", "--no-double"),
        ("double has no use in sb3-dqn",),
    ),
}


@pytest.mark.parametrize("case", BAD_COMPARISONS)
def test_bad_input_is_one_sentence_before_anything_starts(
    case: str, invoke: Any, tmp_path: Path
) -> None:
    arguments, expected = BAD_COMPARISONS[case]
    if "--peers" in arguments and find_spec("stable_baselines3") is None:
        pytest.skip("needs the extra 'peers'")
    found = invoke("compare", *arguments)
    assert found.exit_code == 2 and found.stdout == ""
    assert found.stderr.count("\n") == 1 and "Traceback" not in found.stderr
    for words in expected:
        assert words in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_help_states_the_budgets_that_are_the_defaults(invoke: Any) -> None:
    texts = [" ".join(invoke(name, "--help").stdout.split()) for name in ("compare", "sweep")]
    assert f"{DEFAULT_STEPS:,} env steps, and {DEFAULT_SECONDS:g} seconds" in texts[0]
    assert f"each run trains for {DEFAULT_SECONDS:g} seconds" in texts[1]
    for text in texts:
        assert "--replay-ratio" in text and "--until-solved" not in text


def test_a_missing_peer_is_named(invoke: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    found = invoke("compare", "--peers")
    assert found.exit_code == 2 and "extra 'peers'" in found.stderr
    assert found.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_output_folder_must_be_empty(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    found = invoke("compare", "--output", str(tmp_path))
    assert found.exit_code == 2 and "is not empty" in found.stderr and "--resume" in found.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_runs_are_interleaved_seed_by_seed_and_budgets_follow_each_other(tmp_path: Path) -> None:
    comparison = planned(tmp_path, budgets=[STEPS, SECONDS], seeds=[0, 1])
    order = [(run.budget, run.seed, run.strategy) for run in comparison.runs]
    assert order == [
        (budget, seed, strategy)
        for budget in ("steps", "seconds")
        for seed in (0, 1)
        for strategy in ("single", "apex")
    ]
    assert comparison.runs[-1].path == Path("runs/seconds/apex/seed1")


def test_budgets_are_equal_for_all(tmp_path: Path) -> None:
    comparison = planned(tmp_path, budgets=[STEPS, SECONDS], strategies=list(strategies.STRATEGIES))
    budgets = {
        (run.budget, config.steps, config.seconds)
        for run in comparison.runs
        if (config := comparison.config_of(run))
    }
    assert budgets == {("steps", 5_000, None), ("seconds", NEVER, 2.0)}
    assert len(comparison.runs) == 2 * 8 * 5


def test_width_reaches_those_that_have_a_use_for_it(tmp_path: Path) -> None:
    comparison = planned(
        tmp_path, strategies=list(strategies.STRATEGIES), workers=3, options={"envs_per_worker": 6}
    )
    comparison.check()
    configs = {run.strategy: comparison.config_of(run) for run in comparison.runs}
    workers = {name: config.workers for name, config in configs.items()}
    assert workers == {name: 1 if name in ("single", "vector", "pqn") else 3 for name in configs}
    assert configs["single"].envs_per_worker == 1 and configs["pqn"].envs_per_worker == 6


ROUND_TRIPS: list[dict[str, Any]] = [
    {"replay_ratio": 1 / 3, "audit": False, "straggler": "0:5"},
    {"max_grad_norm": None, "learning_rate": 1e-7, "double": False, "layer_norm": True},
]


@pytest.mark.parametrize("options", ROUND_TRIPS)
def test_the_command_of_a_run_gives_the_configuration_that_is_checked(
    options: dict[str, Any], tmp_path: Path
) -> None:
    comparison = planned(tmp_path, budgets=[STEPS, SECONDS], options=options, workers=2)
    for run in comparison.runs:
        module, name, *arguments = command(comparison, run)
        assert (module, name) == ("bench.child", "run")
        run_command = cli.commands["run"]
        with run_command.make_context("run", arguments) as context:
            given = {
                key: value
                for key, value in context.params.items()
                if context.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE
            }
        assert given.pop("output") == tmp_path / run.path and given.pop("quiet")
        assert make_config(given.pop("strategy"), given) == comparison.config_of(run)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    comparison = planned(tmp_path, budgets=[STEPS, SECONDS], options={"gamma": 0.9}, workers=2)
    comparison.runs[3].status, comparison.runs[3].error = "failed", "it broke"
    comparison.save()
    assert load(tmp_path) == comparison
    contents = json.loads((tmp_path / "comparison.json").read_text())
    assert contents["schema"] == 1 and contents["runs"][1]["run"] == "runs/steps/apex/seed0"
    assert contents["budgets"][1] == {"name": "seconds", "steps": None, "seconds": 2.0}


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "is not the plan"),
        ('{"schema": 99}', "schema 99"),
        ('{"schema": 1, "x": 2}', "not the plan"),
    ],
)
def test_a_damaged_plan_is_one_sentence(text: str, words: str, invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(text)
    found = invoke("compare", "--resume", ".")
    assert found.exit_code == 2 and words in found.stderr
    assert found.stderr.count("\n") == 1


def test_complete_is_what_a_whole_summary_of_the_planned_run_says(tmp_path: Path) -> None:
    comparison = planned(tmp_path)
    run = comparison.runs[0]
    assert not comparison.is_complete(run)
    leave(comparison, run)
    assert comparison.is_complete(run)
    path = tmp_path / run.path / "summary.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert not comparison.is_complete(run), "half-written"
    for status in ("failed", "interrupted"):
        leave(comparison, run, status=status)
        assert not comparison.is_complete(run), status
    leave(comparison, run, config={"gamma": 0.5})
    assert not comparison.is_complete(run), "another configuration"
    leave(comparison, run, strategy="apex")
    assert not comparison.is_complete(run), "another strategy"


def test_stock_is_taken_from_the_folders_not_from_what_was_noted(tmp_path: Path) -> None:
    comparison = planned(tmp_path)
    leave_all(comparison, lambda run: {})
    shutil.rmtree(tmp_path / comparison.runs[4].path)
    comparison.runs[7].status = "pending"  # killed between the run's end and the note
    take_stock(comparison)
    left = [run for run in comparison.runs if run.status != "completed"]
    assert left == [comparison.runs[4]] and left[0].status == "pending"


def test_one_process_at_a_time_owns_a_comparison(tmp_path: Path) -> None:
    with sole_owner(tmp_path):
        code = "import sys; from pathlib import Path; from bench.comparison_folder import sole_owner\n"
        code += "with sole_owner(Path(sys.argv[1])): print('taken')"
        command = [sys.executable, "-c", code, str(tmp_path)]
        other = subprocess.run(command, capture_output=True, text=True)
        assert "is at work on" in other.stderr and other.stdout == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "owner.json").write_text(json.dumps({"pid": os.getpid(), "created": 1.0}))
    with sole_owner(tmp_path):  # that was another process with the same number
        assert (tmp_path / "owner.json").exists()


def test_the_estimate_follows_what_is_measured(tmp_path: Path) -> None:
    comparison = planned(tmp_path, budgets=[STEPS, SECONDS], seeds=[0, 1])
    estimate = Estimate(comparison)
    speed = TYPICAL_ENV_STEPS_PER_SECOND
    rest = estimate.seconds([comparison.runs[4]]) - 2.0
    guess = [5_000 / speed["single"] + rest, 5_000 / speed["apex"] + rest]
    assert estimate.seconds(comparison.runs[:2]) == pytest.approx(sum(guess))
    estimate.add(comparison.runs[0], 2 * guess[0])
    assert estimate.seconds(comparison.runs[2:3]) == pytest.approx(2 * guess[0])
    assert estimate.seconds(comparison.runs[1:2]) == pytest.approx(2 * guess[1]), "all are slower here"
    estimate.add(comparison.runs[2], 4 * guess[0])
    assert estimate.seconds(comparison.runs[2:3]) == pytest.approx(3 * guess[0])
    assert set(speed) == {*strategies.STRATEGIES, PEER}


# --- The table ---


def measured(run: PlannedRun) -> dict[str, Any]:
    """Return what a run measured: ``apex`` is twenty times as fast, and returns are alike."""
    fast = run.strategy == "apex"
    return {
        "env_steps_per_second": (20_000.0 if fast else 1_000.0) + run.seed,
        "updates_per_second": 250.0 + run.seed,
        "replay_ratio": {"achieved": 0.25},
        "returns": {
            "eval_mean": 480.0 + (run.seed * 7) % 5,
            "solved_at_seconds": 5.0 + run.seed if run.seed != 2 else None,
            "solved_after_command_seconds": 9.0 + run.seed if run.seed != 2 else None,
        },
        "audit": {"lost_fraction": 0.0},
        "policy_lag": {"p50": 1, "p95": 4, "max": 9} if fast else None,
        "gradient_staleness": None,
        "health": {"q_mean": 3.0, "alarms": [{"name": "collapse"}] if run.seed == 1 else []},
        "experience": {"jain_consumed": 0.75 if fast else None},
        "processes": {
            "peak_rss_mib": {"learner": 300.0, "actor": 50.0} if fast else {"actor_learner": 310.0},
            "shared_mib": 8.0,
            "evaluator_rss_mib": 49.0,
            "cpu_utilisation": 0.5,
        },
        "time": {"processes": {"learner-0": {}, "actor-0": {}, "actor-1": {}} if fast else {}},
    }


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Return a comparison of two strategies with all runs complete."""
    comparison = planned(tmp_path_factory.mktemp("filled"), budgets=[STEPS, SECONDS])
    leave_all(comparison, measured)
    return comparison


@pytest.fixture(scope="module")
def table(filled: Comparison) -> dict[str, Any]:
    return result(filled)


def test_the_table_has_medians_intervals_and_ratios(table: dict[str, Any]) -> None:
    assert table["baseline"] == "single"
    assert [budget["name"] for budget in table["budgets"]] == ["steps", "seconds"]
    single, apex = table["budgets"][0]["rows"]
    speed = apex["metrics"]["env_steps_per_second"]
    assert speed["values"] == [20_000.0 + seed for seed in range(5)] and speed["median"] == 20_002
    versus = speed["versus_baseline"]
    assert versus["ratio"] == pytest.approx(20_002 / 1_002) and versus["difference_shown"] is True
    assert versus["ratio_interval"][0] < versus["ratio"] < versus["ratio_interval"][1]
    assert apex["metrics"]["final_return"]["versus_baseline"]["difference_shown"] is False
    assert apex["metrics"]["final_return"]["interval"] == [480.0, 484.0]
    assert single["metrics"]["env_steps_per_second"]["versus_baseline"] is None
    assert (apex["solved"], apex["completed"], apex["runs"]) == (4, 5, 5)
    assert apex["metrics"]["seconds_to_solve"]["median"] == 7.0  # of 5, 6, 8 and 9
    assert apex["metrics"]["seconds_to_solve"]["values"] == [5.0, 6.0, None, 8.0, 9.0]
    assert apex["metrics"]["wall_seconds_to_solve"]["median"] == 11.0


def test_what_was_not_measured_is_a_dash_and_never_zero(
    filled: Comparison, table: dict[str, Any]
) -> None:
    single, apex = table["budgets"][0]["rows"]
    assert single["metrics"]["policy_lag_p95"] == {
        **dict.fromkeys(single["metrics"]["policy_lag_p95"]),
        "values": [],
    }
    assert apex["metrics"]["policy_lag_p95"]["median"] == 4
    assert sum(apex["metrics"]["alarms"]["values"]) == 1
    assert apex["metrics"]["peak_memory_mib"]["median"] == 300 + 2 * 50 + 8 + 40 + 49
    bare = summary_of(filled, filled.runs[0])
    assert seconds_to_solve(bare) == math.inf
    assert seconds_to_solve({**bare, "returns": {**bare["returns"], "threshold": None}}) is None
    comparison = planned(filled.folder / "bare")
    leave_all(comparison, lambda run: {})
    empty = result(comparison)
    for row in empty["budgets"][0]["rows"]:
        known = {name for name, each in row["metrics"].items() if each["values"]}
        assert known == {"seconds_to_solve", "wall_seconds_to_solve"}, "it is known that it did not"
    cells = as_markdown(empty).split("What it cost")[1].split("apex")[1].split("\n")[0]
    assert set(cells.split("|")[1:-1]) == {" - "}


def test_the_text_is_readable_on_a_terminal_of_80(table: dict[str, Any]) -> None:
    for width in (80, 120):
        text = as_text(table, width)
        assert max(len(line) for line in text.splitlines()) <= width and "\x1b" not in text
        assert "…" not in text and "20.0x" in text and "4 of 5" in text
    assert NO_DIFFERENCE in as_text(table, 120)
    narrow = as_text(table, 40)  # no table fits: a line for each number, and no word cut in two
    assert "single\n  wall s to solve: " in narrow and "+-" not in narrow
    assert "  final return: " in narrow and "20.0x" in narrow
    markdown = as_markdown(table)
    assert markdown.count("| apex |") == 6 and NO_DIFFERENCE in markdown
    assert "482.0 [480.0, 484.0]" in markdown


@pytest.mark.parametrize(
    "ratio, text",
    [(0.0361, "0.036"), (0.99, "0.99"), (4.561, "4.56"), (34.22, "34.2"), (107.4, "107"), (0.0, "0")],
)
def test_ratios_are_short(ratio: float, text: str) -> None:
    versus = {"ratio": ratio, "ratio_interval": [0.0361, 0.6329], "difference_shown": True}
    row = {"is_baseline": False, "metrics": {"x": {"versus_baseline": versus}}}
    assert versus_cell("x")(row) == f"{text}x [0.036, 0.63]"
    versus["difference_shown"] = False
    assert versus_cell("x")(row) == NO_DIFFERENCE


def test_csv_and_json_say_the_same(filled: Comparison, table: dict[str, Any]) -> None:
    write_tables(filled.folder, table)
    assert json.loads((filled.folder / "table.json").read_text()) == json.loads(json.dumps(table))
    lines = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert (filled.folder / "table.csv").read_text() == as_csv(table)
    rows = [(budget, row) for budget in table["budgets"] for row in budget["rows"]]
    assert len(lines) == len(rows) == 4
    for line, (budget, row) in zip(lines, rows, strict=True):
        assert (line["budget"], line["strategy"]) == (budget["name"], row["strategy"])
        for name, metric in row["metrics"].items():
            assert line[name] == ("" if metric["median"] is None else str(metric["median"]))
    assert lines[1]["env_steps_per_second_difference_shown"] == "True"


def test_without_single_nothing_is_compared(tmp_path: Path) -> None:
    comparison = planned(tmp_path, strategies=["vector", "pqn"], seeds=[0])
    leave_all(comparison, measured)
    table = result(comparison)
    assert table["baseline"] is None and "vs " not in as_markdown(table)
    assert table["budgets"][0]["rows"][0]["metrics"]["env_steps_per_second"]["versus_baseline"] is None


def test_a_table_of_what_is_there(tmp_path: Path) -> None:
    comparison = planned(tmp_path, seeds=[0, 1])
    assert "4 runs are not complete" in as_text(result(comparison), 80)
    leave(comparison, comparison.runs[1], **measured(comparison.runs[1]))
    comparison.runs[0].status, comparison.runs[0].error = "failed", "it broke"
    text = as_text(result(comparison), 80)
    assert "3 runs are not complete" in text and "runs/steps/single/seed0: it broke" in text
    single, apex = result(comparison)["budgets"][0]["rows"]
    assert (single["completed"], single["failed"], single["solved"]) == (0, 1, None)
    assert (apex["completed"], apex["runs"], apex["solved"]) == (1, 2, 1)


# --- Real runs, of strategies that train nothing ---

INSTANT = ("compare", "--strategies", "instant,instant-too", "--output", "out", "--seconds", "1")


@pytest.mark.multiprocess
def test_a_run_that_fails_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    done = run_instantly((*INSTANT, "--seeds", "2", "--failing-seed", "0"), tmp_path)
    assert done.code == 1 and "Traceback" not in done.stderr
    assert state(done.folder) == {
        "runs/seconds/instant/seed0": "failed",
        "runs/seconds/instant-too/seed0": "failed",
        "runs/seconds/instant/seed1": "completed",
        "runs/seconds/instant-too/seed1": "completed",
    }
    assert "about 24 s (a guess" in done.stderr, "it says how long it will take"
    assert "RuntimeError: planned to fail" in done.stderr and "planned to fail" in done.stdout
    assert "2 runs are not complete" in done.stdout
    spans = [
        ((folder / "config.json").stat().st_mtime_ns, (folder / "summary.json").stat().st_mtime_ns)
        for folder in (done.folder / path for path in state(done.folder))
    ]
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "comparison.json",
        "runs",
        "table.csv",
        "table.json",
        "table.md",
    ]


def interrupt(process: subprocess.Popen[str], number: int, folder: Path) -> set[str]:
    """Interrupt a comparison and return what is complete; none of its processes may be left."""
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    process.communicate(timeout=20)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    if number == signal.SIGINT:
        assert process.returncode == 130 and not (folder / "owner.json").exists()
    comparison = load(folder)
    return {run.path.as_posix() for run in comparison.runs if (folder / run.path).exists()}


def wait_for_next_after(folder: Path, count: int) -> None:
    """Wait until some runs are complete and the next has made its folder."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        is_next_there = len(list(folder.glob("runs/*/*/*/config.json"))) > count
        if is_next_there and list(state(folder).values()).count("completed") == count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{count} runs were not complete in time")


@pytest.mark.multiprocess
@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_instantly((*INSTANT, "--seeds", "3", "--pause", "0.3"), tmp_path)
    wait_for_next_after(out, 1)
    interrupt(process, signal.SIGKILL, out)
    process = start_instantly(("compare", "--resume", "out"), tmp_path)
    wait_for_next_after(out, 3)
    before = {path: (out / path / "summary.json").stat().st_mtime_ns for path in completed(out)}
    interrupt(process, signal.SIGINT, out)
    assert (out / "table.json").exists() and "interrupted" in state(out).values()
    half = out / next(path for path, status in state(out).items() if status != "completed")
    half.mkdir(parents=True, exist_ok=True)
    (half / "summary.json").write_text('{"status": "completed", "str')
    done = run_instantly(("compare", "--resume", "out", "--json"), tmp_path)
    assert done.code == 0, done.stderr
    assert list(state(out).values()) == ["completed"] * 6 and len(completed(out)) == 6
    after = {path: (out / path / "summary.json").stat().st_mtime_ns for path in before}
    assert len(before) >= 3 and before == after
    table = json.loads(done.stdout)
    assert table == json.loads((out / "table.json").read_text())
    assert [row["completed"] for row in table["budgets"][0]["rows"]] == [3, 3]


def completed(folder: Path) -> set[str]:
    """Return the folders whose summary is whole, looked at without the code under test."""
    found = set()
    for path in folder.glob("runs/*/*/*/summary.json"):
        try:
            summary = json.loads(path.read_text())
        except ValueError:
            continue
        if summary["status"] == "completed":
            found.add(path.parent.relative_to(folder).as_posix())
    return found


def wait_for_plan(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a comparison is at work; a signal during Python's own start proves nothing."""
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if (folder / "owner.json").exists() and json.loads((folder / "owner.json").read_text())[
            "pid"
        ] == process.pid:
            return
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_twenty_interruptions_at_random_moments(number: int, tmp_path: Path) -> None:
    out, moments = tmp_path / "out", random.Random(int(number))
    small = ("--steps", "1500", "--warmup-env-steps", "300", "--output", "out", "--seeds", "3")
    names = ("--strategies", "single,instant,vector,sync")
    process = start_instantly(("compare", *names, *small), tmp_path)
    seen: set[str] = set()
    for _ in range(20):
        wait_for_plan(out, process)
        time.sleep(moments.uniform(0.0, 6.0))
        if process.poll() is None:
            interrupt(process, number, out)
        assert seen <= completed(out), "what was complete stays"
        seen = completed(out)
        process = start_instantly(("compare", "--resume", "out"), tmp_path)
    process.communicate(timeout=200)
    assert process.returncode == 0
    assert set(state(out)) == completed(out) and len(completed(out)) == 12


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_peer_stands_in_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    small = ("--steps", "3000", "--warmup-env-steps", "200", "--evaluate-every-env-steps", "1000")
    done = run_instantly(
        ("compare", "--strategies", "single", "--peers", "--seeds", "1", "--output", "out", *small),
        tmp_path,
    )
    assert done.code == 0, done.stderr
    ours, theirs = (
        json.loads((done.folder / "runs/steps" / name / "seed0/summary.json").read_text())
        for name in ("single", PEER)
    )
    assert list(ours) == list(theirs) and theirs["strategy"] == PEER
    for section in ("returns", "audit", "experience", "health", "processes"):
        assert list(ours[section]) == list(theirs[section])
    assert theirs["env_steps"] == 3_000 and theirs["status"] == "completed"
    assert theirs["replay_ratio"]["achieved"] == pytest.approx(0.25, abs=0.01)
    assert theirs["audit"]["lost_fraction"] is None and theirs["policy_lag"] is None
    assert set(theirs["processes"]["threads"]["actor_learner"].values()) == {1}
    assert theirs["returns"]["eval_episodes"] == 100 and len(theirs["returns"]["evaluations"]) >= 2
    assert f"{PEER} " in done.stdout


def test_what_a_run_said_last_is_why_it_failed(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w+b") as errors:
        errors.write(b"a warning\n" * 1_000 + b"Error: nothing is left\n\n")
        assert sequence._last_line(errors) == "nothing is left"
    assert sequence._reason(None, "", -9) == "the run's process was ended by SIGKILL"
    assert sequence._reason({"error": "Traceback\n\nValueError: x\n"}, "other", 1) == "ValueError: x"
    with pytest.raises(ConfigError, match="no use"):
        make_config("single", {"lock": True})
