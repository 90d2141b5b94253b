"""`impala` and `pqn` on real processes: every transition once, and the same start for all."""

from __future__ import annotations

import numpy as np
import pytest
from strategy_runs import train

import strategies
from common import distributions
from common.acting import initial_weights
from common.config import ConfigError
from common.supervisor import Shared


@pytest.mark.multiprocess
def test_impala_takes_every_row_once_and_never_drops_one() -> None:
    config, result = train("impala").config, train("impala").result
    rows = config.rollout_length * config.envs_per_worker

    assert result.total("dropped") == 0
    assert result.env_steps == result.total("stored") + result.in_flight_at_end
    # Fewer than a full queue and an unfinished trajectory per actor can be left over.
    assert 0 <= result.in_flight_at_end <= 2 * rows * 3
    learner = next(role for role in result.roles if role.name == "learner")
    actors = [role for role in result.roles if role.name == "actor"]
    assert result.updates == pytest.approx(result.total("stored") / rows, rel=0.15)
    assert learner.counters["updates"] == result.updates
    assert learner.imports_torch
    assert [role.imports_torch for role in actors] == [False, False]


@pytest.mark.multiprocess
def test_impala_counts_policy_lag_in_updates() -> None:
    result = train("impala").result

    lag = distributions.quantiles(result.histograms["policy_lag"])
    assert lag is not None and lag["p95"] > 0
    # Each of two actors is at most a queue of one and the trajectory it works on ahead.
    assert lag["p50"] <= 2 * 3


@pytest.mark.multiprocess
def test_pqn_consumes_all_it_collects() -> None:
    config, result = train("pqn").config, train("pqn").result
    updates = config.minibatches * config.epochs

    assert result.env_steps == result.total("stored") >= config.steps
    assert result.in_flight_at_end == result.total("dropped") == 0
    rollouts = -(-result.env_steps // (config.envs_per_worker * config.rollout_length))
    # Rows in which a lane moved on to its next episode are no env steps: more rollouts are needed.
    assert rollouts * updates <= result.updates <= 1.2 * rollouts * updates


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
