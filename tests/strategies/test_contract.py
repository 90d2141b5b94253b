"""What every strategy keeps, looked at in the shared memory that a real run leaves behind."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from strategy_runs import (
    COPY_BACK,
    HOLDING_A_RATIO,
    TRAITS,
    WITH_ACTORS,
    WITH_REPLAY,
    Run,
    config_of,
    run_here,
    train,
)

import strategies
from common import distributions
from common.acting import initial_weights, network_spec, parameter_views
from common.config import Config
from common.envs import inspect_env
from common.evaluate import play_episodes
from common.experience import ExperienceBuffer
from common.processes import random_stream
from common.supervisor import RunProbe
from common.types import Traits

pytestmark = pytest.mark.multiprocess

every_strategy = pytest.mark.parametrize("name", strategies.STRATEGIES)
with_replay = pytest.mark.parametrize("name", WITH_REPLAY)
holding_a_ratio = pytest.mark.parametrize("name", HOLDING_A_RATIO)


@pytest.fixture(params=strategies.STRATEGIES)
def run(request: pytest.FixtureRequest) -> Run:
    return train(request.param)


def collected(buffer: ExperienceBuffer) -> list[int]:
    """Count the env steps of each worker from the rows themselves, when none was overwritten."""
    number = []
    for worker in range(buffer.num_workers):
        rows = buffer.published(worker)
        assert rows < buffer.num_rows
        number.append(int(buffer["valid"][worker, :rows].sum()))
    return number


def overshoot(config: Any) -> int:
    """Return what all lanes can have collected and not yet published: a chunk or a rollout."""
    rows = getattr(config, "rollout_length", config.chunk_steps)
    return int((rows + config.n_step) * config.num_lanes)


def left_over(config: Any) -> int:
    """Return what may never be taken: published after the last look of each learner."""
    if hasattr(config, "queue_trajectories"):
        waiting = config.queue_trajectories * config.rollout_length * config.num_lanes
        return int(waiting + overshoot(config))
    return overshoot(config) + config.workers * math.ceil(1 / float(config.replay_ratio))


def writers(run: Run) -> list[Any]:
    return [role for role in run.result.roles if role.name != "actor"]


def owed_updates(run: Run) -> float:
    """Return what the replay ratio asks for; several writers divide the warm-up."""
    number = len(writers(run))
    if number == 1:
        return run.config.owed_updates(run.result.env_steps)
    return sum(run.config.owed_updates(each.counters["env_steps"], number) for each in writers(run))


def test_the_run_stops_at_its_env_steps(run: Run) -> None:
    assert (run.result.status, run.result.error) == ("completed", None)
    assert run.config.steps <= run.result.env_steps <= run.config.steps + overshoot(run.config)
    assert run.result.train_returns and all(value >= 1 for value in run.result.train_returns)


def test_every_transition_is_accounted_for(run: Run) -> None:
    result = run.result
    counted = [role.counters["env_steps"] for role in result.roles if role.name != "learner"]
    assert result.env_steps == sum(counted) and min(counted) > 0
    assert result.total("dropped") == 0
    assert result.env_steps == result.total("stored") + result.in_flight_at_end
    assert 0 <= result.in_flight_at_end <= left_over(run.config)
    if run.name in WITH_REPLAY:
        assert counted == collected(run.buffer)


@every_strategy
def test_the_clock_counts_what_the_environments_did(name: str) -> None:
    left = run_here(name, steps=600)
    assert len(left.lanes) == left.config.workers
    assert left.telemetry.total("env_steps") == sum(lanes.env_steps for lanes in left.lanes)
    ended = sum(lanes.episodes for lanes in left.lanes)
    # Those of the last, unpublished chunk are not noted any more.
    assert 10 < left.telemetry.total("episodes") <= ended
    assert ended - left.telemetry.total("episodes") <= 2 * left.config.num_lanes


@with_replay
def test_episodes_end_where_the_rows_say_so(name: str) -> None:
    run = train(name)
    rows = [range(run.buffer.published(worker)) for worker in range(run.buffer.num_workers)]
    ended = sum(
        int((run.buffer["terminated"][w, r] | run.buffer["truncated"][w, r]).sum())
        for w, r in enumerate(rows)
    )
    # The closing row cuts each lane's last episode: that one is not finished.
    finished = run.result.total("episodes")
    assert finished > 20 and finished <= ended <= finished + 2 * run.config.num_lanes


@holding_a_ratio
def test_the_replay_ratio_is_held(name: str) -> None:
    run = train(name)
    result, config, owed = run.result, run.config, owed_updates(run)
    most = 2 * config.num_lanes * config.chunk_steps * float(config.replay_ratio) + config.workers
    assert result.updates <= owed and owed - result.updates <= most + overshoot(config) * 0.25
    assert result.steady_updates == result.updates > 200
    assert result.steady_seconds is not None and 0 < result.steady_seconds <= result.training_seconds
    achieved = result.steady_updates / result.steady_env_steps
    slack = (most + overshoot(config) * 0.25) / result.steady_updates
    # Several writers begin when each has its own share of the warm-up, so not at the same moment.
    slack = max(0.05, slack) if len(writers(run)) == 1 else 0.25
    assert achieved == pytest.approx(0.25, rel=slack)


def test_a_derived_ratio_is_not_asked_for_but_reported(run: Run) -> None:
    reported = run.summary["replay_ratio"]
    warmup = run.config.warmup_env_steps
    if "warmup_env_steps" in run.traits.unused_options:
        warmup = 0
    assert reported["achieved"] == pytest.approx(run.result.updates / (run.result.env_steps - warmup))
    asked = run.config.replay_ratio if run.name in HOLDING_A_RATIO else None
    assert reported["requested"] == asked
    assert (asked is None) == (run.traits.ratios == ("derived",))


def test_target_copies_are_the_whole_intervals(run: Run) -> None:
    if "target_update" in run.traits.unused_options:
        assert run.result.total("target_copies") == 0
        return
    copies = [role.counters["target_copies"] for role in writers(run)]
    intervals = math.floor(run.result.updates / 40)
    if len(copies) == 1:
        assert copies == [intervals]
    # Each worker looks at the common clock between two of its own steps.
    assert intervals >= 4 and all(abs(number - intervals) <= 1 for number in copies)


def without_gains(spec: Any, vector: np.ndarray) -> bytes:
    """Return the weights but for those of layer normalisation, which not all strategies have."""
    views = parameter_views(spec, vector).items()
    return b"".join(view.tobytes() for name, view in views if not name.startswith("norms."))


def test_every_strategy_begins_with_the_same_weights(run: Run) -> None:
    expected = initial_weights(run.shared.spec, run.config.seed)
    assert run.initial_weights.tobytes() == expected.tobytes()
    single = train("single")
    own = without_gains(run.shared.spec, run.initial_weights)
    assert own == without_gains(single.shared.spec, single.initial_weights)


@every_strategy
def test_every_strategy_trains_as_many_parameters(name: str) -> None:
    info = inspect_env("CartPole-v1")
    spec = network_spec(strategies.load(name).Config.for_env("CartPole-v1"), info)
    common = network_spec(Config.for_env("CartPole-v1"), info)
    gains = 2 * 2 * spec.hidden_size if spec.layer_norm else 0
    assert spec.num_parameters - gains == common.num_parameters > 17_000
    assert spec.hidden_size == common.hidden_size and not common.layer_norm


def test_the_weights_move_and_stay_finite(run: Run) -> None:
    final = run.result.final_weights
    assert np.isfinite(final).all() and np.isfinite(run.result.best_weights).all()
    assert (final != run.initial_weights).mean() > 0.5
    assert np.abs(final - run.initial_weights).max() > 0.01
    assert (final == run.shared.master.vector()).all()
    if len(writers(run)) == 1:  # what the only writer published last is what it wrote last
        assert (final == run.shared.weights.latest()[0]).all()


def assert_the_audit_bears_out(traits: Traits, audit: dict[str, Any] | None) -> None:
    """A header that says that nothing can be lost is held to exactly that."""
    assert audit is not None and audit["enabled"] and audit["auditable"], audit
    assert audit["writes_issued"] == audit["updates_issued"] * audit["elements"] > 0
    assert audit["writes_uncertain"] == audit["duplicates"] == 0
    if not traits.can_lose_updates:
        assert audit["writes_lost"] == audit["elements_affected"] == audit["worst_element_lost"] == 0
        assert sum(audit["survivors_by_worker"]) == audit["updates_issued"]


def test_nothing_is_lost_where_the_header_says_so(run: Run) -> None:
    assert_the_audit_bears_out(run.traits, run.result.audit)
    assert run.result.audit is not None
    assert run.result.audit["updates_issued"] == run.result.updates
    assert run.result.audit["elements"] == run.shared.spec.num_parameters
    assert len(run.result.audit["survivors_by_worker"]) == len(writers(run))


LOCKABLE = [name for name in TRAITS if hasattr(strategies.load(name).Config, "lock")]


@pytest.mark.parametrize(
    "name", [LOCKABLE[0], *(pytest.param(name, marks=pytest.mark.slow) for name in LOCKABLE[1:])]
)
def test_nothing_is_lost_under_a_lock(name: str) -> None:
    run = train(name, lock=True)
    assert run.result.status == "completed", run.result.error
    assert not run.traits.can_lose_updates and len(writers(run)) == 2
    assert_the_audit_bears_out(run.traits, run.result.audit)
    assert min(role.counters["updates"] for role in writers(run)) > 20


def test_a_header_that_is_wrong_about_losses_is_found_out() -> None:
    run = train("hogwild", **COPY_BACK)
    assert run.traits.can_lose_updates and run.result.audit is not None
    assert 0 < run.result.audit["writes_lost"] < run.result.audit["writes_issued"]
    assert_the_audit_bears_out(run.traits, run.result.audit)
    wrong = dataclasses.replace(run.traits, can_lose_updates=False)
    with pytest.raises(AssertionError):
        assert_the_audit_bears_out(wrong, run.result.audit)
    with pytest.raises(AssertionError):
        assert_the_audit_bears_out(wrong, None)


def test_only_strategies_with_several_writers_can_lose(run: Run) -> None:
    assert run.traits.can_lose_updates == (len(writers(run)) > 1)
    assert run.shared.master.num_workers == len(writers(run))


def test_roles_are_those_of_the_traits_with_one_thread_each(run: Run) -> None:
    traits, reports = run.traits, run.result.roles
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


def test_the_strategies_with_actors_are_these() -> None:
    assert {"sync", "impala", "apex"} <= set(WITH_ACTORS)
    assert all("learner" in TRAITS[name].roles for name in WITH_ACTORS)


def test_evaluations_follow_the_schedule(run: Run) -> None:
    result, config = run.result, run.config
    assert 1 <= len(result.evaluations) <= 2
    for i, evaluation in enumerate(result.evaluations, start=1):
        assert len(evaluation.episode_returns) == 5
        assert evaluation.env_steps >= 800 * i and evaluation.updates >= 50 * i
        assert 0 < evaluation.training_seconds < evaluation.command_seconds
        if run.name in HOLDING_A_RATIO and len(writers(run)) == 1:
            assert config.owed_updates(evaluation.env_steps) >= evaluation.updates
    assert result.best_mean == max(each.mean for each in result.evaluations)


def test_the_final_evaluation_is_the_same_for_all(run: Run) -> None:
    """What `solved` is judged by: 100 episodes from starts that depend on the seed alone."""
    assert run.result.final_evaluation is not None
    starts = random_stream(run.config.seed, "evaluation", 2, 0)
    spec, weights = run.shared.spec, run.result.final_weights
    expected = play_episodes(run.config.env_id, spec, weights, 100, starts)
    assert run.result.final_evaluation.episode_returns == expected and len(expected) == 100
    assert run.summary["returns"]["eval_mean"] == pytest.approx(np.mean(expected))
    assert run.summary["returns"]["threshold"] == 475


@every_strategy
def test_no_two_lanes_live_the_same_life(name: str) -> None:
    left = run_here(name, steps=600)
    lives = [
        np.stack(worker.observations[:8])[:, lane].tobytes()
        for worker in left.lanes
        for lane in range(worker.num_lanes)
    ]
    assert len(lives) == left.config.num_lanes and len(set(lives)) == len(lives)
    actions = {np.stack(worker.actions[:60]).tobytes() for worker in left.lanes}
    assert len(actions) == left.config.workers


@with_replay
def test_stamped_versions_never_go_back_nor_ahead_of_the_learner(name: str) -> None:
    run, newest = train(name), 0
    for worker in range(run.buffer.num_workers):
        stamps = run.buffer["weights_version"][worker, : run.buffer.published(worker)]
        assert (np.diff(stamps) >= 0).all() and stamps[0] == 0
        newest = max(newest, int(stamps[-1]))
    assert 0.5 * run.result.updates < newest <= run.result.updates + 1
    lag = distributions.quantiles(run.result.histograms["policy_lag"])
    assert lag is not None and 0 <= lag["p50"] <= lag["p95"] <= lag["max"] <= run.result.updates
    acting_lag = distributions.quantiles(run.result.histograms["acting_lag"])
    assert (acting_lag is not None) == ("actor" in run.traits.roles)


@pytest.mark.parametrize("ratio, steps, lanes", [(0.05, 2_600, 2), (1.0, 1_000, 1)])
@pytest.mark.parametrize("name", [name for name in WITH_ACTORS if name in HOLDING_A_RATIO])
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
@with_replay
def test_a_warm_up_shorter_than_a_batch_blocks_nobody(name: str, warmup: int) -> None:
    left = run_here(
        name, warmup_env_steps=warmup, steps=300, batch_size=128, replay_ratio=1.0, chunk_steps=1
    )
    owed = left.telemetry.total("env_steps") - warmup
    assert 300 <= left.telemetry.total("env_steps") <= 300 + overshoot(left.config)
    # Windows that the stop cut, and the one update that each writer did not owe yet.
    cut = 12 * left.config.num_lanes + left.config.workers
    assert owed - left.telemetry.total("updates") <= cut


@every_strategy
def test_the_step_size_follows_the_global_clock(name: str) -> None:
    choices = {"steps": 600, "learning_rate": 0.01, "learning_rate_end": 1e-12}
    before = run_here(name, learning_rate_decay_env_steps=1, **choices)  # over before it learns
    during = run_here(name, learning_rate_decay_env_steps=10_000, **choices)
    expected = initial_weights(before.shared.spec, 0)
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
