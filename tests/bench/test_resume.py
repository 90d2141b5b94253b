"""Stop and go on, as a user does it: by command, by Ctrl-C, by kill -9."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from commands import Finished, start
from commands import finish as finished_command
from resume_rig import SMALL
from strategy_runs import CHOICES, FOR_STRATEGY, TRAITS, InProcess, run_here, train

from bench.resuming import claimed, resumed
from bench.runner import run
from common.acting import parameter_views
from common.config import ConfigError
from common.saved_run import FOLDER, MANIFEST, load_saved_run

RUN: dict[str, Any] = {**CHOICES, **SMALL, "steps": 1_600, "evaluate_every_env_steps": 250}
SAVED = ("--checkpoint-seconds", "0.15")
PATIENCE_SECONDS = 240  # slow tests start several commands, perhaps on a busy machine


def options(choices: dict[str, Any]) -> list[str]:
    return [
        word for name, value in choices.items() for word in (f"--{name.replace('_', '-')}", f"{value}")
    ]


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """End what a test has started and not waited for."""
    yield
    for process in _started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    _started.clear()


def finish(process: subprocess.Popen[str], folder: Path) -> Finished:
    return finished_command(process, folder, PATIENCE_SECONDS)


def started(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    _started.append(start(arguments, folder.parent))
    return _started[-1]


def begin(strategy: str, folder: Path, **choices: Any) -> subprocess.Popen[str]:
    own = {**FOR_STRATEGY.get(strategy, {}), **RUN, **choices}
    own = {name: value for name, value in own.items() if name not in TRAITS[strategy].unused_options}
    arguments = ["run", "--strategy", strategy, *options(own), *SAVED]
    return started([*arguments, "--output", str(folder), "--quiet"], folder)


def go_on(folder: Path, *more: str) -> subprocess.Popen[str]:
    return started(["run", "--resume", str(folder), "--quiet", *more], folder)


def wait_for(folder: Path, words: str, process: subprocess.Popen[str]) -> None:
    events = folder / "events.jsonl"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (events.is_file() and words in events.read_text()):
        assert time.monotonic() < deadline and process.poll() is None, "it did not happen"
        time.sleep(0.01)


def number_of(folder: Path) -> int:
    """Return the number of the last checkpoint of a run that may be going on."""
    return int(json.loads((folder / FOLDER / MANIFEST).read_text())["contents"]["number"])


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def assert_as_if_never_stopped(finished: Finished, whole: InProcess) -> None:
    assert finished.code == 0, finished.stderr
    summary = finished.summary
    state = torch.load(finished.folder / "model.pt", weights_only=True)
    for name, view in parameter_views(whole.shared.spec, whole.weights).items():
        assert state[name].numpy().tobytes() == view.tobytes(), name
    assert (summary["env_steps"], summary["updates"]) == (
        whole.telemetry.total("env_steps"),
        whole.telemetry.total("updates"),
    )
    means = [row[3] for row in summary["returns"]["evaluations"]]
    assert means == [float(np.mean(each)) for each in whole.evaluations]
    assert summary["returns"]["best_mean"] == max(means)
    evaluated = rows(finished.folder, "evaluation")
    assert [row["mean"] for row in evaluated] == means  # no row twice, none missing
    assert summary["audit"]["updates_issued"] == summary["updates"]
    assert summary["audit"]["writes_lost"] == 0 and summary["audit"]["auditable"]
    assert summary["resume"]["not_restored"] == []
    assert_own_figures(summary)


def assert_own_figures(summary: dict[str, Any]) -> None:
    """Speeds are of this part alone; clocks and counters of the whole run."""
    resume = summary["resume"]
    own_updates = summary["updates"] - resume["continued_at_updates"]
    assert summary["updates_per_second"] * summary["steady_seconds"] == pytest.approx(own_updates)
    own_env_steps = summary["env_steps"] - resume["continued_at_env_steps"]
    steady = summary["env_steps_per_second"] * summary["steady_seconds"]
    assert steady + summary["warmup_env_steps"] == pytest.approx(own_env_steps)
    assert 0 <= summary["warmup_env_steps"] < own_env_steps
    own_seconds = summary["training_seconds"] - resume["training_seconds_before"]
    assert 0 < summary["steady_seconds"] <= own_seconds + 0.01
    for activities in summary["time"]["roles"].values():
        assert sum(activities.values()) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(400)
def test_who_died_before_the_stop_is_not_forgotten(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begin("apex", out, steps=10**9)
    wait_for(out, '"kind": "evaluation"', process)
    actors = [each for each in psutil.Process(process.pid).children() if each.name() == "actor-0"]
    actors[0].kill()
    wait_for(out, '"kind": "death"', process)
    number = number_of(out)
    while number_of(out) < number + 3:  # with the successor at work
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    before = finish(process, out).summary
    number = number_of(out)
    process = go_on(out)
    while number_of(out) < number + 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    after = finish(process, out).summary
    assert after["resume"]["continued_at_env_steps"] > 0
    for summary in (before, after):
        assert [death["role"] for death in summary["processes"]["deaths"]] == ["actor"]
        assert summary["processes"]["restarts"] == 1


@pytest.mark.multiprocess
def test_a_run_goes_on_with_more_steps(folder: Path) -> None:
    before = rows(folder, "evaluation")
    name, config, saved = resumed(folder, None, {"steps": 2_000})
    summary = run(name, config, resume=saved)
    finished = Finished(0, "", summary["error"] or "", 0, folder)
    assert_as_if_never_stopped(finished, run_here("single", steps=2_000))
    assert summary == finished.summary and summary["status"] == "completed"
    assert rows(folder, "evaluation")[: len(before)] == before  # the log is continued
    again = load_saved_run(folder)
    assert again.number > saved.number and again.contents["env_steps"] > 1_900
    assert len(list((folder / FOLDER).iterdir())) == len(again.contents["files"]) + 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ctrl_c_and_resume_is_as_if_never_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = begin("single", folder)
    wait_for(folder, '"kind": "evaluation"', process)
    process.send_signal(signal.SIGINT)
    stopped = finish(process, folder)
    assert stopped.code == 130 and stopped.summary["status"] == "interrupted"
    checkpoint = stopped.summary["checkpoint"]
    assert checkpoint["error"] is None and checkpoint["folder"] == str(folder / FOLDER)
    at = checkpoint["saved_at_env_steps"]
    assert 300 <= at < 2_000 and 0 <= stopped.summary["env_steps"] - at <= 10  # its last rows, closed
    finished = finish(go_on(folder), folder)
    assert_as_if_never_stopped(finished, run_here("single", **RUN))
    assert finished.summary["resume"]["continued_at_env_steps"] == at
    (row,) = rows(folder, "resume")
    assert row["env_steps"] == at and row["seconds"] <= stopped.summary["training_seconds"] + 0.01
    assert finished.summary["run_id"] == stopped.summary["run_id"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["single", "vector", "sync", "pqn"])
def test_killed_again_and_again_it_is_as_if_never_stopped(strategy: str, tmp_path: Path) -> None:
    rng, folder = random.Random(7), tmp_path / "run"
    choices = {"steps": 6_000}
    process = begin(strategy, folder, **choices)
    killed = 0
    while killed < 4:
        manifest = folder / FOLDER / MANIFEST
        before = manifest.read_text() if manifest.exists() else ""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and (not manifest.exists() or manifest.read_text() == before):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        killed += 1
        saved = load_saved_run(folder)  # whole, whenever it was killed
        if saved.contents["ended"] is not None:
            break
        process = go_on(folder)
    finished = finish(process if process.poll() is None else go_on(folder), folder)
    assert killed >= 1
    if finished.code == 0:
        assert_as_if_never_stopped(finished, run_here(strategy, **{**RUN, **choices}))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["hogwild", "a3c", "impala", "apex"])
def test_counters_go_on_where_processes_race(strategy: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    process = begin(strategy, folder, steps=20_000, evaluate_every_env_steps=1_000)
    wait_for(folder, '"kind": "evaluation"', process)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, folder)
    assert stopped.summary["status"] == "interrupted"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    finished = finish(go_on(folder, "--output", str(other)), other)
    assert finished.code == 0, finished.stderr
    assert {path: path.read_bytes() for path in before} == before  # the first part is as it was
    summary, saved = finished.summary, load_saved_run(folder)
    assert summary["env_steps"] >= 20_000
    assert summary["resume"]["continued_at_env_steps"] == saved.contents["env_steps"]
    experience = summary["experience"]
    accounted = sum(experience[part] for part in ("stored", "dropped", "in_flight_at_end"))
    assert experience["collected"] == summary["env_steps"] == accounted
    assert summary["audit"]["updates_issued"] == summary["updates"]
    assert_own_figures(summary)
    evaluations = [row["mean"] for row in rows(other, "evaluation")]
    assert evaluations == [row[3] for row in summary["returns"]["evaluations"]] and evaluations
    assert len({row["env_steps"] for row in rows(other, "evaluation")}) == len(evaluations)
    if summary["replay_ratio"]["requested"] is not None:
        assert summary["replay_ratio"]["achieved"] == pytest.approx(0.25, rel=0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.multiprocess
def test_a_completed_run_goes_on_with_more_steps(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = finish(begin("vector", folder, steps=1_000), folder)
    assert first.code == 0 and first.summary["env_steps"] >= 1_000
    finished = finish(go_on(folder, "--steps", "1600"), folder)
    assert_as_if_never_stopped(finished, run_here("vector", **RUN))
    assert json.loads((folder / "config.json").read_text())["config"]["steps"] == 1_600
    again = finish(go_on(folder), folder)
    assert again.code == 2 and "nothing is left" in again.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["apex", "hogwild", "a3c", "impala", "sync"])
def test_a_run_with_a_replaced_worker_is_saved_and_resumed(strategy: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = begin(strategy, folder, steps=10**9, evaluate_every_env_steps=2_000)
    wait_for(folder, '"kind": "evaluation"', process)
    before = psutil.Process(process.pid).children()
    worker = max(before, key=lambda each: each.create_time())  # started last: no learner
    worker.kill()
    wait_for(folder, '"kind": "death"', process)
    number = number_of(folder)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while number_of(folder) < number + 3:  # the new one has its part in them
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, folder)
    assert stopped.summary["processes"]["restarts"] == 1
    assert stopped.summary["checkpoint"]["error"] is None
    at = stopped.summary["env_steps"]
    finished = finish(go_on(folder, "--steps", str(at + 3_000)), folder)
    assert finished.code == 0, finished.stderr
    summary = finished.summary
    assert at + 3_000 <= summary["env_steps"] <= at + 6_000
    assert summary["processes"]["restarts"] == 1, "of all parts of the run"
    experience = summary["experience"]
    accounted = sum(experience[part] for part in ("stored", "dropped", "in_flight_at_end"))
    assert experience["collected"] == summary["env_steps"] == accounted
    assert summary["audit"]["updates_issued"] == summary["updates"]
    assert summary["resume"]["not_restored"] == []


# --- What is refused, before anything is started ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the folder of a finished run."""
    return Path(shutil.copytree(train("single").folder, tmp_path / "run"))


def other_checkpoint(folder: Path) -> None:
    shutil.rmtree(folder / FOLDER)
    shutil.copytree(train("vector").folder / FOLDER, folder / FOLDER)


def other_network(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))


def flipped(folder: Path) -> None:
    path = next((folder / FOLDER).glob("run-*.npz"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


REFUSED = {
    "no folder": (shutil.rmtree, (), ("no run folder",)),
    "no checkpoint": (lambda folder: shutil.rmtree(folder / FOLDER), (), ("holds no checkpoint",)),
    "no manifest": (lambda folder: (folder / FOLDER / MANIFEST).unlink(), (), ("holds no checkpoint",)),
    "another run's": (other_checkpoint, (), ("another run", "strategy is vector", "single in")),
    "another network's": (other_network, (), ("another run", "hidden size is 32", "64 in")),
    "damaged": (flipped, (), ("is damaged", "not what was written")),
    "another strategy": (None, ("--strategy", "apex"), ("one of single, not of apex",)),
    "another option": (
        None,
        ("--learning-rate", "0.5"),
        ("learning rate 0.5 is not allowed", "has 0.003", "steps, seconds"),
    ),
    "another environment": (None, ("--env", "Acrobot-v1"), ("Acrobot-v1", "has CartPole-v1")),
    "nothing left": (None, (), ("1,600 env steps", "give more with --steps")),
    "too few steps": (None, ("--steps", "1000"), ("budget of 1,000 env steps", "--steps")),
    "too few seconds": (None, ("--seconds", "0.001"), ("0.001 s", "--seconds")),
    "a useless option": (None, ("--rho-bar", "2"), ("rho bar 2.0 is not allowed", "no such option")),
}


@pytest.mark.multiprocess
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_gone_on_with_is_refused(case: str, folder: Path, invoke: Any) -> None:
    change, arguments, expected = REFUSED[case]
    if change is not None:
        change(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = invoke("run", "--resume", str(folder), *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    for words in expected:
        assert words in result.stderr, result.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.multiprocess
def test_the_same_choices_may_be_given_again(folder: Path) -> None:
    name, config, saved = resumed(folder, "single", {"hidden_size": 32, "steps": 9_000, "seed": 0})
    assert name == "single" and config.steps == 9_000 and config.hidden_size == 32
    assert saved.contents["ended"] == "completed" and saved.contents["env_steps"] <= 1_600
    with pytest.raises(ConfigError, match="seed 1 is not allowed"):
        resumed(folder, None, {"seed": 1, "steps": 9_000})


@pytest.mark.multiprocess
def test_a_run_that_is_solved_is_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = load_saved_run(folder)
    own = {**saved.run["own"], "record": {**saved.run["own"]["record"], "solved_at": 0}}
    solved = dataclasses.replace(saved, run={**saved.run, "own": own})
    monkeypatch.setattr("bench.resuming.load_saved_run", lambda folder: solved)
    with pytest.raises(ConfigError, match="has solved CartPole-v1; to go on give --no-until-solved"):
        resumed(folder, None, {"until_solved": True, "steps": 9_000})
    assert resumed(folder, None, {"steps": 9_000})[1].steps == 9_000


@pytest.mark.multiprocess
@pytest.mark.skipif(os.name == "nt", reason="the lock is not taken there")
def test_a_run_that_goes_on_elsewhere_is_refused(folder: Path, invoke: Any) -> None:
    with claimed(folder):
        result = invoke("run", "--resume", str(folder), "--steps", "1e6", "--quiet")
    assert result.exit_code == 2 and "still going on in another process" in result.stderr
    assert load_saved_run(folder).contents["env_steps"] > 0
    with claimed(folder):  # given back
        assert json.loads((folder / "config.json").read_text())["config"]["steps"] == 1_600
