"""`sync` against its parent, and against itself.

With one worker and a chunk of one step, `sync` does in two processes what `vector` does in one: the
same actions with the same random numbers, the same rows, the same updates in between. So the final
weights are the same bit for bit, not only nearly so.
"""

from __future__ import annotations

import numpy as np
import pytest

import strategies
from common.supervisor import RunProbe
from common.types import RunResult

SHORT = {
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


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({"seed": 1, "envs_per_worker": 8}, id="uniform"),
        pytest.param({"seed": 4, "envs_per_worker": 4, "replay_capacity": 200}, id="ring reused"),
        pytest.param(
            {"seed": 2, "envs_per_worker": 1, "n_step": 3}, id="one lane", marks=pytest.mark.slow
        ),
        pytest.param(
            {"seed": 3, "envs_per_worker": 4, "prioritized": True, "n_step": 2},
            id="prioritized",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_worker_with_chunks_of_one_step_is_vector(choices: dict[str, object]) -> None:
    vector = run("vector", **choices)
    sync = run("sync", workers=1, chunk_steps=1, **choices)

    np.testing.assert_array_equal(sync.final_weights, vector.final_weights)
    assert (sync.env_steps, sync.updates) == (vector.env_steps, vector.updates)
    assert sync.train_returns == vector.train_returns
    assert [e.episode_returns for e in sync.evaluations] == [
        e.episode_returns for e in vector.evaluations
    ]
    assert sync.updates > 100, "so few updates would prove little"


@pytest.mark.multiprocess
def test_another_seed_gives_other_weights() -> None:
    choices = {"workers": 1, "chunk_steps": 1, "steps": 500}

    one, other = run("sync", seed=1, **choices), run("sync", seed=2, **choices)

    assert one.updates > 0
    assert not np.array_equal(one.final_weights, other.final_weights)


@pytest.mark.multiprocess
@pytest.mark.parametrize("straggler", [pytest.param(None, marks=pytest.mark.slow), "1:1"])
def test_same_seed_gives_the_same_weights_whichever_worker_is_slow(straggler: str | None) -> None:
    choices = {"workers": 3, "envs_per_worker": 4, "chunk_steps": 5, "seed": 7}

    first = run("sync", **choices)
    second = run("sync", straggler=straggler, **choices)

    np.testing.assert_array_equal(first.final_weights, second.final_weights)
    assert (first.env_steps, first.updates) == (second.env_steps, second.updates)
    assert first.updates > 100


@pytest.mark.multiprocess
def test_every_transition_is_accounted_for_and_barrier_time_is_booked() -> None:
    result = run("sync", workers=2, envs_per_worker=4, chunk_steps=4, straggler="0:2")

    accounted = result.total("stored") + result.total("dropped") + result.in_flight_at_end
    assert result.env_steps == accounted
    assert result.total("dropped") == 0
    slow, fast = (
        next(role for role in result.roles if role.name == "actor" and role.worker == worker)
        for worker in (0, 1)
    )
    assert fast.activities["barrier"] > slow.activities["barrier"], "the fast one waits for the slow"
    assert slow.activities["wait"] == fast.activities["wait"] == 0
    assert SHORT["steps"] <= result.env_steps <= SHORT["steps"] + 2 * 4 * 4
