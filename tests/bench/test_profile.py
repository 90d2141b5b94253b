"""``bench profile``: the measurements against known environments, the shares, the tables, refusals."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from badenvs import EPISODE_STEPS, SmallEnv
from commands import start
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import strategies
from bench.bare_updates import make_learner, make_update, random_batch, random_observation
from bench.ceilings import PARTS, make_acting, measure, parts_of, process_counts, quiet
from bench.device_sweep import Cell, crossover, is_faster
from bench.device_sweep import prepare as prepare_sweep
from bench.machine import cpu_in_use, usable_cores
from bench.profile import _ceiling
from bench.profile_tables import _number, show_devices, show_profile
from bench.thread_trap import prepare as prepare_work
from bench.vector_envs import ACTIONS_KEPT, compare_vector_envs, count_steps, verdict
from common.acting import NetworkSpec, network_spec
from common.config import ConfigError
from common.envs import inspect_env
from common.learner import Learner
from common.on_policy import OnPolicyLearner

SLOW_STEP_SECONDS = 0.005  # of badenvs:Slow-v0


@pytest.mark.parametrize(
    "cores, expected",
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (64, [1, 2, 4, 8, 16])],
)
def test_counts_double_up_to_the_cores(cores: int, expected: list[int]) -> None:
    assert process_counts(cores) == expected
    assert max(process_counts(cores)) <= cores


def test_a_strategy_has_the_parts_that_its_header_says() -> None:
    assert parts_of("apex") == list(PARTS)
    assert parts_of("single") == ["environment", "acting", "update", "learning"]
    assert parts_of("impala") == ["environment", "acting", "update", "publish"]
    assert parts_of("pqn") == ["environment", "acting", "update"]


@pytest.mark.multiprocess
def test_an_environment_alone_reaches_what_its_steps_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    config = strategies.load("apex").Config(env_id="badenvs:Slow-v0", envs_per_worker=2)
    one, two = (measure("apex", config, "environment", number, 0.5) for number in (1, 2))
    # Every step sleeps, so no speed of the machine can lift a process over 200 a second; an episode of
    # ten steps is followed by one that only begins the next.
    assert 40 < one <= 200 and one < two <= 400
    with pytest.raises(click.ClickException) as caught:
        broken = strategies.load("apex").Config(env_id="badenvs:StepRaises-v0", envs_per_worker=2)
        measure("apex", broken, "environment", 1, 0.5)
    assert "environment alone could not be measured" in caught.value.message
    assert "the step went wrong" in caught.value.message


def spec_of(strategy: str, **choices: Any) -> tuple[Any, NetworkSpec]:
    config = strategies.load(strategy).Config(hidden_size=16, **choices)
    return config, network_spec(config, inspect_env(config.env_id))


@pytest.mark.parametrize("strategy", strategies.STRATEGIES)
def test_the_bare_update_of_every_strategy_is_its_learners_own(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    for kind in (Learner, OnPolicyLearner):
        own = kind.__init__

        def init(self: Any, *given: Any, _own: Any = own, **named: Any) -> None:
            _own(self, *given, **named)
            made.append(self)

        monkeypatch.setattr(kind, "__init__", init)
    update = make_update(strategy, *spec_of(strategy))
    (learner,) = made
    before = learner.vector.copy()
    assert update() == 1 and learner.num_updates == 1
    assert np.isfinite(learner.vector).all() and (learner.vector != before).mean() > 0.5
    on_policy = strategy in ("impala", "pqn")
    assert isinstance(learner, OnPolicyLearner if on_policy else Learner)


def test_a_strategy_of_another_package_is_taken_to_replay() -> None:
    config, spec = spec_of("vector")
    assert make_update("of another package", config, spec)() == 1
    learner, batch = make_learner(config, spec), random_batch(spec, 32)
    assert learner.update(batch).td_error.shape == (32,) == batch.action.shape
    assert make_acting(config, spec)() == config.envs_per_worker


@pytest.mark.parametrize("dtype, most", [("<f4", np.inf), ("|u1", 99), ("|b1", 1), ("<i8", 99)])
def test_random_observations_are_of_the_environments_dtype(dtype: str, most: float) -> None:
    spec = NetworkSpec((3, 4), dtype, 2, 8, False)
    observation = random_observation(spec, 5, 6)
    assert observation.shape == (5, 6, 3, 4) and observation.dtype == np.dtype(dtype)
    assert observation.max() <= most and len(np.unique(observation)) > 1


def test_a_measurement_runs_by_time_and_evaluates_nothing() -> None:
    config = strategies.load("sync").Config(straggler="1:5", until_solved=True, steps=5_000)
    still = quiet(config, 3.0)
    assert (still.seconds, still.straggler, still.until_solved) == (3.0, "1:5", False)
    assert still.max_restarts == 0
    assert still.steps == still.evaluate_every_env_steps > 10**9
    assert quiet(config, 3.0, workers=1).straggler is None


def test_the_ceiling_is_that_of_as_many_processes_or_the_next_fewer() -> None:
    ceiling = {"by_processes": {"1": 10.0, "2": 20.0, "4": 35.0}}
    found = [_ceiling(ceiling, number) for number in (1, 2, 3, 4, 9)]
    assert found == [10.0, 20.0, 20.0, 35.0, 35.0]
    assert _ceiling({"by_processes": {"1": 5.0}}, 0) == 5.0


@pytest.mark.parametrize("work", ["acting", "update"])
def test_work_is_counted_by_the_second(work: str) -> None:
    config, _ = spec_of("vector", envs_per_worker=4, batch_size=8)
    found = prepare_work(work, "vector", json.dumps(vars(config)), 0.05)()
    assert found["per_second"] > 0 and found["threads"] >= 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_process_per_environment_loses_where_steps_are_cheap_and_wins_where_they_are_slow() -> None:
    cheap = compare_vector_envs("CartPole-v1", 0.1, num_envs=2)
    slow = compare_vector_envs("badenvs:Slow-v0", 0.2, num_envs=2)
    rates = cheap["env_steps_per_second"]
    assert rates["async"] < rates["sync"] and cheap["fastest"] != "async"
    assert "slower than SyncVectorEnv: a message to a process costs more" in verdict(cheap)
    rates = slow["env_steps_per_second"]
    assert rates["sync"] <= 1 / SLOW_STEP_SECONDS < rates["async"] <= 2 / SLOW_STEP_SECONDS
    assert slow["fastest"] == "async" and rates["own"] is None
    assert "faster than SyncVectorEnv" in verdict(slow)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_only_real_steps_are_counted_whatever_the_autoreset_mode(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([SmallEnv] * 3, autoreset_mode=mode)
    env.reset(seed=0)
    number, elapsed = count_steps(env, np.zeros((ACTIONS_KEPT, 3), dtype=np.int64), 0.02)
    assert number == sum(each.total_steps for each in env.envs) > 3 * EPISODE_STEPS
    assert elapsed >= 0.02


def test_an_environment_that_bears_no_process_still_gets_an_answer() -> None:
    found = {
        "env_steps_per_second": {"one": 5.0, "sync": 4.0, "own": None, "async": None},
        "async_refused": "cannot pickle it",
        "fastest": "one",
    }
    assert verdict(found).startswith("AsyncVectorEnv could not be measured (cannot pickle it)")
    assert "one env" in verdict(found)


CPU = [Cell(64, 32, 1.0), Cell(64, 512, 2.0), Cell(512, 32, 4.0), Cell(512, 512, 20.0)]
CPU += [Cell(2048, 32, 50.0), Cell(2048, 512)]
GPU = [Cell(64, 32, 1.5), Cell(64, 512, 2.5), Cell(512, 32, 5.0), Cell(512, 512, 6.0, 0.4)]
GPU += [Cell(2048, 32, 9.0), Cell(2048, 512, 12.0)]


def test_the_crossover_is_the_batch_from_which_on_the_device_is_faster() -> None:
    assert crossover(CPU, GPU) == {64: None, 512: 512, 2048: 32}
    assert crossover(CPU, CPU) == {64: None, 512: None, 2048: None}
    # A win at a small batch that a larger one takes back is no crossover.
    odd = [Cell(64, 32, 0.1), Cell(64, 512, 9.0)]
    assert crossover(CPU[:2], odd) == {64: None}
    assert is_faster(5.0, None) and not is_faster(None, 5.0) and not is_faster(None, None)


def test_a_sweep_measures_every_cell_that_it_can_afford(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.device_sweep.CELL_SECONDS", 0.01)
    cells = [Cell(**row) for row in prepare_sweep("CartPole-v1", "cpu", [8, 16], [4, 8])()]
    assert [(cell.width, cell.batch) for cell in cells] == [(8, 4), (8, 8), (16, 4), (16, 8)]
    for cell in cells:
        assert cell.milliseconds is not None and cell.milliseconds > 0.05
        assert cell.transfers is None and cell.master is not None and 0 < cell.master < 1
    monkeypatch.setattr("bench.device_sweep.MOST_UPDATE_SECONDS", 1e-6)
    cells = [Cell(**row) for row in prepare_sweep("CartPole-v1", "cpu", [8], [4, 8])()]
    # The first is measured, since nothing is known before it; the rest would take too long.
    assert cells[0].milliseconds is not None and cells[1].milliseconds is None


def shown_devices(accelerator: str | None) -> str:
    cpu = [vars(Cell(**{**vars(cell), "master": 0.25})) for cell in CPU]
    cells = {"cpu": cpu} if accelerator is None else {"cpu": cpu, accelerator: [vars(c) for c in GPU]}
    found = {
        "env_id": "CartPole-v1",
        "torch": "2.13.0+cpu",
        "accelerator": accelerator,
        "has_cuda_build": accelerator is not None,
        "cells": cells,
        "faster_from_batch": crossover(CPU, GPU) if accelerator else None,
    }
    out = io.StringIO()
    show_devices(found, out)
    return " ".join(out.getvalue().split())


def test_without_an_accelerator_the_table_says_so() -> None:
    text = shown_devices(None)
    assert "There is no accelerator to compare with: the installed torch 2.13.0+cpu is a build" in text
    assert "Only the CPU was measured." in text and "is faster" not in text
    assert "2048 50.00 -" in text and "A dash is an update that takes more than a second" in text


def test_with_an_accelerator_the_table_shows_transfers_and_the_crossover() -> None:
    text = shown_devices("cuda")
    assert "milliseconds per update on cuda" in text and "6.00 (40%)" in text
    assert "width 64: cuda is faster at no batch measured" in text
    assert "width 512: cuda is faster from a batch of 512 on" in text
    assert "no accelerator" not in text


PROFILE: dict[str, Any] = {
    "strategy": "apex",
    "env_id": "CartPole-v1",
    "config": {"workers": 2, "envs_per_worker": 32},
    "machine": {"usable_cores": 2},
    "cpu_in_use_before": 0.05,
    "ceilings": {
        "environment": {"unit": "env steps/s", "by_processes": {"1": 1e6, "2": 1.5e6}},
        "update": {"unit": "updates/s", "by_processes": {"1": 1234.5, "2": 2000.0}},
        "publish": {"unit": "publishes/s", "by_processes": {"1": 9e4, "2": 4e4}},
    },
    "run": {
        "env_steps_per_second": 150_000.0,
        "updates_per_second": 1_111.0,
        "of_ceiling": {"environment": 0.1, "update": 0.9},
        "time": {
            "roles": {"learner": {"update": 0.9, "wait": 0.097, "other": 0.003}},
            "verdict": "learning-bound: the actors wait 80% of their time for the learner",
            "suggestion": "a lower replay ratio (--replay-ratio 0.1)",
        },
    },
    "threads": [
        {
            "processes": processes,
            **{
                work: {
                    "one_thread": 900.0,
                    "default_threads": 900.0 / ratio,
                    "ratio": ratio,
                    "threads_by_default": 2,
                }
                for work in ("acting", "update")
            },
        }
        for processes, ratio in ((1, 1.5), (2, 30.0))
    ],
    "vector_envs": {
        "num_envs": 8,
        "env_steps_per_second": {"one": 1e5, "sync": 8e4, "own": None, "async": 1e4},
        "async_refused": None,
        "fastest": "one",
    },
}


def test_the_tables_show_what_was_found() -> None:
    out = io.StringIO()
    show_profile(PROFILE, out)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "environment env steps/s 1,000,000 1,500,000 150,000 10%" in lines
    assert "update updates/s 1,230 2,000 1,110 90%" in lines
    assert "learner update 90%, wait 10%" in lines
    assert "update 1 updates/s 900 600 1.5" in lines and "update 2 updates/s 900 30 30.0" in lines
    text = " ".join(lines)
    assert "Learning-bound: the actors wait 80%" in text and "Try a lower replay ratio" in text
    assert "AsyncVectorEnv is 8.0 times slower" in text and "there is none" in text


def test_a_busy_machine_is_said_to_be_one() -> None:
    quiet_text, busy_text = io.StringIO(), io.StringIO()
    show_profile(PROFILE, quiet_text)
    show_profile({**PROFILE, "cpu_in_use_before": 0.6}, busy_text)
    assert "Other programs used 60% of this machine" in busy_text.getvalue()
    assert "Other programs" not in quiet_text.getvalue()
    assert 0 <= cpu_in_use(0.05) <= 1


@pytest.mark.parametrize(
    "value, text", [(1234567.0, "1,230,000"), (100.0, "100"), (12.34, "12.3"), (0.5, "0.5")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert _number(value) == text
    assert len(_number(value).replace(",", "").replace(".", "").strip("0")) <= 3


REFUSED = {
    "no strategy": ((), "name one with --strategy"),
    "unknown strategy": (("--strategy", "apx"), "did you mean 'apex'"),
    "unknown env": (("--strategy", "apex", "--env", "CartPol-v1"), "did you mean CartPole-v1"),
    "workers of one process": (("--strategy", "single", "--workers", "2"), "single is one process"),
    "no time": (("--strategy", "apex", "--seconds", "0"), "seconds 0"),
    "useless option": (("--strategy", "impala", "--replay-ratio", "1"), "has no use in impala"),
    "option of a whole run": (("--strategy", "apex", "--steps", "100"), "No such option"),
    "strategy and device": (("--device", "--strategy", "apex"), "--strategy has no use with --device"),
    "option and device": (
        ("--device", "--hidden-size", "64"),
        "--hidden-size has no use with --device",
    ),
    "env and device": (("--device", "--env", "Pendulum-v1"), "Discrete"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_anything_is_measured(name: str, invoke: Any) -> None:
    arguments, expected = REFUSED[name]
    done = invoke("profile", *arguments)
    assert done.exit_code == 2 and done.stdout == ""
    assert expected in done.stderr and done.stderr.count("\n") == 1


def test_help_has_an_example_and_no_option_without_a_use(invoke: Any) -> None:
    text = invoke("profile", "--help").stdout
    assert "bench profile --strategy apex" in text and "--envs-per-worker" in text
    assert "--until-solved" not in text and "--evaluation-episodes" not in text
    with pytest.raises(ConfigError):
        strategies.load("nothing like it")


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(500)
def test_a_whole_profile_is_json_and_nothing_else(tmp_path: Path) -> None:
    arguments = [
        "profile",
        "--strategy",
        "sync",
        "--env",
        "badenvs:Prints-v0",
        "--seconds",
        "2",
        "--json",
    ]
    process = start(arguments, tmp_path)
    try:
        stdout, stderr = process.communicate(timeout=450)  # a minute where nothing else runs
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    assert set(found["ceilings"]) == set(parts_of("sync"))
    assert set(found["run"]["of_ceiling"]) == set(found["ceilings"]) - {"publish"}
    assert all(share > 0 for share in found["run"]["of_ceiling"].values())
    assert found["run"]["time"]["bottleneck"] is not None
    assert [each["processes"] for each in found["threads"]] == sorted({1, usable_cores()})
    assert all(each["update"]["ratio"] > 0 for each in found["threads"])
    assert found["vector_envs"]["env_steps_per_second"]["sync"] > 0
    assert list(tmp_path.iterdir()) == []
