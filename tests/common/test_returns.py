"""Tests of common/returns.py against the papers' definitions, written as plain loops.

The references below are slow on purpose. They take the explicit sums of the papers, with one loop
per sum, where common/returns.py uses recursions: two different routes to the same number, so a
mistake in one does not hide in the other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from common.returns import n_step_returns, n_step_window, q_lambda_returns, vtrace

Array = NDArray[Any]
GAMMA = 0.9
SEEDS = range(6)


class Trajectory(NamedTuple):
    """Arrays [T, B], with next_value[t] == value[t + 1] inside an episode."""

    reward: Array
    terminated: Array
    truncated: Array
    value: Array
    next_value: Array
    ratio: Array

    @property
    def discount(self) -> Array:
        return GAMMA * (1 - self.terminated)

    @property
    def episode_continues(self) -> Array:
        return 1.0 - (self.terminated | self.truncated)

    @property
    def masked(self) -> tuple[Array, Array, Array, Array]:
        """The four arguments that the [T, B] functions share."""
        return self.reward, self.discount, self.episode_continues, self.next_value


def make_trajectory(seed: int, steps: int = 17, lanes: int = 5) -> Trajectory:
    """Random trajectories; lane 0 starts with three episodes of length 1, one per way to end."""
    rng = np.random.default_rng(seed)
    shape = (steps, lanes)
    terminated = rng.random(shape) < 0.15
    truncated = rng.random(shape) < 0.15
    terminated[:3, 0] = [True, False, True]
    truncated[:3, 0] = [False, True, True]
    terminated[:, -1] = truncated[:, -1] = False  # one lane is cut by the end of the array alone
    value, final_value = rng.normal(size=(2, *shape))
    next_value = final_value.copy()
    next_value[:-1] = np.where((terminated | truncated)[:-1], final_value[:-1], value[1:])
    ratio = rng.lognormal(size=shape)
    return Trajectory(rng.normal(size=shape), terminated, truncated, value, next_value, ratio)


def last_step(path: Trajectory, t: int, b: int) -> int:
    """Row at which the episode that row t belongs to ends, or the last row of the array."""
    while t < len(path.reward) - 1 and path.episode_continues[t, b]:
        t += 1
    return t


def reference_n_step(path: Trajectory, t: int, b: int, n_step: int) -> float:
    """Sutton & Barto (2018), eq. 7.1."""
    last = min(t + n_step - 1, last_step(path, t, b))
    total = 0.0
    for k in range(t, last + 1):
        total += np.prod(path.discount[t:k, b]) * path.reward[k, b]
    return float(total + np.prod(path.discount[t : last + 1, b]) * path.next_value[last, b])


def reference_vtrace_target(path: Trajectory, s: int, b: int, rho_bar: float, c_bar: float) -> float:
    """Espeholt et al. (2018), eq. 1 with n reaching to the end of the episode or array."""
    target = path.value[s, b]
    for t in range(s, last_step(path, s, b) + 1):
        weight = 1.0
        for i in range(s, t):
            weight *= path.discount[i, b] * min(c_bar, path.ratio[i, b])
        rho = min(rho_bar, path.ratio[t, b])
        bootstrap = path.discount[t, b] * path.next_value[t, b]
        target += weight * rho * (path.reward[t, b] + bootstrap - path.value[t, b])
    return float(target)


def reference_q_lambda(path: Trajectory, t: int, b: int, lambda_: float) -> float:
    """Forward view: (1 - lambda) sum_{n<N} lambda^{n-1} R^(n) + lambda^{N-1} R^(N)."""
    longest = last_step(path, t, b) - t + 1
    total = lambda_ ** (longest - 1) * reference_n_step(path, t, b, longest)
    for n in range(1, longest):
        total += (1 - lambda_) * lambda_ ** (n - 1) * reference_n_step(path, t, b, n)
    return total


def for_every_row(path: Trajectory, reference: Callable[[int, int], float]) -> Array:
    steps, lanes = path.reward.shape
    return np.array([[reference(t, b) for b in range(lanes)] for t in range(steps)])


def monte_carlo(path: Trajectory) -> Array:
    """Returns [T, B] to the end of the episode or array."""
    return for_every_row(path, lambda t, b: reference_n_step(path, t, b, len(path.reward)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_step", [1, 2, 3, 4, 5, 6, 7, 100])
def test_n_step_returns_follow_the_definition(seed: int, n_step: int) -> None:
    path = make_trajectory(seed)
    expected = for_every_row(path, lambda t, b: reference_n_step(path, t, b, n_step))
    returns = n_step_returns(*path.masked, n_step)
    assert returns.shape == path.reward.shape
    np.testing.assert_allclose(returns, expected, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rho_bar, c_bar", [(1.0, 1.0), (2.0, 0.5), (np.inf, np.inf), (1.0, 0.0)])
def test_vtrace_follows_equation_1(seed: int, rho_bar: float, c_bar: float) -> None:
    path = make_trajectory(seed)
    targets, advantages = vtrace(
        path.ratio, *path.masked[:3], path.value, path.next_value, rho_bar, c_bar
    )
    expected = for_every_row(path, lambda t, b: reference_vtrace_target(path, t, b, rho_bar, c_bar))
    np.testing.assert_allclose(targets, expected, atol=1e-12)

    def reference_advantage(t: int, b: int) -> float:
        is_last = last_step(path, t, b) == t
        following = path.next_value[t, b] if is_last else expected[t + 1, b]
        error = path.reward[t, b] + path.discount[t, b] * following - path.value[t, b]
        return float(min(rho_bar, path.ratio[t, b]) * error)

    np.testing.assert_allclose(advantages, for_every_row(path, reference_advantage), atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_vtrace_on_policy_is_the_return_to_the_end(seed: int) -> None:
    path = make_trajectory(seed)
    on_policy = np.ones_like(path.ratio)
    targets, advantages = vtrace(on_policy, *path.masked[:3], path.value, path.next_value)
    np.testing.assert_allclose(targets, monte_carlo(path), atol=1e-12)
    np.testing.assert_allclose(advantages, targets - path.value, atol=1e-12)


def test_vtrace_keeps_the_value_of_an_action_the_learner_never_takes() -> None:
    path = make_trajectory(0)
    path.ratio[4] = 0.0
    targets, advantages = vtrace(path.ratio, *path.masked[:3], path.value, path.next_value)
    np.testing.assert_array_equal(targets[4], path.value[4])
    np.testing.assert_array_equal(advantages[4], 0.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.65, 1.0])
def test_q_lambda_follows_the_forward_view(seed: int, lambda_: float) -> None:
    path = make_trajectory(seed)
    expected = for_every_row(path, lambda t, b: reference_q_lambda(path, t, b, lambda_))
    returns = q_lambda_returns(*path.masked, lambda_)
    assert returns.shape == path.reward.shape
    np.testing.assert_allclose(returns, expected, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_q_lambda_limits(seed: int) -> None:
    path = make_trajectory(seed)
    one_step = path.reward + path.discount * path.next_value
    np.testing.assert_allclose(q_lambda_returns(*path.masked, 0.0), one_step, atol=1e-12)
    np.testing.assert_allclose(q_lambda_returns(*path.masked, 1.0), monte_carlo(path), atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", range(1, 8))
def test_n_step_window_agrees_with_n_step_returns(seed: int, n: int) -> None:
    path = make_trajectory(seed)
    whole = n_step_returns(*path.masked, n)
    lanes = range(path.reward.shape[1])
    for t in range(len(path.reward) - n + 1):
        rows = slice(t, t + n)
        returns, bootstrap_discount, horizon = n_step_window(
            path.reward[rows].T, path.terminated[rows].T, path.truncated[rows].T, GAMMA
        )
        bootstrap = path.next_value[t + horizon - 1, lanes]
        np.testing.assert_allclose(returns + bootstrap_discount * bootstrap, whole[t], atol=1e-12)
        to_the_end = [last_step(path, t, b) - t + 1 for b in lanes]
        np.testing.assert_array_equal(horizon, np.minimum(n, to_the_end))


def test_n_step_window_by_hand() -> None:
    # One window per row: no end, terminated, truncated, both, and termination after a truncation.
    terminated = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1]], bool)
    truncated = np.array([[0, 0, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 0, 0]], bool)
    reward = np.tile(np.array([1.0, 10.0, 100.0], np.float32), (5, 1))
    flags_before = terminated.copy(), truncated.copy()
    returns, bootstrap_discount, horizon = n_step_window(reward, terminated, truncated, 0.5)
    np.testing.assert_array_equal(returns, [31, 6, 6, 1, 1])
    np.testing.assert_array_equal(bootstrap_discount, [0.125, 0, 0.25, 0, 0.5])
    np.testing.assert_array_equal(horizon, [3, 2, 2, 1, 1])
    np.testing.assert_array_equal((terminated, truncated), flags_before)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_n_step_window_ignores_rows_after_the_horizon(garbage: float) -> None:
    reward = np.full((2, 4), garbage, np.float32)
    reward[:, :2] = 1.0
    ended = np.array([[False, True, True, True], [False, True, False, True]])
    unset = np.zeros_like(ended)
    returns, bootstrap_discount, horizon = n_step_window(reward, unset, ended, 0.5)
    np.testing.assert_array_equal(returns, [1.5, 1.5])
    np.testing.assert_array_equal(bootstrap_discount, [0.25, 0.25])
    np.testing.assert_array_equal(horizon, [2, 2])


def test_truncation_bootstraps_so_a_constant_reward_is_worth_ten_everywhere() -> None:
    # 1 + 0.9 + 0.81 + ... = 10: with an exact next_value, no cut may show in any target.
    path = make_trajectory(3)
    ones, tens = np.ones_like(path.reward), np.full_like(path.reward, 10.0)
    unset = np.zeros_like(path.terminated)
    ends = path.terminated | path.truncated
    path = Trajectory(ones, unset, ends, tens, tens, path.ratio)
    targets, advantages = vtrace(path.ratio, *path.masked[:3], tens, tens, 2.0, 1.0)
    np.testing.assert_allclose(n_step_returns(*path.masked, 4), tens)
    np.testing.assert_allclose(q_lambda_returns(*path.masked, 0.65), tens)
    np.testing.assert_allclose(targets, tens)
    np.testing.assert_allclose(advantages, 0.0, atol=1e-12)
    returns, bootstrap_discount, _ = n_step_window(ones, unset, ends, GAMMA)
    np.testing.assert_allclose(returns + bootstrap_discount * 10.0, 10.0)


def all_targets(path: Trajectory) -> list[Array]:
    """Every [T, B] result, for properties that hold for all of them."""
    return [
        n_step_returns(*path.masked, 3),
        q_lambda_returns(*path.masked, 0.65),
        *vtrace(path.ratio, *path.masked[:3], path.value, path.next_value),
    ]


def test_an_autoreset_row_changes_no_valid_row() -> None:
    path = make_trajectory(1)
    end = 6
    path.truncated[end] = True
    # An autoreset row: reward 0, no flag set, and values that no valid row may use.
    row = {"value": 1e6, "next_value": -1e6, "ratio": 1e6}
    with_reset = Trajectory(
        *(np.insert(a, end + 1, row.get(name, 0), axis=0) for name, a in path._asdict().items())
    )
    for without, with_row in zip(all_targets(path), all_targets(with_reset), strict=True):
        assert len(with_row) == len(without) + 1
        np.testing.assert_array_equal(np.delete(with_row, end + 1, axis=0), without)


def test_float32_stays_float32() -> None:
    path = make_trajectory(2)
    reward, discount, continues, next_value, value, ratio = (
        a.astype(np.float32) for a in (*path.masked, path.value, path.ratio)
    )
    returns, bootstrap_discount, horizon = n_step_window(reward, path.terminated, path.truncated, GAMMA)
    results = (
        returns,
        bootstrap_discount,
        n_step_returns(reward, discount, continues, next_value, 3),
        q_lambda_returns(reward, discount, continues, next_value, 0.65),
        *vtrace(ratio, reward, discount, continues, value, next_value),
    )
    assert [a.dtype for a in results] == [np.float32] * len(results)
    assert horizon.dtype == np.int64


@pytest.mark.parametrize("n_step", [0, -1])
def test_n_step_below_one_is_refused(n_step: int) -> None:
    path = make_trajectory(0)
    with pytest.raises(ValueError, match="n_step must be at least 1") as error:
        n_step_returns(*path.masked, n_step)
    assert str(n_step) in str(error.value)
    no_rows = np.zeros((4, 0))
    with pytest.raises(ValueError, match="at least 1 row"):
        n_step_window(no_rows, no_rows > 0, no_rows > 0, GAMMA)


def test_coefficients_out_of_range_are_refused() -> None:
    path = make_trajectory(0)
    for lambda_ in (-0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            q_lambda_returns(*path.masked, lambda_)
    for rho_bar, c_bar in ((1.0, 2.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="0 <= c_bar <= rho_bar"):
            vtrace(path.ratio, *path.masked[:3], path.value, path.next_value, rho_bar, c_bar)


def test_shapes_that_would_broadcast_are_refused() -> None:
    reward, discount, continues, next_value = make_trajectory(0).masked
    with pytest.raises(ValueError, match="same shape"):
        n_step_returns(reward, discount, continues, next_value[:, :1], 3)
    with pytest.raises(ValueError, match="same shape"):
        q_lambda_returns(reward[:, :1], discount, continues, next_value, 0.5)
    with pytest.raises(ValueError, match="same shape"):
        vtrace(reward, reward, discount[:, :1], continues, next_value, next_value)
    with pytest.raises(ValueError, match="same shape"):
        n_step_window(reward, reward[:, :1] > 0, reward > 0, GAMMA)
