"""What every run measures of itself, in every strategy, against truths planted in the run."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from strategy_runs import TRAITS, WITH_ACTORS, WITH_REPLAY, run_here, train

from common import distributions
from common.telemetry import HEALTH, WORD

MANY_WRITERS = [name for name in TRAITS if TRAITS[name].can_lose_updates]


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", TRAITS)
def test_all_time_is_booked(name: str) -> None:
    summary = train(name).summary
    for fractions in summary["time"]["processes"].values():
        assert abs(fractions["other"]) <= 0.02
        assert sum(fractions.values()) == pytest.approx(1.0)
    assert set(summary["time"]["roles"]) == set(TRAITS[name].roles)


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", TRAITS)
def test_every_run_has_a_sample_of_its_health_and_its_six_answers(name: str) -> None:
    run = train(name)
    health = run.summary["health"]
    for field in ("q_mean", "q_max", "td_error", "grad_norm", "dormant_fraction", "weight_norm"):
        assert isinstance(health[field], float) and np.isfinite(health[field])
    assert health["q_bound"] == pytest.approx(100.0)  # CartPole pays 1, gamma is 0.99
    assert health["alarms"] == [] and 0 < health["dormant_fraction"] < 0.95
    assert (health["most_sampled"] is not None) == (name in WITH_REPLAY)
    assert 0 < health["action_entropy"] <= np.log(2) + 0.5
    assert len(run.summary["answers"]) == 6 and set(run.result.health[-1]) == set(HEALTH)


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", TRAITS)
def test_lag_staleness_and_age_are_measured_where_they_exist(name: str) -> None:
    summary = train(name).summary
    assert (summary["sample_age"] is not None) == (name in WITH_REPLAY)
    assert (summary["acting_lag"] is not None) == (name in WITH_ACTORS)
    assert (summary["gradient_staleness"] is not None) == (name in MANY_WRITERS)
    assert (summary["policy_lag"] is not None) == (name != "a3c")
    for block in (summary["policy_lag"], summary["sample_age"], summary["gradient_staleness"]):
        assert block is None or 0 <= block["p50"] <= block["p95"] <= block["max"]
    if name == "sync":
        assert summary["acting_lag"]["max"] == 0  # the barrier's whole point


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", TRAITS)
def test_shares_add_up(name: str) -> None:
    summary = train(name).summary
    experience = summary["experience"]
    for share in ("share_collected", "share_consumed"):
        assert sum(worker[share] for worker in experience["workers"]) == pytest.approx(1.0)
        assert sum(row[share] for row in experience["episode_length"]) == pytest.approx(1.0)
    edges = [(row["from"], row["to"]) for row in experience["episode_length"]]
    assert all(start <= end for start, end in edges)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(edges))
    batch = summary["config"]["batch_size"]
    per_insert = summary["replay_ratio"]["samples_per_insert"]
    if name in WITH_REPLAY:
        assert per_insert == pytest.approx(summary["updates"] * batch / experience["stored"])
    else:
        assert per_insert == summary["config"].get("epochs", 1)


@pytest.mark.parametrize("name", ["sync", "impala", "single", "vector", "apex", "pqn"])
def test_reads_can_not_be_torn_where_one_process_writes(name: str) -> None:
    assert train(name).summary["audit"]["torn_reads_at_most"] == 0
    assert not TRAITS[name].can_lose_updates


@pytest.mark.parametrize("name", WITH_ACTORS)
def test_a_straggler_shows_as_its_known_fraction(name: str) -> None:
    delay = 0.004
    choices: dict[str, Any] = {"workers": 2, "envs_per_worker": 2, "steps": 1_600}
    left = run_here(name, straggler=f"1:{delay * 1000:g}", **choices)
    words = left.telemetry.arrays["words"]
    slow, fast = words[2], words[1]  # process 0 is the learner
    (slowed,) = [lanes for lanes in left.lanes if lanes.lanes._delay_seconds]
    vector_steps = len(slowed.actions)
    env_step_seconds = slow[WORD["env_step"]] / 1e9
    wall_seconds = (slow[WORD["finished_ns"]] - slow[WORD["started_ns"]]) / 1e9
    assert env_step_seconds >= vector_steps * delay
    share = env_step_seconds / (wall_seconds - slow[WORD["evaluation"]] / 1e9)
    assert share >= vector_steps * delay / wall_seconds
    own = fast[WORD["env_step"]] / max(1, fast[WORD["env_steps"]])
    assert slow[WORD["env_step"]] / slow[WORD["env_steps"]] > 2 * own


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "name", ["single", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hogwild", "impala"))]
)
def test_a_run_into_nan_fails_with_its_reason_and_keeps_finite_weights(name: str) -> None:
    summary = train(name, learning_rate=1e38, learning_rate_end=None, audit=False).summary
    assert summary["status"] == "failed" and "NaN or infinite" in summary["error"]
    assert "Traceback" not in summary["error"]
    (alarm,) = [each for each in summary["health"]["alarms"] if each["name"] == "not finite"]
    assert alarm["value"] is None and "--learning-rate" in alarm["remedy"]
    weights = train(name, learning_rate=1e38, learning_rate_end=None, audit=False).result.final_weights
    assert np.isfinite(weights).all()


def test_instruments_off_measure_nothing_and_change_nothing() -> None:
    off, on = run_here("single", instruments=False), run_here("single")
    assert np.array_equal(off.weights, on.weights)
    assert off.telemetry.word(0, "health_samples") == 0 < on.telemetry.word(0, "health_samples")
    assert distributions.quantiles(off.telemetry.histogram("policy_lag")) is None
    assert distributions.quantiles(on.telemetry.histogram("policy_lag")) is not None
    assert sum(off.telemetry.consumed_by_worker()) == 0 < sum(on.telemetry.consumed_by_worker())


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("target_update", [0.2, 1.0])
def test_a_target_that_follows_at_once_diverges_and_is_named_long_before_it_overflows(
    target_update: float,
) -> None:
    learner = {"batch_size": 32, "hidden_size": 128, "n_step": 1, "double": False}
    pace = {"replay_ratio": 4.0, "warmup_env_steps": 1_000, "steps": 1_300}
    run = train("single", target_update=target_update, **learner, **pace)
    first = run.summary["health"]["alarms"][0]
    assert first["name"] == "divergence" and first["at_env_steps"] - 1_000 <= 150
    assert run.summary["status"] == "completed" and first["value"] < 1e4 * first["limit"]
