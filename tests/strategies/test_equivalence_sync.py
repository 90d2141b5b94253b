"""`sync` against its parent, and against itself.

With one worker and a chunk of one step, `sync` does in two processes what `vector` does in one: the
same actions with the same random numbers, the same rows, the same updates in between. So the final
weights are the same bit for bit, not only nearly so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategy_runs import run_here

import strategies
from common.supervisor import RunProbe
from common.types import RunResult

SHORT: dict[str, Any] = {
    "steps": 700,
    "warmup_env_steps": 200,
    "replay_ratio": 0.25,
    "batch_size": 32,
    "hidden_size": 32,
    "target_update": 50.0,
    "epsilon_decay_env_steps": 500,
    "evaluate_every_env_steps": 400,
    "evaluation_min_updates": 50,
    "evaluation_episodes": 2,
}


def run(name: str, **choices: object) -> RunResult:
    strategy = strategies.load(name)
    result = strategy.train(strategy.Config.for_env("CartPole-v1", **{**SHORT, **choices}), RunProbe())
    assert result.status == "completed", result.error
    assert isinstance(result, RunResult)
    return result


CASES = pytest.mark.parametrize(
    "choices",
    [
        {"seed": 1, "envs_per_worker": 8},
        {"seed": 2, "envs_per_worker": 1, "n_step": 3},
        {"seed": 3, "envs_per_worker": 4, "prioritized": True, "n_step": 2},
        {"seed": 4, "envs_per_worker": 4, "replay_capacity": 200},
    ],
    ids=["uniform", "one lane", "prioritized", "ring reused"],
)


@CASES
def test_one_worker_with_chunks_of_one_step_is_vector(choices: dict[str, object]) -> None:
    vector = run_here("vector", **{**SHORT, **choices})
    sync = run_here("sync", **{**SHORT, "workers": 1, "chunk_steps": 1, **choices})

    np.testing.assert_array_equal(sync.weights, vector.weights)
    for counter in ("env_steps", "updates", "episodes"):
        assert sync.telemetry.total(counter) == vector.telemetry.total(counter)
    assert sync.telemetry.last_returns(100) == vector.telemetry.last_returns(100)
    assert sync.evaluations == vector.evaluations
    assert sync.telemetry.total("updates") > 100, "so few updates would prove little"


@pytest.mark.slow
@pytest.mark.multiprocess
@CASES
def test_one_worker_in_its_own_process_is_vector(choices: dict[str, object]) -> None:
    vector = run("vector", **choices)
    sync = run("sync", workers=1, chunk_steps=1, **choices)

    np.testing.assert_array_equal(sync.final_weights, vector.final_weights)
    assert (sync.env_steps, sync.updates) == (vector.env_steps, vector.updates)
    assert sync.train_returns == vector.train_returns
    assert [e.episode_returns for e in sync.evaluations] == [
        e.episode_returns for e in vector.evaluations
    ]


def test_same_seed_gives_the_same_weights_whichever_worker_is_slow() -> None:
    choices = {**SHORT, "workers": 3, "envs_per_worker": 4, "chunk_steps": 5, "seed": 7}

    first, second = run_here("sync", **choices), run_here("sync", straggler="1:1", **choices)

    np.testing.assert_array_equal(first.weights, second.weights)
    assert first.telemetry.total("env_steps") == second.telemetry.total("env_steps")
    assert first.telemetry.total("updates") == second.telemetry.total("updates") > 100


@pytest.mark.slow
@pytest.mark.multiprocess
def test_same_seed_gives_the_same_weights_in_processes_too() -> None:
    choices = {"workers": 3, "envs_per_worker": 4, "chunk_steps": 5, "seed": 7}

    first, second = run("sync", **choices), run("sync", straggler="1:1", **choices)

    np.testing.assert_array_equal(first.final_weights, second.final_weights)
    assert (first.env_steps, first.updates) == (second.env_steps, second.updates)


def test_barrier_time_is_booked() -> None:
    choices = {"workers": 2, "envs_per_worker": 4, "chunk_steps": 4, "straggler": "0:2"}
    left = run_here("sync", **{**SHORT, **choices})

    slow, fast = 1, 2  # the learner is the first role
    waited = [left.telemetry.word(role, "barrier") for role in (slow, fast)]
    assert waited[1] > waited[0], "the fast one waits for the slow"
    assert left.telemetry.word(slow, "wait") == left.telemetry.word(fast, "wait") == 0
    assert SHORT["steps"] <= left.telemetry.total("env_steps") <= SHORT["steps"] + 2 * 4 * 4
