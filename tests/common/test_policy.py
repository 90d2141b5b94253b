from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from common.policy import boltzmann, epsilon_greedy, epsilon_ladder, linear_decay

NUM_DRAWS = 50_000


def test_the_ladder_has_the_papers_values() -> None:
    # Horgan et al. 2018: epsilon_i = 0.4^(1 + 7 i / (N - 1)).
    np.testing.assert_allclose(epsilon_ladder(2), [0.4, 0.4**8])
    np.testing.assert_allclose(
        epsilon_ladder(8), [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    )
    assert epsilon_ladder(1).tolist() == [0.4]
    ladder = epsilon_ladder(360)
    assert ladder[0] == 0.4
    assert math.isclose(ladder[-1], 6.5536e-4)
    assert math.isclose(ladder[100], 0.4 ** (1 + 700 / 359))


def test_linear_decay_is_a_line_and_then_flat() -> None:
    values = [linear_decay(steps, 1.0, 0.1, 1000) for steps in (0, 250, 500, 1000, 5000)]
    np.testing.assert_allclose(values, [1.0, 0.775, 0.55, 0.1, 0.1])
    assert linear_decay(0, 0.3, 0.3, 1) == linear_decay(10, 0.3, 0.3, 1) == 0.3


@pytest.mark.parametrize("num_actions", [2, 5])
def test_epsilon_is_the_share_of_random_actions(num_actions: int) -> None:
    epsilon, best = 0.1, num_actions - 1
    q_values = np.zeros((NUM_DRAWS, num_actions), dtype=np.float32)
    q_values[:, best] = 1
    action, probability = epsilon_greedy(q_values, epsilon, np.random.default_rng(0))
    # A random action is another one than the best in (A-1)/A of all cases.
    share = epsilon * (num_actions - 1) / num_actions
    error = math.sqrt(share * (1 - share) / NUM_DRAWS)
    assert abs((action != best).mean() - share) < 3 * error
    counts = np.bincount(action, minlength=num_actions)[:best]
    expected_counts = np.full(best, NUM_DRAWS * epsilon / num_actions)
    assert (np.abs(counts - expected_counts) < 4 * np.sqrt(expected_counts)).all()
    expected = np.where(action == best, 1 - share, epsilon / num_actions)
    np.testing.assert_allclose(probability, expected, rtol=1e-6)
    assert probability.dtype == np.float32


def test_lanes_have_their_own_epsilon() -> None:
    epsilon = np.array([0.0, 0.1, 0.5, 1.0])
    q_values = np.array([[3, 1, 2], [1, 3, 2], [1, 2, 3], [3, 2, 1]], dtype=np.float32)
    greedy = [0, 1, 2, 0]
    generator = np.random.default_rng(1)
    draws = [epsilon_greedy(q_values, epsilon, generator) for _ in range(20_000)]
    actions = np.array([action for action, _ in draws])
    share = epsilon * 2 / 3
    error = np.sqrt(share * (1 - share) / len(draws))
    assert (np.abs((actions != greedy).mean(axis=0) - share) <= 3 * error).all()
    for action, probability in draws[:200]:
        expected = epsilon / 3 + (1 - epsilon) * (action == greedy)
        np.testing.assert_allclose(probability, expected, rtol=1e-6)
    # Lanes explore independently of each other.
    explored = actions[:, 1] != 1, actions[:, 2] != 2
    both = (explored[0] & explored[1]).mean()
    assert abs(both - share[1] * share[2]) < 4 * math.sqrt(share[1] * share[2] / len(draws))


def test_boltzmann_draws_from_the_softmax() -> None:
    logits = np.array([0.0, 1.0, 2.0, -1.0], dtype=np.float32)
    softmax = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    action, probability = boltzmann(np.tile(logits, (NUM_DRAWS, 1)), np.random.default_rng(2))
    counts = np.bincount(action, minlength=4)
    assert stats.chisquare(counts, softmax * NUM_DRAWS).pvalue > 1e-3
    np.testing.assert_allclose(probability, softmax[action], rtol=1e-5)
    large, _ = boltzmann(np.array([[1e4, 0.0]], dtype=np.float32), np.random.default_rng(3))
    assert large.tolist() == [0]
