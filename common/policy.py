"""Exploration: how a worker turns Q-values into actions, and how probable each action was."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.types import FloatArray, IntArray

LADDER_BASE = 0.4  # Horgan et al. 2018, section 4.1
LADDER_EXPONENT = 7.0


def epsilon_ladder(num_lanes: int) -> NDArray[np.float64]:
    """Return a fixed epsilon per lane, 0.4^(1 + 7 i / (N - 1)), ``[N]``.

    Over all lanes of all workers; a single lane uses 0.4 (Horgan et al. 2018, section 4.1).
    """
    if num_lanes == 1:
        return np.array([LADDER_BASE])
    return LADDER_BASE ** (1 + LADDER_EXPONENT * np.arange(num_lanes) / (num_lanes - 1))


def linear_decay(env_steps: int, start: float, end: float, decay_env_steps: int) -> float:
    """Return the value on the line from ``start`` to ``end``, constant after ``decay_env_steps``."""
    progress = min(1.0, env_steps / decay_env_steps)
    return start + progress * (end - start)


def epsilon_greedy(
    q_values: FloatArray, epsilon: float | NDArray[np.float64], generator: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Choose an action per lane: uniform with probability epsilon, else the greedy one.

    Args:
        q_values: ``[L, A]``.
        epsilon: one for all lanes, or ``[L]``.
        generator: the worker's own random stream.

    Returns:
        Actions ``[L]`` and the probability with which each was chosen ``[L]``.
    """
    num_lanes, num_actions = q_values.shape
    greedy = q_values.argmax(axis=1)
    explores = generator.random(num_lanes) < epsilon
    action = np.where(explores, generator.integers(num_actions, size=num_lanes), greedy)
    probability = epsilon / num_actions + (1.0 - epsilon) * (action == greedy)
    return action, probability.astype(np.float32)


def boltzmann(logits: FloatArray, generator: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """Draw an action per lane from softmax(logits) by the Gumbel-max identity.

    Args:
        logits: ``[L, A]``.
        generator: the worker's own random stream.

    Returns:
        Actions ``[L]`` and the probability of each ``[L]``.
    """
    action = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)
    exponential = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = exponential / exponential.sum(axis=1, keepdims=True)
    return action, probability[np.arange(len(action)), action].astype(np.float32)
