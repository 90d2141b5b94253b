"""How fast environments step: the ceiling of collecting."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from bench import parts
from bench.suite.rig import Benchmark, measure, peer, quick

pytestmark = quick

LANES = (1, 8, 64)


@pytest.mark.parametrize("num_lanes", LANES)
def test_ours(benchmark: Benchmark, num_lanes: int) -> None:
    """Our lanes, whatever they are made of."""
    _measure(benchmark, "ours", num_lanes, parts.lanes(num_lanes))


@pytest.mark.parametrize("wrapped", [True, False], ids=["made", "unwrapped"])
def test_one_env(benchmark: Benchmark, wrapped: bool) -> None:
    """One environment as gymnasium makes it, and without the wrappers that it adds."""
    env: Any = gymnasium.make(parts.ENV_ID)
    env = env if wrapped else env.unwrapped
    env.reset(seed=0)
    actions = parts.random_actions(1)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(int(next(actions)[0]))
        if terminated or truncated:
            env.reset()

    _measure(benchmark, "one env" if wrapped else "one env, unwrapped", 1, step)


@pytest.mark.parametrize("kind", ["sync", "async", "native"])
@pytest.mark.parametrize("num_lanes", LANES[1:])
def test_gymnasium(benchmark: Benchmark, kind: str, num_lanes: int) -> None:
    """Gymnasium's vector environments: in turn, a process for each, and CartPole's own arrays."""
    modes = {"sync": "sync", "async": "async", "native": "vector_entry_point"}
    if kind == "async" and num_lanes > 8:
        pytest.skip("a process for each of 64 environments is no sensible choice")
    env = gymnasium.make_vec(parts.ENV_ID, num_lanes, vectorization_mode=modes[kind])
    env.reset(seed=0)
    actions = parts.random_actions(num_lanes)
    _measure(benchmark, f"gymnasium {kind}", num_lanes, lambda: env.step(next(actions)))
    env.close()


@pytest.mark.parametrize("num_lanes", LANES[1:])
def test_envpool(benchmark: Benchmark, num_lanes: int) -> None:
    """Envpool's CartPole, with one thread."""
    envpool = peer("envpool")
    env = envpool.make(parts.ENV_ID, env_type="gymnasium", num_envs=num_lanes, num_threads=1)
    env.reset()
    actions = parts.random_actions(num_lanes)
    _measure(benchmark, "envpool", num_lanes, lambda: env.step(next(actions)))
    env.close()


def _measure(benchmark: Benchmark, series: str, num_lanes: int, step: parts.Part) -> None:
    measure(
        benchmark,
        f"env: one vector step of {num_lanes}",
        step,
        series=f"env, {series}",
        axis="lanes",
        at=num_lanes,
        per_call={"env_steps": num_lanes},
    )
