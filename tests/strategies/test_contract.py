"""What every strategy keeps, looked at in the shared memory that a real run leaves behind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from strategy_runs import Run, config_of, run_here, train

import strategies
from common.acting import initial_weights
from common.experience import ExperienceBuffer
from common.supervisor import RunProbe
from common.types import Traits

pytestmark = pytest.mark.multiprocess

every_strategy = pytest.mark.parametrize("name", strategies.STRATEGIES)
WITH_ACTORS = [name for name in strategies.STRATEGIES if "actor" in strategies.load(name).TRAITS.roles]


@pytest.fixture(params=strategies.STRATEGIES)
def run(request: pytest.FixtureRequest) -> Run:
    return train(request.param)


def traits_of(run: Run) -> Traits:
    traits: Traits = strategies.load(type(run.config).__module__.split(".")[-1]).TRAITS
    return traits


def collected(buffer: ExperienceBuffer) -> list[int]:
    """Count the env steps of each worker from the rows themselves, when none was overwritten."""
    number = []
    for worker in range(buffer.num_workers):
        rows = buffer.published(worker)
        assert rows < buffer.num_rows
        number.append(int(buffer["valid"][worker, :rows].sum()))
    return number


def overshoot(config: Any) -> int:
    return int((config.chunk_steps + config.n_step) * config.num_lanes)


def test_the_run_stops_at_its_env_steps(run: Run) -> None:
    assert (run.result.status, run.result.error) == ("completed", None)
    assert run.config.steps <= run.result.env_steps <= run.config.steps + overshoot(run.config)
    assert run.result.train_returns and all(value >= 1 for value in run.result.train_returns)


def test_every_transition_is_accounted_for(run: Run) -> None:
    result = run.result
    by_worker = collected(run.buffer)
    counted = [role.counters["env_steps"] for role in result.roles if role.name != "learner"]
    assert counted == by_worker and result.env_steps == sum(by_worker)
    assert result.total("dropped") == 0
    assert result.env_steps == result.total("stored") + result.in_flight_at_end
    # What was published after the learner last looked, before its next update was owed.
    last_look = math.ceil(1 / float(run.config.replay_ratio))
    assert 0 <= result.in_flight_at_end <= overshoot(run.config) + last_look


def test_episodes_end_where_the_rows_say_so(run: Run) -> None:
    rows = [range(run.buffer.published(worker)) for worker in range(run.buffer.num_workers)]
    ended = sum(
        int((run.buffer["terminated"][w, r] | run.buffer["truncated"][w, r]).sum())
        for w, r in enumerate(rows)
    )
    # The closing row cuts each lane's last episode: that one is not finished.
    finished = run.result.total("episodes")
    assert finished > 20 and finished <= ended <= finished + 2 * run.config.num_lanes


def test_the_replay_ratio_is_held(run: Run) -> None:
    result, config = run.result, run.config
    owed = config.owed_updates(result.env_steps)
    most = 2 * config.num_lanes * config.chunk_steps * float(config.replay_ratio) + 1
    assert result.updates <= owed and owed - result.updates <= most + overshoot(config) * 0.25
    achieved = result.steady_updates / result.steady_env_steps
    slack = (most + overshoot(config) * 0.25) / result.steady_updates
    assert achieved == pytest.approx(0.25, rel=max(0.05, slack))
    assert result.steady_updates == result.updates > 200
    assert result.steady_seconds is not None and 0 < result.steady_seconds <= result.training_seconds


def test_target_copies_are_the_whole_intervals(run: Run) -> None:
    assert run.result.total("target_copies") == math.floor(run.result.updates / 40)
    assert run.result.total("target_copies") >= 6


def test_every_strategy_begins_with_the_same_weights(run: Run) -> None:
    expected = initial_weights(run.shared.spec, run.config.seed)
    assert run.initial_weights.tobytes() == expected.tobytes()
    assert run.initial_weights.tobytes() == train("single").initial_weights.tobytes()


def test_the_weights_move_and_stay_finite(run: Run) -> None:
    final = run.result.final_weights
    assert np.isfinite(final).all() and np.isfinite(run.result.best_weights).all()
    assert (final != run.initial_weights).mean() > 0.5
    assert np.abs(final - run.initial_weights).max() > 0.01
    assert (final == run.shared.weights.latest()[0]).all()


def test_roles_are_those_of_the_traits_with_one_thread_each(run: Run) -> None:
    traits, reports = traits_of(run), run.result.roles
    assert {role.name for role in reports} == set(traits.roles)
    assert {role.function.__name__ for role in run.roles} == set(traits.roles)
    stepping = [role.worker for role in reports if role.name != "learner"]
    assert sorted(stepping) == list(range(run.config.workers))
    for role in reports:
        assert role.threads and set(role.threads.values()) == {1}
        assert role.imports_torch is (role.name != "actor")
        assert role.counters["updates"] == 0 or role.name != "actor"
        assert role.counters["env_steps"] == 0 or role.name != "learner"
        assert role.peak_rss_mib < (80 if role.name == "actor" else 1_000)


def test_evaluations_follow_the_schedule(run: Run) -> None:
    result, config = run.result, run.config
    assert 1 <= len(result.evaluations) <= 2
    for i, evaluation in enumerate(result.evaluations, start=1):
        assert len(evaluation.episode_returns) == 5
        assert evaluation.env_steps >= 800 * i and evaluation.updates >= 50 * i
        assert 0 < evaluation.training_seconds < evaluation.command_seconds
        assert config.owed_updates(evaluation.env_steps) >= evaluation.updates
    assert result.best_mean == max(each.mean for each in result.evaluations)
    assert result.final_evaluation is not None
    assert len(result.final_evaluation.episode_returns) == 100


def test_no_two_lanes_live_the_same_life(run: Run) -> None:
    buffer, lanes = run.buffer, run.config.num_lanes
    rows = min(buffer.published(worker) for worker in range(buffer.num_workers))
    lives = [
        buffer["observation"][worker, : min(rows, 8), lane].tobytes()
        for worker in range(buffer.num_workers)
        for lane in range(buffer.num_lanes)
    ]
    assert len(lives) == lanes and len(set(lives)) == lanes
    actions = {buffer["action"][w, : min(rows, 60)].tobytes() for w in range(buffer.num_workers)}
    assert len(actions) == buffer.num_workers


def test_stamped_versions_never_go_back_nor_ahead_of_the_learner(run: Run) -> None:
    newest = 0
    for worker in range(run.buffer.num_workers):
        stamps = run.buffer["weights_version"][worker, : run.buffer.published(worker)]
        assert (np.diff(stamps) >= 0).all() and stamps[0] == 0
        newest = max(newest, int(stamps[-1]))
    assert 0.5 * run.result.updates < newest <= run.result.updates + 1
    mean_lag = run.result.total("lag_sum") / (run.result.updates * run.config.batch_size)
    assert 0 <= mean_lag <= run.result.updates
    assert (mean_lag > 0) == ("actor" in traits_of(run).roles)


@pytest.mark.parametrize("ratio, steps, lanes", [(0.05, 2_600, 2), (1.0, 1_000, 1)])
@pytest.mark.parametrize("name", WITH_ACTORS)
def test_actors_and_learner_hold_other_ratios_too(
    name: str, ratio: float, steps: int, lanes: int
) -> None:
    # Few lanes, short chunks and windows: the updates for the last of them are never made.
    chunk = {"envs_per_worker": lanes, "chunk_steps": 2, "n_step": 1}
    left = run_here(name, replay_ratio=ratio, steps=steps, evaluate_every_env_steps=10**9, **chunk)
    updates, env_steps = left.telemetry.total("updates"), left.telemetry.total("env_steps")
    assert steps <= env_steps <= steps + overshoot(left.config)
    assert updates / (env_steps - 400) == pytest.approx(ratio, rel=0.05)
    assert left.telemetry.total("dropped") == 0 and updates > 100


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("name", strategies.STRATEGIES)
def test_a_warm_up_shorter_than_a_batch_blocks_nobody(name: str, warmup: int) -> None:
    left = run_here(
        name, warmup_env_steps=warmup, steps=300, batch_size=128, replay_ratio=1.0, chunk_steps=1
    )
    owed = left.telemetry.total("env_steps") - warmup
    assert 300 <= left.telemetry.total("env_steps") <= 300 + overshoot(left.config)
    assert owed - left.telemetry.total("updates") <= 4 * left.config.num_lanes * 3


@every_strategy
def test_the_step_size_follows_the_global_clock(name: str) -> None:
    choices = {"steps": 600, "learning_rate": 0.01, "learning_rate_end": 1e-12}
    before = run_here(name, learning_rate_decay_env_steps=100, **choices)  # over within the warm-up
    during = run_here(name, learning_rate_decay_env_steps=10_000, **choices)
    expected = initial_weights(train(name).shared.spec, 0)
    assert before.telemetry.total("updates") > 20
    assert np.abs(before.weights - expected).max() < 1e-6
    assert np.abs(during.weights - expected).max() > 0.01


@pytest.mark.slow
@every_strategy
def test_the_run_stops_at_its_seconds(name: str) -> None:
    config = config_of(name, steps=10**9, seconds=1.0)
    result = strategies.load(name).train(config, RunProbe())
    assert (result.status, result.error) == ("completed", None)
    assert 1.0 <= result.training_seconds < 1.5
    assert result.env_steps == sum(role.counters["env_steps"] for role in result.roles)
