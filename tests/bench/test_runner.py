"""Real runs, started as a user starts them: what they leave behind, and how they end."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Finished, alive_in, finish, start
from strategy_runs import COPY_BACK, train

import strategies
from bench.display import result_text
from bench.runner import RunFolder, load_config, run
from bench.summary import RunFacts, finite, make_summary
from common.config import Config, ConfigError

pytestmark = pytest.mark.multiprocess

SMALL = ("--steps", "400", "--warmup-env-steps", "150", "--replay-ratio", "0.25")
EVALUATED = ("--evaluate-every-env-steps", "150", "--evaluation-min-updates", "50")
FEW = ("--evaluation-episodes", "3")
JSON = ("--json", "--quiet")
APEX = ("--strategy", "apex", "--workers", "1", "--envs-per-worker", "4")
SINGLE = ("--strategy", "single", *SMALL, *EVALUATED, *FEW, "--env", "badenvs:Prints-v0", *JSON)

# The runs of this file that a command starts, by name. Some at a time: most of a run's time is torch's
# start.
RUNS: dict[str, tuple[str, ...]] = {
    "reset": (*APEX, "--env", "badenvs:ResetRaises-v0", "--quiet"),
    "single": SINGLE,
    "apex": (*APEX, *SMALL, "--replay-ratio", "1", *EVALUATED, *FEW, "--tensorboard", "--json"),
    "evaluation": ("--strategy", "single", *SMALL, "--env", "badenvs:EvaluationRaises-v0", "--quiet"),
}
# Started only when a slow test asks.
SLOW_RUNS: dict[str, tuple[str, ...]] = {
    "single again": SINGLE,
    "shape": (*APEX, "--env", "badenvs:WrongShape-v0", "--quiet"),
    "step": ("--strategy", "single", "--env", "badenvs:StepRaises-v0"),
    "nan": (*APEX, "--env", "badenvs:NanObservation-v0", "--json"),
    **{
        name: ("--strategy", name, "--steps", "8000", *EVALUATED, *FEW, *JSON)
        for name in strategies.STRATEGIES
        if name not in RUNS
    },
}

# Section by section what a summary holds, in order.
FIELDS = (
    "schema strategy env_id seed status config machine versions commit wall_seconds env_steps updates "
    "env_steps_per_second updates_per_second training_seconds steady_seconds warmup_env_steps "
    "warmup_seconds replay_ratio returns audit policy_lag acting_lag "
    "gradient_staleness sample_age experience "
    "health time processes checkpoint resume run_id folder started_at error answers"
)
SECTIONS = {
    "replay_ratio": "requested achieved samples_per_insert target_copies",
    "returns": "eval_mean eval_std eval_episodes train_last_100_mean threshold solved_at_seconds "
    "solved_at_env_steps solved_after_command_seconds best_mean evaluations",
    "audit": "enabled writes_issued writes_lost lost_fraction elements elements_affected "
    "worst_element_lost damaged_updates_at_least lost_whole_at_most writes_uncertain updates_issued "
    "updates_issued_by_worker survivors_by_worker duplicates torn_reads_at_most auditable reason "
    "optimizer_state",
    "experience": "workers episode_length jain_collected jain_consumed collected stored dropped "
    "in_flight_at_end unpublished_at_most",
    "health": "q_mean q_max q_bound td_error grad_norm dormant_fraction effective_rank churn "
    "weight_norm most_sampled action_entropy q_bias weight_norm_growth alarms",
    "time": "roles processes bottleneck verdict suggestion",
    "processes": "workers restarts deaths peak_rss_mib start_seconds threads imports_torch device "
    "shared_mib supervisor_rss_mib evaluator_rss_mib cpu_seconds cpu_utilisation",
    "checkpoint": "folder size_mib replay saved_at_env_steps saves longest_hold_seconds "
    "longest_save_seconds error",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Finished]]:
    """Yield a function that waits for one of ``RUNS`` or ``SLOW_RUNS`` and returns it."""
    folder = tmp_path_factory.mktemp("runs")

    def one(name: str, arguments: tuple[str, ...]) -> Finished:
        output = folder / name.replace(" ", "-")
        arguments = ("run", *arguments, "--output", str(output), "--seed", "3")
        return finish(start(arguments, folder, {"OMP_NUM_THREADS": "8"}), output)

    with ThreadPoolExecutor(3) as pool:
        futures: dict[str, Future[Finished]] = {
            name: pool.submit(one, name, arguments) for name, arguments in RUNS.items()
        }

        def get(name: str) -> Finished:
            if name not in futures:
                futures[name] = pool.submit(one, name, SLOW_RUNS[name])
            return futures[name].result()

        yield get


def run_of_strategy(name: str) -> Finished:
    """Return the run that the tests of strategies look at too, as if a command had made it."""
    done = train(name)
    return Finished(0, json.dumps(done.summary), "", 0, done.folder)


@pytest.fixture(
    params=[
        *strategies.STRATEGIES,
        *(f"bench run {name}" for name in RUNS if name in strategies.STRATEGIES),
        *(
            pytest.param(f"bench run {name}", marks=pytest.mark.slow)
            for name in SLOW_RUNS
            if name in strategies.STRATEGIES
        ),
    ]
)
def finished(request: pytest.FixtureRequest) -> Finished:
    """A completed run of every strategy, in the test's own process and by command."""
    name = request.param.split()[-1]
    if name == request.param:
        return run_of_strategy(name)
    get: Callable[[str], Finished] = request.getfixturevalue("runs")
    return get(name)


@functools.cache
def parsed(text: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return dict(json.loads(text, parse_constant=refuse))


def test_summary_has_every_field(finished: Finished) -> None:
    assert finished.code == 0, finished.stderr
    summary = parsed(finished.stdout)
    assert list(summary) == FIELDS.split()
    for section, fields in SECTIONS.items():
        assert list(summary[section]) == fields.split(), section
    assert summary == finished.summary
    assert (summary["schema"], summary["status"]) == (1, "completed")
    assert summary["error"] is None and summary["wall_seconds"] > summary["training_seconds"]


def test_summary_adds_up(finished: Finished) -> None:
    summary = parsed(finished.stdout)
    experience = summary["experience"]
    accounted = sum(experience[part] for part in ("stored", "dropped", "in_flight_at_end"))
    assert experience["collected"] == summary["env_steps"] == accounted
    workers = experience["workers"]
    assert sum(worker["env_steps"] for worker in workers) == summary["env_steps"]
    assert sum(worker["share_collected"] for worker in workers) == pytest.approx(1)
    shares = np.array([worker["share_collected"] for worker in workers])
    assert experience["jain_collected"] == pytest.approx(1 / len(shares) / (shares**2).sum())
    for activities in summary["time"]["roles"].values():
        assert sum(activities.values()) == pytest.approx(1)
    unused = strategies.traits_of(summary["strategy"]).unused_options
    warmup = 0 if "warmup_env_steps" in unused else summary["config"]["warmup_env_steps"]
    learned = summary["env_steps"] - warmup
    assert summary["replay_ratio"]["achieved"] == pytest.approx(summary["updates"] / learned)


def test_summary_says_what_the_audit_counted(finished: Finished) -> None:
    summary = parsed(finished.stdout)
    audit, (name, config) = summary["audit"], load_config(finished.folder)
    assert audit["enabled"] and audit["auditable"] and audit["reason"] is None
    assert audit["updates_issued"] == summary["updates"] > 0
    assert audit["writes_issued"] == summary["updates"] * audit["elements"]
    assert audit["lost_fraction"] == audit["writes_lost"] / audit["writes_issued"]
    assert strategies.traits_of(name, config).can_lose_updates or audit["writes_lost"] == 0
    assert f"{audit['writes_lost']:,} of {audit['writes_issued']:,}" in result_text(summary)


def test_summary_counts_what_was_lost() -> None:
    done = train("hogwild", **COPY_BACK)
    audit = done.summary["audit"]
    assert audit == done.result.audit and 0 < audit["writes_lost"] < audit["writes_issued"]
    assert f"({audit['lost_fraction']:.2g})" in result_text(done.summary)


def test_summary_says_why_nothing_was_counted() -> None:
    done = train("single")
    facts = RunFacts("a", done.folder, "now", 1.0, 475.0, 1.0, {}, {}, None)
    early = dataclasses.replace(done.result, audit=None, updates=0)
    audit = make_summary("single", done.config, early, facts)["audit"]
    assert list(audit) == SECTIONS["audit"].split()
    assert audit["writes_lost"] is None and not audit["auditable"]
    assert audit["reason"] == "no update was made"


def test_run_folder_is_complete(finished: Finished) -> None:
    files = {"config.json", "summary.json", "events.jsonl", "model.pt", "best.pt", "checkpoint"}
    files |= {"timeline.json", "timeline.trace.json"}
    extra = {"tensorboard"} if finished.folder.name == "apex" else set()
    if finished.summary["audit"]["writes_lost"]:
        extra.add("lost_writes.npz")
    assert {path.name for path in finished.folder.iterdir()} == files | extra
    for model in ("model.pt", "best.pt"):
        state = torch.load(finished.folder / model, weights_only=True)
        assert all(
            tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in state.values()
        )
    strategy, config = load_config(finished.folder)
    assert strategy == finished.summary["strategy"]
    assert finite(vars(config)) == finished.summary["config"]


def test_events_are_those_of_the_summary(finished: Finished) -> None:
    rows = [parsed(line) for line in (finished.folder / "events.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    seen = [[row[key] for key in ("env_steps", "updates", "seconds", "mean")] for row in evaluations]
    assert seen == finished.summary["returns"]["evaluations"] and seen
    progress = [row for row in rows if row["kind"] == "progress"]
    assert progress and all(row["env_steps"] <= finished.summary["env_steps"] for row in progress)
    assert len(progress) <= finished.summary["wall_seconds"] + 1


def test_one_thread_per_library_whatever_the_user_set(finished: Finished) -> None:
    processes = finished.summary["processes"]
    for threads in processes["threads"].values():
        assert threads and set(threads.values()) == {1}
    learns = {role: role != "actor" for role in processes["threads"]}
    assert processes["imports_torch"] == learns
    assert all(mib > 1 for mib in processes["peak_rss_mib"].values())


@pytest.mark.slow
def test_same_seed_same_returns(runs: Callable[[str], Finished]) -> None:
    first, second = (runs(name).summary for name in ("single", "single again"))
    for summary in (first, second):
        returns = summary["returns"]
        returns["evaluations"] = [[row[0], row[1], row[3]] for row in returns["evaluations"]]
        del returns["solved_at_seconds"], returns["solved_after_command_seconds"]
    assert first["returns"] == second["returns"]
    assert (first["env_steps"], first["updates"]) == (second["env_steps"], second["updates"])
    assert first["run_id"] != second["run_id"] or first["folder"] != second["folder"]


def test_printing_environment_leaves_stdout_alone(runs: Callable[[str], Finished]) -> None:
    finished = runs("single")
    assert finished.stdout.startswith("{") and parsed(finished.stdout)["env_id"] == "badenvs:Prints-v0"
    assert "reset an environment" in finished.stderr and "said in C" in finished.stderr


def test_progress_goes_to_standard_error(runs: Callable[[str], Finished]) -> None:
    finished = runs("apex")
    assert finished.stdout.startswith("{")
    assert "apex on CartPole-v1, seed 3" in finished.stderr
    assert "mean return" in finished.stderr and "\x1b" not in finished.stderr


def test_tensorboard_has_the_scalars(runs: Callable[[str], Finished]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    finished = runs("apex")
    events = EventAccumulator(str(finished.folder / "tensorboard"))
    events.Reload()
    evaluated = [(event.step, event.value) for event in events.Scalars("returns/eval_mean")]
    expected = [(row[0], row[3]) for row in finished.summary["returns"]["evaluations"]]
    assert [step for step, _ in evaluated] == [step for step, _ in expected]
    assert np.allclose([value for _, value in evaluated], [value for _, value in expected])


FAILURES = {
    "reset": "the reset went wrong",
    "step": "the step went wrong",
    "nan": "an observation that is not finite",
    "shape": "shape",
    "evaluation": "the evaluation's step went wrong",
}


@pytest.mark.parametrize(
    "name",
    [name if name in RUNS else pytest.param(name, marks=pytest.mark.slow) for name in FAILURES],
)
def test_misbehaving_environment_fails_the_run(name: str, runs: Callable[[str], Finished]) -> None:
    finished = runs(name)
    summary = finished.summary
    assert finished.code == 1 and summary["status"] == "failed"
    # Reported each time, and at the end once more as what ended the run.
    deaths = summary["processes"]["deaths"]
    assert FAILURES[name] in summary["error"] and summary["error"].count("Traceback") == 1
    assert (
        all(FAILURES[name] in death["reason"] for death in deaths) and FAILURES[name] in finished.stderr
    )
    can_restart = name not in ("step",)
    assert (
        len(deaths) == (4 if can_restart else 1) and summary["processes"]["restarts"] == len(deaths) - 1
    )
    assert list(summary) == FIELDS.split() and (finished.folder / "model.pt").is_file()
    assert alive_in(finished.group) == []


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def heard(folder: Path, words: str) -> bool:
    events = folder / "events.jsonl"
    return events.is_file() and words in events.read_text()


@pytest.mark.parametrize("moment", ["starting", "training"])
def test_interrupt_ends_a_run_within_3_seconds(
    moment: str, tmp_path: Path, runs: Callable[[str], Finished]
) -> None:
    for name in RUNS:
        runs(name)  # so that nothing else runs now
    folder = tmp_path / "run"
    shared_before = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    arguments = ["run", *APEX, "--steps", "1e9", "--output", str(folder), "--warmup-env-steps", "0"]
    process = start([*arguments, "--evaluate-every-env-steps", "2000"], tmp_path)
    words = '"kind": "evaluation"' if moment == "training" else '"kind": "progress"'
    wait_until(lambda: heard(folder, words))
    os.killpg(process.pid, signal.SIGINT)
    interrupted_at = time.monotonic()
    finished = finish(process, folder)
    assert time.monotonic() - interrupted_at < 3
    assert finished.code == 130 and finished.summary["status"] == "interrupted"
    assert "Traceback" not in finished.stderr and finished.summary["error"] is None
    assert torch.load(folder / "model.pt", weights_only=True)
    checkpoint = finished.summary["checkpoint"]
    assert checkpoint["error"] is None and (checkpoint["saves"] == 1) == (moment == "training")
    assert alive_in(finished.group) == []
    if shared_before:
        assert set(os.listdir("/dev/shm")) <= shared_before


def test_interrupt_before_anything_is_started(tmp_path: Path) -> None:
    arguments = ["run", "--strategy", "single", "--env", "badenvs:ConstructorWaits-v0"]
    process = start(arguments, tmp_path)
    assert process.stderr is not None and process.stderr.readline() == "waiting\n"
    os.killpg(process.pid, signal.SIGINT)
    finished = finish(process, tmp_path)
    assert finished.code == 130 and finished.stderr.strip() == "interrupted"
    assert list(tmp_path.iterdir()) == [] and alive_in(finished.group) == []


def test_saved_policy_is_played(invoke: Any, tmp_path: Path) -> None:
    folder = run_of_strategy("vector").folder
    played = [invoke("evaluate", str(folder), "--episodes", "4", "--json").stdout for _ in range(2)]
    assert played[0] == played[1]
    result = parsed(played[0])
    assert result["min"] <= result["mean"] <= result["max"] and result["episodes"] == 4
    text = invoke("evaluate", str(folder), "--best", "--episodes", "2", "--gif", "one.gif")
    assert text.exit_code == 0 and "mean return" in text.stdout
    assert (tmp_path / "one.gif").read_bytes().startswith(b"GIF89a")


def test_environment_without_pictures_is_said(
    runs: Callable[[str], Finished], invoke: Any, tmp_path: Path
) -> None:
    folder = runs("single").folder
    result = invoke("evaluate", str(folder), "--episodes", "1", "--gif", "one.gif")
    assert result.exit_code == 2 and "cannot be drawn" in result.stderr
    assert not (tmp_path / "one.gif").exists()


def test_toolkit_fault_still_leaves_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: Config, probe: Any) -> None:
        raise ZeroDivisionError("a fault")

    module = strategies.load("single")
    monkeypatch.setattr(module, "train", broken)
    summary = run("single", module.Config.for_env("CartPole-v1"), tmp_path / "run")
    assert summary["status"] == "failed" and "ZeroDivisionError: a fault" in summary["error"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


@pytest.mark.parametrize("error", [ConfigError("no"), KeyboardInterrupt()])
def test_run_that_did_not_start_leaves_no_folder(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(config: Config, probe: Any) -> None:
        raise error

    module = strategies.load("single")
    monkeypatch.setattr(module, "train", refused)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(type(error)):
        run("single", module.Config.for_env("CartPole-v1"), tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before


def test_run_ids_are_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = strategies.load("single").Config.for_env("CartPole-v1", seed=7)
    folders = [RunFolder("single", config) for _ in range(3)]
    assert len({folder.run_id for folder in folders}) == 3
    assert all(folder.path == Path("runs") / folder.run_id for folder in folders)
    assert all("single-CartPole-v1-seed7" in folder.run_id for folder in folders)


def test_numbers_that_json_lacks_become_null() -> None:
    value = {"a": [math.nan, 1.0, {"b": math.inf}], "c": (True, None, "nan")}
    assert finite(value) == {"a": [None, 1.0, {"b": None}], "c": [True, None, "nan"]}
    assert json.dumps(finite(value), allow_nan=False)
