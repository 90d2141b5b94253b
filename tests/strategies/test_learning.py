"""Every strategy learns: far better than a random policy after a short run on CartPole."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

import strategies
from common.supervisor import RunProbe

# A random policy keeps the pole up for some 20 steps.
BETTER_THAN = 60.0
SEEDS = (0, 1)
# Enough for about two thousand updates at each strategy's own replay ratio.
UPDATES = 2_000


def updates_per_env_step(name: str, config: Any) -> float:
    """Return the replay ratio: what is held, or what the lengths of a rollout come to."""
    if "held" in strategies.traits_of(name).ratios:
        return float(config.replay_ratio)
    passes = getattr(config, "epochs", 1) * getattr(config, "minibatches", 1)
    return float(passes / (config.rollout_length * config.envs_per_worker))


def random_returns(episodes: int) -> np.ndarray:
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    returns = []
    for episode in range(episodes):
        env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return np.array(returns)


def test_a_random_policy_is_far_below_what_learning_must_reach() -> None:
    returns = random_returns(200)
    assert 15 < returns.mean() < 30
    assert returns.mean() + 5 * returns.std() / np.sqrt(len(returns)) < BETTER_THAN / 2


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", strategies.STRATEGIES)
def test_it_beats_a_random_policy(name: str, seed: int) -> None:
    config = strategies.load(name).Config.for_env("CartPole-v1", seed=seed)
    steps = config.warmup_env_steps + int(UPDATES / updates_per_env_step(name, config))
    config = dataclasses.replace(config, steps=steps)
    result = strategies.load(name).train(config, RunProbe())
    assert result.status == "completed" and result.best_mean is not None
    assert result.updates > 0.9 * UPDATES and result.best_mean > BETTER_THAN
    assert result.final_evaluation is not None and result.final_evaluation.mean > BETTER_THAN
