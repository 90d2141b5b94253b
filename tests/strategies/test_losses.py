"""The losses of `pqn` and `impala`: gradients against finite differences and against hand formulas.

All in float64, on networks that are tables: the outputs themselves are the parameters, so a gradient by
hand is short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from common.returns import n_step_returns, vtrace
from common.trajectories import Trajectory
from strategies import impala, pqn

Array = NDArray[Any]

LENGTH, LANES, ACTIONS = 6, 3, 4
STEP = 1e-6


class TableNetwork:
    """Outputs by observation number: observation i has value ``value[i]`` and logits ``logits[i]``."""

    def __init__(self, generator: np.random.Generator) -> None:
        number = (LENGTH + 1) * LANES
        self.value = torch.tensor(generator.normal(size=(number, 1)), requires_grad=True)
        self.logits = torch.tensor(generator.normal(size=(number, ACTIONS)), requires_grad=True)

    def heads(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = observation.long()
        return self.value[rows], self.logits[rows]

    def __call__(self, observation: torch.Tensor) -> torch.Tensor:
        return self.logits[observation.long()].detach()

    def policy(self) -> Array:
        exponential = np.exp(self.logits.detach().numpy())
        probability = exponential / exponential.sum(axis=1, keepdims=True)
        return probability.reshape(LENGTH + 1, LANES, ACTIONS)

    def values(self) -> Array:
        return self.value.detach().numpy().reshape(LENGTH + 1, LANES)


def make_trajectory(generator: np.random.Generator) -> Trajectory:
    """Random rows. Lane 0 terminates at row 1, lane 1 is truncated at row 3, lane 2 goes on."""
    shape = (LENGTH, LANES)
    terminated, truncated = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    terminated[1, 0] = truncated[3, 1] = True
    valid = np.ones(shape, dtype=bool)
    valid[2, 0] = valid[4, 1] = False
    return Trajectory(
        observation=np.arange((LENGTH + 1) * LANES, dtype=np.float64).reshape(LENGTH + 1, LANES),
        action=generator.integers(ACTIONS, size=shape),
        action_probability=generator.uniform(0.1, 0.9, size=shape),
        reward=np.where(valid, generator.normal(size=shape), 0.0),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        weights_version=np.zeros(LENGTH, dtype=np.int64),
    )


def finite_differences(function: Callable[[Array], float], at: Array) -> Array:
    """Return the central difference quotient in every element."""
    gradient = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        higher, lower = at.copy(), at.copy()
        higher[place] += STEP
        lower[place] -= STEP
        gradient[place] = (function(higher) - function(lower)) / (2 * STEP)
    return gradient


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(5)


# pqn


def test_pqn_gradient_is_the_error_of_the_taken_action(generator: np.random.Generator) -> None:
    q_values = torch.tensor(generator.normal(size=(5, ACTIONS)), requires_grad=True)
    action = torch.from_numpy(generator.integers(ACTIONS, size=5))
    target = torch.from_numpy(generator.normal(size=5))

    pqn.pqn_loss(q_values, action, target)[0].backward()

    at = q_values.detach().numpy()
    numeric = finite_differences(
        lambda changed: float(pqn.pqn_loss(torch.from_numpy(changed), action, target)[0]), at
    )
    by_hand = np.zeros_like(at)
    taken = (np.arange(5), action.numpy())
    by_hand[taken] = (at[taken] - target.numpy()) / 5
    np.testing.assert_allclose(q_values.grad.numpy(), numeric, atol=1e-8)
    np.testing.assert_allclose(q_values.grad.numpy(), by_hand, atol=1e-12)


@pytest.mark.parametrize("trace", [0.0, 0.65, 1.0])
def test_pqn_targets_are_the_weighted_average_of_n_step_returns(
    generator: np.random.Generator, trace: float
) -> None:
    """(1 - lambda) sum_n lambda^(n-1) R_n + lambda^(N-1) R_N, N steps being left of the episode."""
    config = pqn.Config(trace=trace)
    network, rollout = TableNetwork(generator), make_trajectory(generator)

    target = pqn.q_lambda_targets(config, network, rollout).numpy()

    q_max = network.logits.detach().numpy().max(axis=1).reshape(LENGTH + 1, LANES)
    for t, lane in zip(*np.nonzero(rollout.valid), strict=True):
        returns, reward_sum, discount = [], 0.0, 1.0
        for k in range(t, LENGTH):
            reward_sum += discount * rollout.reward[k, lane]
            discount *= 0.0 if rollout.terminated[k, lane] else config.gamma
            returns.append(reward_sum + discount * q_max[k + 1, lane])
            if rollout.terminated[k, lane] or rollout.truncated[k, lane]:
                break
        weights = (1 - trace) * trace ** np.arange(len(returns))
        weights[-1] = trace ** (len(returns) - 1)
        assert weights.sum() == pytest.approx(1)
        assert target[t, lane] == pytest.approx(weights @ returns, abs=1e-10)


def test_pqn_minibatches_hold_each_transition_once_an_epoch(generator: np.random.Generator) -> None:
    config = pqn.Config(epochs=2, minibatches=3)
    rollout = make_trajectory(generator)

    batches = list(pqn.minibatches(config, rollout, generator))

    transitions = np.flatnonzero(rollout.valid)
    assert len(batches) == 6
    for epoch in (batches[:3], batches[3:]):
        np.testing.assert_array_equal(np.sort(np.concatenate(epoch)), transitions)


# impala


def test_impala_gradient_matches_finite_differences(generator: np.random.Generator) -> None:
    """V-trace's targets and advantages are held fixed: no gradient flows through them."""
    config = impala.Config(entropy_cost=0.3, value_cost=0.7)
    network, trajectory = TableNetwork(generator), make_trajectory(generator)
    corrected = corrected_by(config, network, trajectory)

    impala.impala_loss(config, network, trajectory)[0].backward()

    def loss(values: Array, logits: Array) -> float:
        value = values.reshape(LENGTH + 1, LANES)[:-1]
        log_policy = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        log_policy = log_policy.reshape(LENGTH + 1, LANES, ACTIONS)[:-1]
        log_taken = np.take_along_axis(log_policy, trajectory.action[..., None], axis=2)[..., 0]
        entropy = -(np.exp(log_policy) * log_policy).sum(axis=2)
        each = -corrected.advantages * log_taken - config.entropy_cost * entropy
        each = each + config.value_cost * 0.5 * (corrected.targets - value) ** 2
        return float(each[trajectory.valid].mean())

    value, logits = network.value.detach().numpy(), network.logits.detach().numpy()
    by_value = finite_differences(lambda changed: loss(changed, logits), value)
    by_logits = finite_differences(lambda changed: loss(value, changed), logits)
    np.testing.assert_allclose(network.value.grad.numpy(), by_value, atol=1e-8)
    np.testing.assert_allclose(network.logits.grad.numpy(), by_logits, atol=1e-8)


def test_impala_gradient_matches_the_formulas(generator: np.random.Generator) -> None:
    """d/dV = cost (V - target) / n; d/dA = (advantage (pi - taken) + cost pi (log pi + H)) / n."""
    config = impala.Config(entropy_cost=0.3, value_cost=0.7, rho_bar=2.0, c_bar=0.5)
    network, trajectory = TableNetwork(generator), make_trajectory(generator)
    corrected = corrected_by(config, network, trajectory)

    impala.impala_loss(config, network, trajectory)[0].backward()

    number = trajectory.valid.sum()
    policy = network.policy()[:-1]
    taken = np.eye(ACTIONS)[trajectory.action]
    entropy = -(policy * np.log(policy)).sum(axis=2, keepdims=True)
    by_logits = corrected.advantages[..., None] * (policy - taken)
    by_logits += config.entropy_cost * policy * (np.log(policy) + entropy)
    by_value = config.value_cost * (network.values()[:-1] - corrected.targets)
    by_logits[~trajectory.valid] = 0
    by_value[~trajectory.valid] = 0
    got_value = network.value.grad.numpy().reshape(LENGTH + 1, LANES)
    got_logits = network.logits.grad.numpy().reshape(LENGTH + 1, LANES, ACTIONS)
    np.testing.assert_allclose(got_value[:-1], by_value / number, atol=1e-12)
    np.testing.assert_allclose(got_logits[:-1], by_logits / number, atol=1e-12)
    assert not got_value[-1].any(), "the row that is only bootstrapped from learns nothing"
    assert not got_logits[-1].any()


def test_impala_with_equal_policies_learns_the_n_step_return(generator: np.random.Generator) -> None:
    config = impala.Config(value_cost=1.0)
    network, trajectory = TableNetwork(generator), make_trajectory(generator)
    policy = np.take_along_axis(network.policy()[:-1], trajectory.action[..., None], axis=2)[..., 0]
    trajectory = trajectory._replace(action_probability=policy)

    impala.impala_loss(config, network, trajectory)[0].backward()

    value = network.values()
    returns = n_step_returns(
        trajectory.reward,
        trajectory.discount(config.gamma),
        trajectory.episode_continues,
        value[1:],
        LENGTH,
    )
    expected = np.where(trajectory.valid, value[:-1] - returns, 0) / trajectory.valid.sum()
    got = network.value.grad.numpy().reshape(LENGTH + 1, LANES)[:-1]
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_what_an_invalid_row_holds_changes_nothing(generator: np.random.Generator) -> None:
    config = impala.Config()
    network, trajectory = TableNetwork(generator), make_trajectory(generator)
    invalid = ~trajectory.valid
    garbage = trajectory._replace(
        reward=np.where(invalid, 1e6, trajectory.reward),
        action=np.where(invalid, 0, trajectory.action),
        action_probability=np.where(invalid, 1e-3, trajectory.action_probability),
    )

    losses = [impala.impala_loss(config, network, each)[0].detach() for each in (trajectory, garbage)]

    assert losses[0] == losses[1]
    assert invalid.sum() == 2


def corrected_by(config: Any, network: TableNetwork, trajectory: Trajectory) -> Any:
    """V-trace, whose own tests compare it with the paper's definition."""
    policy = np.take_along_axis(network.policy()[:-1], trajectory.action[..., None], axis=2)[..., 0]
    value = network.values()
    return vtrace(
        policy / trajectory.action_probability,
        trajectory.reward,
        trajectory.discount(config.gamma),
        trajectory.episode_continues,
        value[:-1],
        value[1:],
        config.rho_bar,
        config.c_bar,
    )
