"""`impala` and `pqn` on real processes: every transition once, and the same start for all."""

from __future__ import annotations

import numpy as np
import pytest

import strategies
from common.acting import initial_weights
from common.config import ConfigError
from common.supervisor import RunProbe, Shared
from common.types import RunResult

SHORT = {"steps": 1_500, "hidden_size": 32, "evaluate_every_env_steps": 1_000_000}


def run(name: str, **choices: object) -> RunResult:
    strategy = strategies.load(name)
    result = strategy.train(strategy.Config.for_env("CartPole-v1", **{**SHORT, **choices}), RunProbe())
    assert result.status == "completed", result.error
    assert isinstance(result, RunResult)
    return result


@pytest.mark.multiprocess
def test_impala_takes_every_row_once_and_never_drops_one() -> None:
    result = run("impala", workers=2, envs_per_worker=4, rollout_length=8)

    assert result.total("dropped") == 0
    assert result.env_steps == result.total("stored") + result.in_flight_at_end
    # Fewer than a full queue and an unfinished trajectory per actor can be left over.
    assert 0 <= result.in_flight_at_end <= 2 * 4 * 8 * 3
    learner = next(role for role in result.roles if role.name == "learner")
    actors = [role for role in result.roles if role.name == "actor"]
    assert result.updates == pytest.approx(result.total("stored") / (4 * 8), rel=0.15)
    assert learner.counters["updates"] == result.updates
    assert learner.imports_torch
    assert [role.imports_torch for role in actors] == [False, False]
    assert result.audit is not None
    assert result.audit["writes_lost"] == 0


@pytest.mark.multiprocess
def test_impala_counts_policy_lag_in_updates() -> None:
    result = run("impala", workers=2, envs_per_worker=4, rollout_length=8)

    mean_lag = result.total("lag_sum") / result.total("stored")
    assert mean_lag > 0
    # Each of two actors is at most a queue of one and the trajectory it works on ahead.
    assert mean_lag <= 2 * 3


@pytest.mark.multiprocess
def test_pqn_consumes_all_it_collects_and_the_same_seed_gives_the_same_weights() -> None:
    choices = {"envs_per_worker": 8, "rollout_length": 16, "minibatches": 4, "epochs": 2, "seed": 3}

    first, second = run("pqn", **choices), run("pqn", **choices)

    np.testing.assert_array_equal(first.final_weights, second.final_weights)
    assert first.env_steps == first.total("stored") >= SHORT["steps"]
    assert first.in_flight_at_end == first.total("dropped") == 0
    rollouts = -(-first.env_steps // (8 * 16))
    assert first.updates == pytest.approx(rollouts * 4 * 2, abs=2 * 4 * 2)


@pytest.mark.parametrize("name", strategies.STRATEGIES)
def test_all_start_from_the_same_weights(name: str) -> None:
    config = strategies.load(name).Config.for_env("CartPole-v1", seed=11, layer_norm=False)
    baseline = strategies.load("single").Config.for_env("CartPole-v1", seed=11)

    shared, expected = Shared(config), Shared(baseline)

    np.testing.assert_array_equal(shared.weights.latest()[0], expected.weights.latest()[0])
    np.testing.assert_array_equal(expected.weights.latest()[0], initial_weights(expected.spec, 11))


def test_impala_refuses_a_trace_clipped_above_the_error() -> None:
    config = strategies.load("impala").Config
    with pytest.raises(ConfigError, match="c bar"):
        config(rho_bar=0.5, c_bar=0.9)
    assert config(rho_bar=2.0, c_bar=2.0).rho_bar == 2.0
