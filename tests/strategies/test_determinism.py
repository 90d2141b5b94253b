"""The same seed gives the same run, to the last bit, where one process does everything."""

from __future__ import annotations

import numpy as np
import pytest
from strategy_runs import run_here, train

DETERMINISTIC = ("single", "vector")
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
        assert spawned.buffer[field].tobytes() == here.buffer[field].tobytes()


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_the_same_seed_twice_and_another_one(name: str) -> None:
    first, again = run_here(name, seed=1, **SHORT), run_here(name, seed=1, **SHORT)
    assert first.weights.tobytes() == again.weights.tobytes()
    assert first.evaluations == again.evaluations and first.evaluations
    other = run_here(name, seed=2, **SHORT)
    assert (first.weights != other.weights).mean() > 0.9
    assert first.buffer["observation"].tobytes() != other.buffer["observation"].tobytes()


@pytest.mark.parametrize("name", DETERMINISTIC)
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
