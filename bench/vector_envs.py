"""The ways to step several environments at once, measured on the user's own environment.

A cheap environment costs less to step than to send it a message; one that takes milliseconds gains from
a process of its own. Which it is cannot be told from outside.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from bench.aside import AsideError, measure_aside
from common.envs import inspect_env

NUM_ENVS = 8
ACTIONS_KEPT = 256
WARM_UP_STEPS = 2

# Way: what it is called.
WAYS = {
    "one": "one env (gym.make)",
    "sync": "SyncVectorEnv",
    "own": "the env's own vector version",
    "async": "AsyncVectorEnv",
}


def compare_vector_envs(env_id: str, seconds: float, num_envs: int = NUM_ENVS) -> dict[str, Any]:
    """Return env steps/s of each way, None where there is none, and which is the fastest.

    Args:
        env_id: any environment that a run takes.
        seconds: of each measurement.
        num_envs: environments stepped at once (but one by ``gym.make``).

    Raises:
        click.ClickException: the environment failed.
    """
    rates: dict[str, float | None] = dict.fromkeys(WAYS)
    refused = None
    for way in WAYS:
        arguments = {"env_id": env_id, "way": way, "num_envs": num_envs, "seconds": seconds}
        try:
            (rates[way],) = measure_aside("bench.vector_envs:prepare", arguments, seconds=seconds)
        except AsideError as error:
            if way != "async":
                raise
            refused = error.message  # an environment may not bear a process of its own
    known = {way: rate for way, rate in rates.items() if rate}
    return {
        "num_envs": num_envs,
        "env_steps_per_second": rates,
        "async_refused": refused,
        "fastest": max(known, key=lambda way: known[way]),
    }


def verdict(found: Mapping[str, Any]) -> str:
    """Say in one line whether processes pay for this environment."""
    rates, fastest = found["env_steps_per_second"], WAYS[found["fastest"]]
    if rates["async"] is None:
        why = found["async_refused"]
        return f"AsyncVectorEnv could not be measured ({why}). The fastest is {fastest}."
    ratio = rates["async"] / rates["sync"]
    times, costs = (1 / ratio, "slower") if ratio < 1 else (ratio, "faster")
    reason = "costs more than" if ratio < 1 else "costs less than"
    return (
        f"AsyncVectorEnv is {times:.1f} times {costs} than SyncVectorEnv: a message to a process "
        f"{reason} a step of this environment. The fastest is {fastest}."
    )


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """Make one environment, in a process that may not have heard of it."""
    inspect_env(env_id)  # registers what does not register itself
    return gymnasium.make(env_id)


def prepare(env_id: str, way: str, num_envs: int, seconds: float) -> Callable[[], float | None]:
    """Return a function that steps for some seconds and returns env steps per second."""
    info = inspect_env(env_id)
    if way == "one":
        return functools.partial(_step_one, env_id, info.num_actions, info.first_action, seconds)
    env = _make(env_id, way, num_envs)
    if env is None:
        return lambda: None
    actions = np.random.default_rng(0).integers(info.num_actions, size=(ACTIONS_KEPT, num_envs))
    actions += info.first_action
    env.reset(seed=0)
    for row in actions[:WARM_UP_STEPS]:
        _step_all(env, row)
    return functools.partial(_step_many, env, actions, seconds)


def _make(env_id: str, way: str, num_envs: int) -> VectorEnv[Any, Any, Any] | None:
    makers = [functools.partial(make_env, env_id)] * num_envs
    if way == "sync":
        return SyncVectorEnv(makers)
    if way == "async":
        # The start method of everything here; what a fork would copy is not measured.
        return AsyncVectorEnv(makers, context="spawn")
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    if gymnasium.spec(name).vector_entry_point is None:
        return None
    with contextlib.suppress(ImportError, gymnasium.error.DependencyNotInstalled):
        return gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
    return None  # it needs a library that the plain one does not


def _step_many(env: VectorEnv[Any, Any, Any], actions: Any, seconds: float) -> float:
    number, elapsed = count_steps(env, actions, seconds)
    env.close()
    return number / elapsed


def count_steps(env: VectorEnv[Any, Any, Any], actions: Any, seconds: float) -> tuple[int, float]:
    """Step all for some seconds and return how many env steps that were, and how long it took."""
    began, number, vector_steps = time.perf_counter(), 0, 0
    ended = np.zeros(env.num_envs, dtype=bool)
    while (elapsed := time.perf_counter() - began) < seconds or number == 0:
        # The step after an end only moves on to the next episode: it is no env step.
        number += env.num_envs - int(ended.sum())
        ended = _step_all(env, actions[vector_steps % ACTIONS_KEPT])
        vector_steps += 1
    return number, elapsed


def _step_all(env: VectorEnv[Any, Any, Any], actions: Any) -> Any:
    """Step all and return which of them, ``[num_envs]``, will not step but reset next time."""
    _, _, terminated, truncated, _ = env.step(actions)
    ended = terminated | truncated
    mode = env.metadata.get("autoreset_mode")
    if mode == AutoresetMode.DISABLED and ended.any():
        env.reset(options={"reset_mask": ended})
    return ended if mode == AutoresetMode.NEXT_STEP else np.zeros_like(ended)


def _step_one(env_id: str, num_actions: int, first_action: int, seconds: float) -> float:
    env = make_env(env_id)
    actions = np.random.default_rng(0).integers(num_actions, size=ACTIONS_KEPT) + first_action
    env.reset(seed=0)
    began, number = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds or number == 0:
        _, _, terminated, truncated, _ = env.step(actions[number % ACTIONS_KEPT])
        number += 1
        if terminated or truncated:
            env.reset()
    env.close()
    return number / elapsed
