"""The same seed gives the same run, to the last bit, where one process acts at a time."""

from __future__ import annotations

import numpy as np
import pytest
from strategy_runs import TRAITS, WITH_REPLAY, run_here, train

# Where one process does all, and where all wait for each other at a barrier.
DETERMINISTIC = [
    name for name in TRAITS if TRAITS[name].single_process or "barrier" in TRAITS[name].guard
]
PRIORITIZED = [name for name in DETERMINISTIC if name in WITH_REPLAY]
SHORT = {"steps": 800, "evaluate_every_env_steps": 600}


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_spawned_run_equals_the_same_role_run_here(name: str) -> None:
    spawned, here = train(name), run_here(name)
    assert spawned.result.final_weights.tobytes() == here.weights.tobytes()
    assert [each.episode_returns for each in spawned.result.evaluations] == here.evaluations
    assert len(here.evaluations) >= 1
    assert spawned.result.env_steps == here.telemetry.total("env_steps")
    for field in ("observation", "action", "reward", "action_probability"):
        if spawned.kept is not None and here.kept is not None:
            assert spawned.kept[field].tobytes() == here.kept[field].tobytes()


def test_the_deterministic_strategies_are_these() -> None:
    assert {"single", "vector", "sync", "pqn"} <= set(DETERMINISTIC)
    assert not {"hogwild", "a3c", "impala", "apex"} & set(DETERMINISTIC)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_the_same_seed_twice_and_another_one(name: str) -> None:
    first, again = run_here(name, seed=1, **SHORT), run_here(name, seed=1, **SHORT)
    assert first.weights.tobytes() == again.weights.tobytes()
    assert first.evaluations == again.evaluations and first.evaluations
    other = run_here(name, seed=2, **SHORT)
    assert (first.weights != other.weights).mean() > 0.9
    assert first.lanes[0].observations[0].tobytes() != other.lanes[0].observations[0].tobytes()


@pytest.mark.parametrize("name", PRIORITIZED)
def test_prioritized_replay_is_deterministic_too(name: str) -> None:
    first, again = (run_here(name, prioritized=True, n_step=3, **SHORT) for _ in range(2))
    assert first.weights.tobytes() == again.weights.tobytes()
    assert np.isfinite(first.weights).all() and first.evaluations == again.evaluations


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_two_spawned_runs_are_equal(name: str) -> None:
    first, again = train(name, attempt=1, seed=3), train(name, attempt=2, seed=3)
    assert first is not again
    assert first.result.final_weights.tobytes() == again.result.final_weights.tobytes()
    assert [each.episode_returns for each in first.result.evaluations] == [
        each.episode_returns for each in again.result.evaluations
    ]
