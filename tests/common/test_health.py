"""Health measurements and alarms against planted truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common import alarms, health
from common.acting import ActingNetwork, NetworkSpec, initial_weights, parameter_views
from common.alarms import AlarmJudge
from common.config import Config
from common.evaluate import value_bias
from common.learner import Learner
from common.probe import Probe
from common.telemetry import HEALTH, Telemetry
from common.types import Batch, Evaluation, LaneStep

SPEC = NetworkSpec((4,), "<f4", 2, 64, False)
GENERATOR = np.random.default_rng(0)
STATES = GENERATOR.normal(size=(128, 4)).astype(np.float32)


def monitor(estimates: str = "Q", **choices: float) -> tuple[Telemetry, Probe, health.HealthMonitor]:
    config = Config(**choices)
    telemetry = Telemetry(1)
    probe = Probe(telemetry, 0, config)
    probe.gauge("largest_reward", 1.0)
    probe.gauge("action_entropy", 0.5)
    return telemetry, probe, health.HealthMonitor(config, SPEC, probe, estimates)


def sample_of(vector: np.ndarray, estimates: str = "Q") -> dict[str, float]:
    telemetry, _, watch = monitor(estimates)
    watch.sample(vector, STATES, np.array([-3.0, 1.0], dtype=np.float32), 7.0, 1)
    return telemetry.health_since(0, 0)[0][-1]


@given(st.integers(0, 64), st.integers(0, 64))
def test_m_units_zeroed_are_a_dormant_fraction_of_m_in_n(first: int, second: int) -> None:
    layers = [np.abs(GENERATOR.normal(size=(50, 64))).astype(np.float32) + 1 for _ in range(2)]
    layers[0][:, :first] = 0
    layers[1][:, 64 - second :] = 0
    assert health.dormant_fraction(layers) == (first + second) / 128


def test_units_zeroed_in_the_network_are_dormant_in_the_sample() -> None:
    vector = initial_weights(SPEC, 1)
    before = sample_of(vector)["dormant_fraction"]
    views = parameter_views(SPEC, vector)
    for layer in range(2):
        views[f"linears.{layer}.weight"][:16] = 0
        views[f"linears.{layer}.bias"][:16] = 1  # alive, and all alike
    assert before == sample_of(initial_weights(SPEC, 1))["dormant_fraction"] < 0.3
    for layer in range(2):
        views[f"linears.{layer}.bias"][:16] = -1  # never above the rectifier
    assert sample_of(vector)["dormant_fraction"] >= 0.25


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_features_of_rank_r_have_effective_rank_r(rank: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    left, _ = np.linalg.qr(generator.normal(size=(128, rank)))
    right, _ = np.linalg.qr(generator.normal(size=(64, rank)))
    assert health.effective_rank((left @ right.T).astype(np.float32)) == rank


def test_effective_rank_equals_its_definition_by_singular_values() -> None:
    for shape in ((128, 64), (32, 64)):
        features = np.maximum(GENERATOR.normal(size=shape), 0).astype(np.float32)
        values = np.linalg.svd(features.astype(np.float64), compute_uv=False)
        upto = np.cumsum(values) / values.sum()
        assert health.effective_rank(features) == int(np.argmax(upto >= 0.99)) + 1
    assert health.effective_rank(np.zeros((8, 4), dtype=np.float32)) == 0


def test_a_sample_says_what_the_network_says() -> None:
    vector = initial_weights(SPEC, 3)
    found = sample_of(vector)
    q_values = ActingNetwork(SPEC, vector).q_values(STATES)
    assert found["q_mean"] == pytest.approx(float(q_values.mean()), abs=1e-6)
    assert found["q_max"] == pytest.approx(float(np.abs(q_values).max()), abs=1e-6)
    assert found["q_bound"] == pytest.approx(100.0)
    assert (found["td_error"], found["grad_norm"]) == (2.0, 7.0)
    assert found["weight_norm"] == pytest.approx(float(np.linalg.norm(vector)))
    assert math.isnan(found["churn"])
    value = ActingNetwork(SPEC, vector).heads(STATES)[0]
    assert sample_of(vector, "V")["q_mean"] == pytest.approx(float(value.mean()), abs=1e-6)
    assert set(found) == set(HEALTH)


def test_churn_is_the_share_of_states_whose_greedy_action_changed() -> None:
    first, second = initial_weights(SPEC, 1), initial_weights(SPEC, 2)
    telemetry, _, watch = monitor()
    for number, vector in enumerate((first, first, second)):
        watch.sample(vector, STATES, np.zeros(1, dtype=np.float32), 0.0, number)
    churn = [each["churn"] for each in telemetry.health_since(0, 0)[0]]
    best = [ActingNetwork(SPEC, v).q_values(STATES).argmax(axis=1) for v in (first, second)]
    assert churn[1] == 0.0 and churn[2] == np.mean(best[0] != best[1]) > 0


def test_samples_are_due_every_so_many_updates_and_take_little_of_the_time() -> None:
    _, _, watch = monitor(health_every_updates=10)
    assert not watch.is_due(0) and watch.is_due(1)
    watch.sample(initial_weights(SPEC, 1), STATES, np.zeros(1, dtype=np.float32), 0.0, 1)
    assert not watch.is_due(10) and not watch.is_due(11)  # due by updates, too soon by the clock
    watch._not_before_ns = 0
    assert watch.is_due(11) and not watch.is_due(10)


def test_a_head_times_a_hundred_raises_the_divergence_alarm_within_one_sample() -> None:
    vector = initial_weights(SPEC, 1)
    views = parameter_views(SPEC, vector)
    views["value_head.bias"][...] = 95.0
    judge = AlarmJudge(None)
    for _ in range(5):
        judge.judge(sample_of(vector))
    assert judge.alarms == []  # below its bound of 100, as a solved CartPole is
    for name in ("value_head", "advantage_head"):
        views[f"{name}.weight"][...] *= 100
        views[f"{name}.bias"][...] *= 100
    judge.judge(sample_of(vector))
    (alarm,) = judge.alarms
    assert alarm.name == "divergence" and alarm.value > alarm.limit == pytest.approx(1_000)
    assert "--layer-norm" in alarm.remedy and "deadly triad" in alarm.meaning


HEALTHY = {**dict.fromkeys(HEALTH, 1.0), "q_bound": 100.0, "env_steps": 0.0}
BROKEN = {
    "divergence": {"q_max": 151.0, "q_mean": -101.0},
    "exploding gradient": {"grad_norm": alarms.EXPLODED_GRAD_NORM * 1.01},
    "dead units": {"dormant_fraction": 0.99},
    "no exploration left": {"action_entropy": 0.0},
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_alarm_needs_three_samples_running_and_says_when_it_began(name: str) -> None:
    healthy = {**HEALTHY, "dormant_fraction": 0.2}
    judge = AlarmJudge(None)
    for number in range(1, 3):
        judge.judge({**healthy, **BROKEN[name], "env_steps": number})
    judge.judge({**healthy, "env_steps": 3})
    assert judge.alarms == []
    for number in range(4, 9):
        judge.judge({**healthy, **BROKEN[name], "env_steps": number})
    (alarm,) = judge.alarms
    assert (alarm.name, alarm.at_env_steps) == (name, 4)
    assert alarm.meaning and "--" in alarm.remedy


def test_a_few_states_far_above_the_bound_are_no_divergence_and_ten_times_it_is() -> None:
    healthy = {**HEALTHY, "dormant_fraction": 0.2}
    judge = AlarmJudge(None)
    # A run of `single` that went on to solve the task: its largest estimate was twice the bound.
    for largest, mean in ((157.7, 29.3), (207.0, 37.4), (182.7, 57.8), (999.0, 99.0)):
        judge.judge({**healthy, "q_max": largest, "q_mean": mean})
    assert judge.alarms == []
    assert alarms.RULES[0].strain({**healthy, "q_max": 300.0, "q_mean": 50.0}) == pytest.approx(0.5)
    assert alarms.RULES[0].strain({**healthy, "q_max": 165.0, "q_mean": 120.0}) == pytest.approx(1.1)
    judge.judge({**healthy, "q_max": 1_001.0, "q_mean": 99.0})
    assert [alarm.name for alarm in judge.alarms] == ["divergence"]


def test_what_was_not_measured_raises_nothing() -> None:
    judge = AlarmJudge(None)
    for _ in range(5):
        judge.judge({**dict.fromkeys(HEALTH, math.nan), "env_steps": 1.0})
        judge.judge({**HEALTHY, "dormant_fraction": 0.1, "q_bound": 0.0, "q_max": 1e9})
        judge.judge({**HEALTHY, "dormant_fraction": 0.1, "q_bound": math.inf, "q_max": 1e9})
    assert judge.alarms == [] and len(alarms.RULES) == 5


def evaluation(env_steps: int, mean: float) -> Evaluation:
    return Evaluation(env_steps, 0, 0.0, 0.0, (mean,))


def test_losing_a_solved_task_twice_running_is_a_collapse() -> None:
    judge = AlarmJudge(475.0)
    for number, mean in enumerate((20.0, 100.0, 90.0, 500.0)):
        judge.judge_evaluation(evaluation(number, mean), has_solved=False)
    for number, mean in enumerate((500.0, 240.0, 300.0, 100.0, 90.0), 10):
        judge.judge_evaluation(evaluation(number, mean), has_solved=True)
    (alarm,) = judge.alarms
    # Half-way between the first evaluation and the threshold.
    assert (alarm.name, alarm.limit, alarm.at_env_steps) == ("collapse", 247.5, 13)


def test_actors_that_never_get_weights_are_found() -> None:
    judge = AlarmJudge(None)
    judge.judge_actors([0, 0], 100, 50)
    judge.judge_actors([5, 9], 5_000, 60)
    assert judge.alarms == []
    judge.judge_actors([7, 0], 101, 70)
    (alarm,) = judge.alarms
    assert alarm.name == "stale actors" and "worker 1" in alarm.meaning


def test_a_target_that_was_never_copied_is_named_at_the_end() -> None:
    judge = AlarmJudge(None)
    judge.judge_target(0, alarms.TARGET_AFTER_UPDATES - 1, 500)  # too short a run to tell
    judge.judge_target(1, 10_000, 500)
    assert judge.alarms == []
    judge.judge_target(0, alarms.TARGET_AFTER_UPDATES, 500)
    (alarm,) = judge.alarms
    assert alarm.name == "target never copied" and "--target-update" in alarm.remedy


def test_bias_is_estimate_minus_what_followed() -> None:
    gamma, none, yes = 0.5, np.zeros(3, dtype=bool), np.ones(3, dtype=bool)
    # Lane 0 terminates at the second step, lane 1 is truncated there, lane 2 goes on to the third.
    terminated, truncated = np.array([True, False, False]), np.array([False, True, False])
    rewards = np.array([[1.0, 2, 3], [4, 5, 6], [100, 100, 7]], dtype=np.float32)
    steps = [
        LaneStep(np.empty(0), rewards[0], none, none, yes),
        LaneStep(np.empty(0), rewards[1], terminated, truncated, yes),
        LaneStep(np.empty(0), rewards[2], np.array([False, False, True]), none, yes),
    ]
    values = [np.full(3, 10.0), np.full(3, 20.0), np.full(3, 30.0), np.full(3, 99.0)]
    returns = [
        [1 + 0.5 * 4, 2 + 0.5 * (5 + 0.5 * 30), 3 + 0.5 * (6 + 0.5 * 7)],
        [4, 5 + 0.5 * 30, 6 + 0.5 * 7],
        [7],
    ]
    expected = np.mean([v - g for v, row in zip((10, 20, 30), returns, strict=True) for g in row])
    assert value_bias(values, steps, gamma) == pytest.approx(expected)
    without_future = [13 - 1, 13 - 2, 13 - 3, 23 - 4, 23 - 5, 23 - 6, 33 - 7]
    shifted = [value + 3 for value in values]
    assert value_bias(shifted, steps, 0.0) == pytest.approx(float(np.mean(without_future)))


def batch(size: int = 32) -> Batch:
    generator = np.random.default_rng(4)
    return Batch(
        observation=generator.normal(size=(size, 4)).astype(np.float32),
        action=generator.integers(0, 2, size),
        n_step_return=generator.normal(size=size).astype(np.float32),
        bootstrap_discount=np.full(size, 0.9, dtype=np.float32),
        bootstrap_observation=generator.normal(size=(size, 4)).astype(np.float32),
        importance_weight=np.ones(size, dtype=np.float32),
        weights_version=np.zeros(size, dtype=np.int64),
        place=np.zeros(size, dtype=np.int64),
        row=np.zeros(size, dtype=np.int64),
    )


def test_a_reset_renews_the_heads_their_target_and_their_moments_and_nothing_else() -> None:
    config = Config(reset_interval=5, batch_size=32, target_update=1_000)
    learner = Learner(config, SPEC, initial_weights(SPEC, 0))
    for _ in range(4):
        learner.update(batch())
    torso = {name: p.detach().clone() for name, p in learner.network.named_parameters()}
    learner.compute_gradient(batch())
    learner.take_step()
    fresh = parameter_views(SPEC, initial_weights(SPEC, 0, 1))
    target = parameter_views(SPEC, learner.target_vector)
    for name, parameter in learner.network.named_parameters():
        state = learner.optimizer.state[parameter]
        is_head = "_head" in name
        assert np.array_equal(parameter.detach().numpy(), fresh[name]) == is_head
        assert np.array_equal(target[name], fresh[name]) == is_head
        assert (float(state["step"]) == 0) == is_head == (not state["exp_avg"].any())
        assert is_head or torch.dist(parameter, torso[name]) < 0.2  # one Adam step, no reset
    assert not np.array_equal(initial_weights(SPEC, 0, 1), initial_weights(SPEC, 0, 2))
    learner.update(batch())
    assert np.isfinite(learner.vector).all() and learner.num_updates == 6


def test_weights_that_are_no_numbers_are_never_written() -> None:
    learner = Learner(Config(learning_rate=1e38, batch_size=32), SPEC, initial_weights(SPEC, 0))
    with pytest.raises(health.NotFiniteError, match="became NaN or infinite at update"):
        for _ in range(20):
            learner.update(batch())
    with pytest.raises(health.NotFiniteError, match="the loss"):
        health.check_finite(np.zeros(3, dtype=np.float32), math.nan, 4)
    health.check_finite(np.zeros(3, dtype=np.float32), 1.0, 4)


def test_the_gradient_norm_is_that_before_clipping() -> None:
    telemetry = Telemetry(1)
    config = Config(batch_size=32, max_grad_norm=1e-3)
    probe = Probe(telemetry, 0, config)
    clipped = Learner(config, SPEC, initial_weights(SPEC, 0), probe=probe)
    plain = Learner(Config(batch_size=32, max_grad_norm=None), SPEC, initial_weights(SPEC, 0))
    plain.compute_gradient(batch())
    grads = [p.grad for p in plain.network.parameters() if p.grad is not None]
    expected = float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads])))
    clipped.update(batch())
    (sample,), _ = telemetry.health_since(0, 0)
    assert sample["grad_norm"] == pytest.approx(expected, rel=1e-5) and expected > 1e-2
