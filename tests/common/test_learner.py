"""The one update against the same update written by hand in float64 numpy."""

import numpy as np
import pytest

from common.acting import NetworkSpec, initial_weights, parameter_views
from common.audit import MasterWriter, SharedMaster
from common.config import Config
from common.learner import Learner
from common.probe import Probe
from common.telemetry import Telemetry
from common.types import Batch

ADAM_BETAS = (0.9, 0.999)
# With a tiny epsilon Adam turns a gradient's rounding error into a whole step wherever the gradient
# is about zero; with this one, float32 and float64 must agree.
EPSILON = 1e-3
HIDDEN, ACTIONS, INPUTS, BATCH = 12, 3, 4, 16
PLAIN = NetworkSpec((INPUTS,), "<f4", ACTIONS, HIDDEN, False)
NORMED = NetworkSpec((INPUTS,), "<f4", ACTIONS, HIDDEN, True)


def choices(**given) -> Config:
    return Config(**{"batch_size": BATCH, "adam_epsilon": EPSILON, "learning_rate": 0.01, **given})


def make_batch(seed: int, scale: float = 1.0) -> Batch:
    generator = np.random.default_rng(seed)
    horizon = generator.integers(1, 4, BATCH)
    discount = np.where(generator.random(BATCH) < 0.25, 0.0, 0.99**horizon)
    discount[0] = 0.0
    return Batch(
        observation=generator.normal(size=(BATCH, INPUTS)).astype(np.float32),
        action=generator.integers(0, ACTIONS, BATCH),
        n_step_return=(scale * 3 * generator.normal(size=BATCH)).astype(np.float32),
        bootstrap_discount=discount.astype(np.float32),
        bootstrap_observation=generator.normal(size=(BATCH, INPUTS)).astype(np.float32),
        importance_weight=generator.uniform(0.1, 1, BATCH).astype(np.float32),
        weights_version=np.zeros(BATCH, dtype=np.int64),
        place=np.arange(BATCH),
        row=np.arange(BATCH),
    )


class Oracle:
    """The update in float64, one equation a line. Knows no torch and none of the code under test."""

    def __init__(self, config: Config, spec: NetworkSpec, weights: np.ndarray) -> None:
        self.config, self.spec = config, spec
        self.online = weights.astype(np.float64)
        self.target = self.online.copy()
        self.first_moment = np.zeros_like(self.online)
        self.second_moment = np.zeros_like(self.online)
        self.updates = self.copies = 0

    def parts(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        return parameter_views(self.spec, vector)

    def forward(self, vector: np.ndarray, observation: np.ndarray) -> tuple[np.ndarray, list]:
        part, x, kept = self.parts(vector), observation.astype(np.float64), []
        for i in range(2):
            z = x @ part[f"linears.{i}.weight"].T + part[f"linears.{i}.bias"]
            if self.spec.layer_norm:
                z = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5)
                z = z * part[f"norms.{i}.weight"] + part[f"norms.{i}.bias"]
            kept.append((x, z))
            x = np.maximum(z, 0)
        value = x @ part["value_head.weight"].T + part["value_head.bias"]
        advantage = x @ part["advantage_head.weight"].T + part["advantage_head.bias"]
        return value + advantage - advantage.mean(1, keepdims=True), [*kept, x]

    def td_error(self, batch: Batch) -> np.ndarray:
        rows = np.arange(BATCH)
        q_target = self.forward(self.target, batch.bootstrap_observation)[0]
        q_online = self.forward(self.online, batch.bootstrap_observation)[0]
        best = (q_online if self.config.double else q_target).argmax(1)
        target = batch.n_step_return + batch.bootstrap_discount * q_target[rows, best]
        return target - self.forward(self.online, batch.observation)[0][rows, batch.action]

    def loss(self, batch: Batch, online: np.ndarray, target: np.ndarray) -> float:
        q_values = self.forward(online, batch.observation)[0]
        error = np.abs(target - q_values[np.arange(BATCH), batch.action])
        huber = np.where(error <= 1, 0.5 * error**2, error - 0.5)
        return float((batch.importance_weight * huber).mean())

    def gradient(self, batch: Batch) -> np.ndarray:
        gradient = np.zeros_like(self.online)
        part, grad = self.parts(self.online), self.parts(gradient)
        _, (first, second, hidden) = self.forward(self.online, batch.observation)
        d_taken = -batch.importance_weight * np.clip(self.td_error(batch), -1, 1) / BATCH
        d_advantage = np.full((BATCH, ACTIONS), -1 / ACTIONS)
        d_advantage[np.arange(BATCH), batch.action] += 1
        d_advantage *= d_taken[:, None]
        d_value = d_taken[:, None]
        grad["value_head.weight"][...] = d_value.T @ hidden
        grad["value_head.bias"][...] = d_value.sum(0)
        grad["advantage_head.weight"][...] = d_advantage.T @ hidden
        grad["advantage_head.bias"][...] = d_advantage.sum(0)
        d_x = d_value @ part["value_head.weight"] + d_advantage @ part["advantage_head.weight"]
        for i, (x, z) in ((1, second), (0, first)):
            d_z = d_x * (z > 0)
            grad[f"linears.{i}.weight"][...] = d_z.T @ x
            grad[f"linears.{i}.bias"][...] = d_z.sum(0)
            d_x = d_z @ part[f"linears.{i}.weight"]
        return gradient

    def learning_rate(self, env_steps: int) -> float:
        start, end = self.config.learning_rate, self.config.learning_rate_end
        if end is None:
            return start
        left = max(0.0, 1 - env_steps / self.config.learning_rate_decay_env_steps)
        return end + left * (start - end)

    def update(self, batch: Batch, env_steps: int) -> np.ndarray:
        td_error, gradient = self.td_error(batch), self.gradient(batch)
        limit = self.config.max_grad_norm
        if limit is not None:
            gradient = gradient * min(1.0, limit / (np.linalg.norm(gradient) + 1e-6))
        self.updates += 1
        a, b = ADAM_BETAS
        self.first_moment = a * self.first_moment + (1 - a) * gradient
        self.second_moment = b * self.second_moment + (1 - b) * gradient**2
        mean = self.first_moment / (1 - a**self.updates)
        spread = np.sqrt(self.second_moment / (1 - b**self.updates))
        self.online -= self.learning_rate(env_steps) * mean / (spread + self.config.adam_epsilon)
        rate = self.config.target_update
        if rate < 1:
            self.target += rate * (self.online - self.target)
        elif self.updates % int(rate) == 0:
            self.target = self.online.copy()
        return td_error


@pytest.mark.parametrize(
    "given",
    [
        {"target_update": 3.0},
        {"target_update": 3.0, "double": False},
        {"target_update": 3.0, "max_grad_norm": 0.05},
        {"target_update": 2.0, "max_grad_norm": None},
        {"target_update": 0.1},
        {"target_update": 3.0, "learning_rate_end": 1e-4, "learning_rate_decay_env_steps": 500},
    ],
    ids=str,
)
def test_updates_equal_the_hand_written_ones(given: dict) -> None:
    config = choices(**given)
    weights = initial_weights(PLAIN, 5)
    learner, oracle = Learner(config, PLAIN, weights), Oracle(config, PLAIN, weights)
    for i in range(8):
        batch = make_batch(i)
        expected_loss = oracle.loss(batch, oracle.online, _target_of(oracle, batch))
        expected = oracle.update(batch, 100 * i)
        result = learner.update(batch, 100 * i)
        np.testing.assert_allclose(result.td_error, expected, atol=1e-6 * max(1, abs(expected).max()))
        assert result.loss == pytest.approx(expected_loss, abs=1e-6)
        np.testing.assert_allclose(learner.vector, oracle.online, atol=1e-6)
        np.testing.assert_allclose(learner.target_vector, oracle.target, atol=1e-6)
    # The updates were no trifles, and the clip acted only where it was asked to.
    assert np.abs(learner.vector - weights).max() > 0.01
    clipped = np.linalg.norm(oracle.gradient(make_batch(0))) > (config.max_grad_norm or np.inf)
    assert clipped == (config.max_grad_norm == 0.05)


def _target_of(oracle: Oracle, batch: Batch) -> np.ndarray:
    q_values = oracle.forward(oracle.online, batch.observation)[0]
    return oracle.td_error(batch) + q_values[np.arange(BATCH), batch.action]


def test_double_and_plain_targets_differ_once_the_networks_do() -> None:
    errors = {}
    for double in (True, False):
        learner = Learner(
            choices(double=double, target_update=1000.0), PLAIN, initial_weights(PLAIN, 5)
        )
        learner.target_vector[:] = initial_weights(PLAIN, 6)
        errors[double] = learner.update(make_batch(0)).td_error
    assert (errors[True] <= errors[False] + 1e-6).all()  # the target's own maximum is the largest
    assert (errors[True] < errors[False] - 1e-4).any()
    terminated = make_batch(0).bootstrap_discount == 0
    assert terminated.any() and np.allclose(errors[True][terminated], errors[False][terminated])


def test_a_terminated_window_takes_nothing_from_what_follows() -> None:
    batch = make_batch(1)
    terminated = batch.bootstrap_discount == 0
    other = batch._replace(bootstrap_observation=batch.bootstrap_observation + 1)
    first, second = (
        Learner(choices(), PLAIN, initial_weights(PLAIN, 0)).update(each).td_error
        for each in (batch, other)
    )
    assert terminated.any() and (first[terminated] == second[terminated]).all()
    assert (first[~terminated] != second[~terminated]).all()


@pytest.mark.parametrize("spec", [PLAIN, NORMED], ids=["plain", "layer norm"])
def test_gradients_equal_finite_differences(spec: NetworkSpec) -> None:
    config = choices(max_grad_norm=None)
    weights = initial_weights(spec, 2)
    learner, oracle = Learner(config, spec, weights), Oracle(config, spec, weights)
    batch = make_batch(3)
    target = _target_of(oracle, batch)
    learner.update(batch)
    gradient = np.zeros(spec.num_parameters, dtype=np.float32)
    for name, parameter in learner.network.named_parameters():
        parameter_views(spec, gradient)[name][...] = parameter.grad.numpy()
    step = 1e-6
    for place in np.random.default_rng(0).choice(spec.num_parameters, 40, replace=False):
        ahead, behind = oracle.online.copy(), oracle.online.copy()
        ahead[place] += step
        behind[place] -= step
        slope = oracle.loss(batch, ahead, target) - oracle.loss(batch, behind, target)
        assert gradient[place] == pytest.approx(slope / (2 * step), abs=1e-6)
    assert np.linalg.norm(gradient) > 0.1


def test_td_errors_are_unweighted_and_from_before_the_update() -> None:
    batch = make_batch(4)
    heavy = batch._replace(importance_weight=2 * batch.importance_weight)
    weights = initial_weights(PLAIN, 1)
    first, second = Learner(choices(), PLAIN, weights), Learner(choices(), PLAIN, weights)
    light_result, heavy_result = first.update(batch), second.update(heavy)
    assert light_result.td_error.tobytes() == heavy_result.td_error.tobytes()
    assert heavy_result.loss == pytest.approx(2 * light_result.loss, rel=1e-6)
    before = Oracle(choices(), PLAIN, weights).td_error(batch)
    np.testing.assert_allclose(light_result.td_error, before, atol=1e-6 * np.abs(before).max())
    after = Oracle(choices(), PLAIN, first.vector).td_error(batch)
    assert np.abs(after - light_result.td_error).max() > 1e-3


def test_target_equals_online_before_the_first_update_and_is_its_own_memory() -> None:
    weights = initial_weights(PLAIN, 0)
    learner = Learner(choices(), PLAIN, weights)
    assert learner.target_vector.tobytes() == learner.vector.tobytes() == weights.tobytes()
    learner.update(make_batch(0))
    assert learner.target_vector.tobytes() == weights.tobytes() == initial_weights(PLAIN, 0).tobytes()
    assert (learner.vector != weights).any()
    assert all(parameter.grad is None for parameter in learner.target_network.parameters())


@pytest.mark.parametrize("interval", [1, 4, 7])
def test_target_copies_are_the_whole_intervals(interval: int) -> None:
    learner = Learner(choices(target_update=float(interval)), PLAIN, initial_weights(PLAIN, 0))
    for i in range(1, 18):
        learner.update(make_batch(i % 3))
        assert learner.num_updates == i and learner.num_target_copies == i // interval
        assert (learner.target_vector.tobytes() == learner.vector.tobytes()) == (i % interval == 0)


def test_the_version_is_that_of_the_weights_that_were_read_not_of_those_that_are_there() -> None:
    weights = initial_weights(PLAIN, 0)
    master = SharedMaster(weights, 2)
    learner = Learner(choices(), PLAIN, weights, MasterWriter(master, 0))
    other = Learner(choices(), PLAIN, weights, MasterWriter(master, 1))
    assert learner.weights_version == 0
    for _ in range(3):
        other.update(make_batch(1))
    assert (learner.weights_version, master.updates_issued) == (0, 3)
    learner.read()
    assert (learner.weights_version, other.weights_version) == (3, 3)


def test_target_copies_are_counted_where_the_supervisor_looks() -> None:
    telemetry = Telemetry(1)
    config, probe = choices(target_update=2.0), Probe(telemetry, 0, choices())
    learner = Learner(config, PLAIN, initial_weights(PLAIN, 0), probe=probe)
    assert (telemetry.total("has_target"), telemetry.total("target_copies")) == (1, 0)
    for i in range(5):
        learner.update(make_batch(i))
    assert telemetry.total("target_copies") == 2


def test_ten_soft_updates_move_the_target_by_one_minus_a_power() -> None:
    weights = initial_weights(PLAIN, 0)
    # A step size of almost nothing: the online network stands still while the target follows it.
    learner = Learner(choices(target_update=0.1, learning_rate=1e-30), PLAIN, weights)
    learner.target_vector[:] = 0
    for i in range(10):
        learner.update(make_batch(i))
    np.testing.assert_allclose(learner.vector, weights, atol=1e-7)
    np.testing.assert_allclose(learner.target_vector, (1 - 0.9**10) * weights, rtol=1e-5, atol=1e-8)
    assert learner.num_target_copies == 10
