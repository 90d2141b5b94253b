"""Environments whose every number tells where it comes from, so that any mixing shows.

An observation is (stream, episode, step). The stream is drawn from the seed, the episode counts from 0
within an environment, the step from 0 within an episode. How long an episode is, how it ends and what
it pays is a fixed function of these three, so a transition can be checked from its observation alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

LENGTHS = (3, 1, 5, 1, 1, 2, 8, 4)
ENDINGS = ("terminated", "truncated", "both")
NUM_ACTIONS = 3
FIRST_ACTION = 5  # actions are 5, 6, 7

SPACE = gymnasium.spaces.Box(0.0, 1e6, (3,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(NUM_ACTIONS, start=FIRST_ACTION)

PLAIN = "Counting-v0"
NEXT_STEP = "CountingNextStep-v0"
SAME_STEP = "CountingSameStep-v0"
DISABLED = "CountingDisabled-v0"
VECTOR_ONLY = "CountingVectorOnly-v0"


def streams(seed: int | None, number: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(100_000, size=number)


def length(stream: int, episode: int) -> int:
    return LENGTHS[(stream + episode) % len(LENGTHS)]


def ending(stream: int, episode: int) -> str:
    return ENDINGS[(stream + episode) % len(ENDINGS)]


def reward(episode: int, step: int, action: int) -> float:
    """Pay for ``action`` (from 0) at ``step``. Exact in float32 up to episode 4095."""
    return 1 + episode + step / 64 + action / 1024


def after(stream: int, episode: int, step: int) -> tuple[bool, bool]:
    """Return (terminated, truncated) on reaching ``step``."""
    ended = step == length(stream, episode)
    how = ending(stream, episode)
    return ended and how != "truncated", ended and how != "terminated"


class CountingEnv(gymnasium.Env[np.ndarray, np.int64]):
    """The plain environment. Stepping one that has ended is an error."""

    observation_space = SPACE
    action_space = ACTIONS

    def __init__(self) -> None:
        self.stream, self.episode, self.at, self.running = 0, -1, 0, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.stream, self.episode = int(streams(seed, 1)[0]), -1
        self.episode, self.at, self.running = self.episode + 1, 0, True
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.running, "stepped after the end"
        assert self.action_space.contains(action), f"action {action!r}"
        paid = reward(self.episode, self.at, int(action) - FIRST_ACTION)
        self.at += 1
        terminated, truncated = after(self.stream, self.episode, self.at)
        self.running = not (terminated or truncated)
        return self._observation(), paid, terminated, truncated, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.stream, self.episode, self.at], dtype=np.float32)


class CountingVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """The same as a batch, with any autoreset mode. Its arrays are its own and written again."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode}
        self.mode = mode
        self.single_observation_space, self.single_action_space = SPACE, ACTIONS
        self.action_space = gymnasium.vector.utils.batch_space(ACTIONS, num_envs)
        self.observation_space = gymnasium.vector.utils.batch_space(SPACE, num_envs)
        self.envs = [CountingEnv() for _ in range(num_envs)]
        self.observation = np.zeros((num_envs, 3), dtype=np.float32)
        self.reward = np.zeros(num_envs)
        self.terminated = np.zeros(num_envs, dtype=bool)
        self.truncated = np.zeros(num_envs, dtype=bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")
        if seed is not None:
            assert isinstance(seed, int)
            assert mask is None
            for env, stream in zip(self.envs, streams(seed, self.num_envs), strict=True):
                env.stream, env.episode = int(stream), -1
        for i, env in enumerate(self.envs):
            if mask is None or mask[i]:
                self.observation[i] = env.reset()[0]
                self.terminated[i] = self.truncated[i] = False
        return self.observation, {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        info: dict[str, Any] = {}
        ended_before = self.terminated | self.truncated
        for i, env in enumerate(self.envs):
            if self.mode == AutoresetMode.NEXT_STEP and ended_before[i]:
                self.observation[i], self.reward[i] = env.reset()[0], 0.0
                self.terminated[i] = self.truncated[i] = False
                continue
            row = env.step(actions[i])
            self.observation[i], self.reward[i], self.terminated[i], self.truncated[i], _ = row
            if self.mode == AutoresetMode.SAME_STEP and (row[2] or row[3]):
                final = info.setdefault("final_obs", np.full(self.num_envs, None, dtype=object))
                final[i] = self.observation[i].copy()
                self.observation[i] = env.reset()[0]
        return self.observation, self.reward, self.terminated, self.truncated, info


def _vector(mode: AutoresetMode) -> Any:
    def make(num_envs: int) -> CountingVectorEnv:
        return CountingVectorEnv(num_envs, mode)

    return make


gymnasium.register(PLAIN, CountingEnv)
gymnasium.register(NEXT_STEP, CountingEnv, vector_entry_point=_vector(AutoresetMode.NEXT_STEP))
gymnasium.register(SAME_STEP, CountingEnv, vector_entry_point=_vector(AutoresetMode.SAME_STEP))
gymnasium.register(DISABLED, CountingEnv, vector_entry_point=_vector(AutoresetMode.DISABLED))
gymnasium.register(VECTOR_ONLY, vector_entry_point=_vector(AutoresetMode.NEXT_STEP))


class Expected(NamedTuple):
    """A transition worked out by hand from its first observation."""

    action: int
    n_step_return: float
    bootstrap_discount: float
    bootstrap_observation: tuple[int, int, int]


def scripted_action(observation: np.ndarray) -> np.ndarray:
    """Return the action ``[L]`` (from 0) that the tests take at each observation ``[L, 3]``."""
    return ((7 * observation[:, 0] + 3 * observation[:, 1] + observation[:, 2]) % 3).astype(np.int64)


def expected_transition(
    observation: tuple[int, int, int],
    n_step: int,
    gamma: float,
    stopped_at: tuple[int, int, int] | None = None,
) -> Expected:
    """Work out a transition under ``scripted_action``, in plain Python.

    ``stopped_at`` is the stream's last observation, where the run ended: windows are cut there.
    """
    stream, episode, step = observation
    taken = (7 * stream + 3 * episode + step) % 3
    total, horizon = 0.0, 0
    while True:
        action = (7 * stream + 3 * episode + step + horizon) % 3
        total += gamma**horizon * reward(episode, step + horizon, action)
        horizon += 1
        here = (stream, episode, step + horizon)
        terminated, truncated = after(*here)
        if terminated:
            return Expected(taken, total, 0.0, here)
        if truncated or horizon == n_step or here == stopped_at:
            return Expected(taken, total, gamma**horizon, here)
