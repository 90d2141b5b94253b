"""Multi-step returns: the learning targets that every learner in the toolkit shares.

Notation, used by every function below:

* ``T`` is time, ``B`` is lanes (independent environments) or the batch; arrays are ``[T, B]``.
* ``reward[t]`` is the reward of step ``t``.
* ``discount[t]`` is ``gamma * (1 - terminated[t])``.
* ``episode_continues[t]`` is ``1 - (terminated[t] | truncated[t])``.
* ``value[t]`` is the value of the observation that step ``t`` starts from.
* ``next_value[t]`` is the value of the observation that step ``t`` led to. At the end of an
  episode that is its final observation, never the first one of the next episode.

Two masks are needed because the two kinds of ending differ. Both cut the return, so that no reward
leaks in from the next episode (``episode_continues``). Only termination removes the value of what
comes after (``discount``): a truncated episode would have gone on, so it bootstraps.

Autoreset rows (``valid`` false) are not environment steps. A row before one never sees it, because
the row that ended the episode cuts the return. The results *at* an autoreset row are meaningless,
and the caller masks them.

Floating arrays share one dtype, float32 or float64, and the results have that dtype.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


class VTrace(NamedTuple):
    """Results of `vtrace`, both [T, B].

    Attributes:
        targets: v_t, what the value of step t's observation is regressed towards.
        advantages: the policy-gradient weight of step t's action.
    """

    targets: FloatArray
    advantages: FloatArray


def n_step_returns(
    reward: FloatArray,
    discount: FloatArray,
    episode_continues: FloatArray,
    next_value: FloatArray,
    n_step: int,
) -> FloatArray:
    """n-step returns of every step of a trajectory.

    Sutton & Barto (2018), eq. 7.1; used by DQN in Hessel et al. (2018), "Multi-step learning":

        R_t = sum_{k<h} (prod_{j<k} discount_{t+j}) reward_{t+k}
              + (prod_{j<h} discount_{t+j}) next_value_{t+h-1}

    where h is n_step, or fewer if the episode or the array ends first.

    Args:
        reward: [T, B].
        discount: [T, B].
        episode_continues: [T, B].
        next_value: [T, B].
        n_step: longest window, at least 1; n_step >= T runs to the end of the episode or array.

    Returns:
        Returns [T, B].
    """
    if n_step < 1:
        raise ValueError(f"n_step must be at least 1, got {n_step}.")
    _require_equal_shapes(reward, discount, episode_continues, next_value)

    # An n-step return is one reward followed by the (n-1)-step return of the next row, so each
    # pass lengthens every window by one row.
    returns = reward + discount * next_value
    for _ in range(min(n_step, len(reward)) - 1):
        returns = reward + discount * _next_row(returns, episode_continues, next_value)
    return returns


def n_step_window(
    reward: FloatArray, terminated: BoolArray, truncated: BoolArray, gamma: float
) -> tuple[FloatArray, FloatArray, IntArray]:
    """n-step returns of sampled windows, without the value to bootstrap from.

    The same equation as `n_step_returns`. A replay learner stores no values: it gets them from the
    network, one per window, and the target is

        returns + bootstrap_discount * value(observation at row t + horizon)

    Args:
        reward: [B, n] rewards of rows t .. t+n-1; rows after the horizon may hold anything.
        terminated: [B, n].
        truncated: [B, n]; where a row is both, terminated wins.
        gamma: discount factor of one step.

    Returns:
        returns: [B] discounted rewards of the rows up to the horizon.
        bootstrap_discount: [B] gamma ** horizon, or 0 where the window ended by termination.
        horizon: [B] number of rows up to and including the first that ended, else n.
    """
    _require_equal_shapes(reward, terminated, truncated)
    batch_size, n_step = reward.shape
    if n_step < 1:
        raise ValueError(f"A window must hold at least 1 row, got {n_step}.")

    ended = terminated | truncated
    ended[:, -1] = True  # argmax finds the first True, and would give 0 if there were none
    last_row = ended.argmax(axis=1)
    horizon = last_row + 1

    gamma_powers = (gamma ** np.arange(n_step + 1)).astype(reward.dtype)
    # `where`, not a product with the mask: 0 * NaN is NaN.
    reward_within = np.where(np.arange(n_step) < horizon[:, None], reward, 0)
    returns = reward_within @ gamma_powers[:n_step]
    # Only the last row counts: later rows may belong to another episode that terminated.
    window_terminated = terminated[np.arange(batch_size), last_row]
    bootstrap_discount = np.where(window_terminated, 0, gamma_powers[horizon])
    return returns, bootstrap_discount, horizon


def vtrace(
    ratio: FloatArray,
    reward: FloatArray,
    discount: FloatArray,
    episode_continues: FloatArray,
    value: FloatArray,
    next_value: FloatArray,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    """V-trace targets and advantages for data from an older policy.

    Espeholt et al. (2018), eq. 1 in the recursive form of Remark 1, and section 4.2:

        delta_t     = rho_t (reward_t + discount_t next_value_t - value_t)
        v_t         = value_t + delta_t + discount_t c_t (v_{t+1} - value_{t+1})
        advantage_t = rho_t (reward_t + discount_t v_{t+1} - value_t)

    with rho_t = min(rho_bar, ratio_t) and c_t = min(c_bar, ratio_t). The last term of v_t is zero,
    and next_value_t stands in for v_{t+1}, where step t ends the episode or the array.

    `value` and `next_value` must come from the same network: the deltas telescope only if
    next_value_t equals value_{t+1} within an episode.

    Args:
        ratio: [T, B] pi(action) / mu(action), the learner's probability over the actor's. Ratios,
            not their logarithms, because a greedy pi gives some actions probability zero.
        reward: [T, B].
        discount: [T, B].
        episode_continues: [T, B].
        value: [T, B].
        next_value: [T, B].
        rho_bar: clip of the ratio in delta; decides which policy's value is learnt.
        c_bar: clip of the ratio in the trace, at most rho_bar; trades variance for speed.

    Returns:
        Targets and advantages, [T, B] each.
    """
    if not 0 <= c_bar <= rho_bar:
        raise ValueError(f"V-trace needs 0 <= c_bar <= rho_bar, got {c_bar=} and {rho_bar=}.")
    _require_equal_shapes(ratio, reward, discount, episode_continues, value, next_value)

    rho = np.minimum(rho_bar, ratio)
    c = np.minimum(c_bar, ratio)
    delta = rho * (reward + discount * next_value - value)
    trace = discount * episode_continues * c

    correction = np.zeros_like(value)  # v_t - value_t
    correction[-1] = delta[-1]
    for t in reversed(range(len(value) - 1)):
        correction[t] = delta[t] + trace[t] * correction[t + 1]
    targets = value + correction

    next_target = _next_row(targets, episode_continues, next_value)
    advantages = rho * (reward + discount * next_target - value)
    return VTrace(targets, advantages)


def q_lambda_returns(
    reward: FloatArray,
    discount: FloatArray,
    episode_continues: FloatArray,
    next_q_max: FloatArray,
    lambda_: float,
) -> FloatArray:
    """Peng's Q(lambda): the average of all n-step returns, weighted by powers of lambda.

    Peng & Williams (1996), in the recursive form that PQN uses (Gallici et al., 2024):

        G_t = reward_t + discount_t (lambda G_{t+1} + (1 - lambda) next_q_max_t)

    and G_t = reward_t + discount_t next_q_max_t where step t ends the episode or the array.

    The rewards that follow an exploring action are kept, not cut as in Watkins's Q(lambda), so
    lambda > 0 is biased towards the values of the exploring policy.

    Args:
        reward: [T, B].
        discount: [T, B].
        episode_continues: [T, B].
        next_q_max: [T, B] max over actions of Q at the observation that the step led to.
        lambda_: 0 gives one-step Q-learning, 1 the return to the end of the episode or array.

    Returns:
        Returns [T, B].
    """
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ must be between 0 and 1, got {lambda_}.")
    _require_equal_shapes(reward, discount, episode_continues, next_q_max)

    returns = reward + discount * next_q_max
    for t in reversed(range(len(reward) - 1)):
        mixed = lambda_ * returns[t + 1] + (1 - lambda_) * next_q_max[t]
        returns[t] = reward[t] + discount[t] * np.where(episode_continues[t], mixed, next_q_max[t])
    return returns


def _next_row(
    estimate: FloatArray, episode_continues: FloatArray, next_value: FloatArray
) -> FloatArray:
    """The next row's estimate [T, B], or next_value where the next row is another episode's."""
    following = next_value.copy()
    following[:-1] = np.where(episode_continues[:-1], estimate[1:], next_value[:-1])
    return following


def _require_equal_shapes(*arrays: NDArray[Any]) -> None:
    # Broadcasting would accept [T, 1] or [B] beside [T, B] and give wrong targets in silence.
    shapes = [array.shape for array in arrays]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"All arrays must have the same shape, got {shapes}.")
