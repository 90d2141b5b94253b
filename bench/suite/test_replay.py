"""Replay: writing and sampling, by how much is stored, beside three other libraries' replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import parts
from bench.suite.rig import Benchmark, measure, peer, quick

pytestmark = quick

CAPACITIES = (10_000, 100_000, 1_000_000)
COMPARED = 100_000
ROWS = parts.FILLING_LANES * parts.CHUNK_STEPS
KINDS = {"uniform": False, "prioritized": True}
FIELDS = ("obs", "act", "rew", "next_obs", "done")


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_sample(benchmark: Benchmark, kind: str, capacity: int) -> None:
    """Draw and copy 128 transitions, and set their priorities if there are any."""
    bytes_each = parts.buffer_of(parts.replay_config(capacity, KINDS[kind])).bytes_per_transition
    measure(
        benchmark,
        f"sample 128, {kind}: {capacity:,} stored",
        parts.sampling(capacity, KINDS[kind]),
        series=f"sample, {kind}",
        axis="capacity",
        at=capacity,
        bytes_per_transition=bytes_each,
    )


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_insert(benchmark: Benchmark, capacity: int) -> None:
    """Write a chunk of 512 transitions of 64 lanes, publish it, and take it in with priorities."""
    observations = parts.buffer_of(parts.replay_config(capacity, True))["observation"]
    times_stored = observations.nbytes / (capacity * observations[0, 0, 0].nbytes)
    measure(
        benchmark,
        f"insert {ROWS}, prioritized: {capacity:,} stored",
        parts.inserting(capacity),
        series="insert, prioritized",
        axis="capacity",
        at=capacity,
        per_call={"transitions": ROWS},
        **({"observations_stored": times_stored} if capacity == CAPACITIES[-1] else {}),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_sample_cpprb(benchmark: Benchmark, kind: str) -> None:
    """Cpprb, a replay in C++."""
    buffer = full_cpprb(KINDS[kind])
    errors = np.random.default_rng(0).random(parts.BATCH_SIZE)

    def sample() -> None:
        batch = buffer.sample(parts.BATCH_SIZE, **({"beta": 0.4} if KINDS[kind] else {}))
        if KINDS[kind]:
            buffer.update_priorities(batch["indexes"], errors)

    measure(benchmark, f"sample 128, {kind}: {COMPARED:,} stored", sample)


@pytest.mark.parametrize("kind", KINDS)
def test_sample_torchrl(benchmark: Benchmark, kind: str) -> None:
    """Torchrl's replay of tensors."""
    import torch

    buffer = full_torchrl(KINDS[kind])
    errors = torch.rand(parts.BATCH_SIZE)

    def sample() -> None:
        batch = buffer.sample()
        if KINDS[kind]:
            buffer.update_priority(batch["index"], errors)

    measure(benchmark, f"sample 128, {kind}: {COMPARED:,} stored", sample)


def test_sample_sb3(benchmark: Benchmark) -> None:
    """Stable-baselines3's replay, which has no priorities."""
    buffer = empty_sb3()
    chunk = random_chunk(parts.FILLING_LANES)
    for _ in range(COMPARED // parts.FILLING_LANES):
        add_to_sb3(buffer, chunk)
    part = lambda: buffer.sample(parts.BATCH_SIZE)  # noqa: E731
    measure(benchmark, f"sample 128, uniform: {COMPARED:,} stored", part)


@pytest.mark.parametrize("library", ["cpprb", "torchrl", "sb3"])
def test_insert_other(benchmark: Benchmark, library: str) -> None:
    """The same 512 transitions, in the largest pieces that each library takes."""
    group = f"insert {ROWS}, prioritized: {COMPARED:,} stored"
    measure(benchmark, group, INSERTS[library](), per_call={"transitions": ROWS})


def random_chunk(rows: int) -> dict[str, Any]:
    """Return random transitions by field."""
    observation = parts.random_observations(rows)
    zeros = np.zeros(rows, dtype=np.float32)
    values = (observation, np.zeros(rows, dtype=np.int64), zeros, observation, zeros)
    return dict(zip(FIELDS, values, strict=True))


def full_cpprb(prioritized: bool) -> Any:
    """Return a full replay of cpprb's."""
    cpprb = peer("cpprb")
    shapes = {"obs": {"shape": 4}, "act": {"dtype": np.int64}, "rew": {}, "next_obs": {"shape": 4}}
    kind = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
    buffer = kind(COMPARED, {**shapes, "done": {}})
    for _ in range(COMPARED // ROWS + 1):
        buffer.add(**random_chunk(ROWS))
    return buffer


def full_torchrl(prioritized: bool) -> Any:
    """Return a full replay of torchrl's."""
    torchrl: Any = peer("torchrl.data")
    storage = torchrl.LazyTensorStorage(COMPARED)
    if prioritized:
        buffer = prioritized_torchrl(torchrl, storage)
    else:
        buffer = torchrl.TensorDictReplayBuffer(storage=storage, batch_size=parts.BATCH_SIZE)
    for _ in range(COMPARED // ROWS + 1):
        buffer.extend(tensors(random_chunk(ROWS)))
    return buffer


def prioritized_torchrl(torchrl: Any, storage: Any) -> Any:
    """Return torchrl's prioritized replay; its sum tree is in C++ and built for one torch version."""
    try:
        return torchrl.TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=storage, batch_size=parts.BATCH_SIZE
        )
    except RuntimeError as error:
        pytest.skip(f"torchrl's prioritized replay does not work with this torch: {error}")


def tensors(chunk: dict[str, Any]) -> Any:
    """Return transitions as torchrl takes them."""
    import torch

    tensordict: Any = peer("tensordict")
    fields = {name: torch.from_numpy(values) for name, values in chunk.items()}
    return tensordict.TensorDict(fields, batch_size=[ROWS])


def empty_sb3() -> Any:
    """Return an empty replay of stable-baselines3's, for as many lanes as ours has here."""
    import gymnasium

    buffers: Any = peer("stable_baselines3.common.buffers")
    env = gymnasium.make(parts.ENV_ID)
    spaces = (env.observation_space, env.action_space)
    return buffers.ReplayBuffer(COMPARED, *spaces, device="cpu", n_envs=parts.FILLING_LANES)


def add_to_sb3(buffer: Any, chunk: dict[str, Any]) -> None:
    """Add a transition of every lane."""
    values = (chunk[name] for name in ("obs", "next_obs", "act", "rew", "done"))
    buffer.add(*values, [{}] * parts.FILLING_LANES)


def inserting_cpprb() -> parts.Part:
    """Prepare inserting into cpprb."""
    buffer, chunk = full_cpprb(True), random_chunk(ROWS)
    return lambda: buffer.add(**chunk)


def inserting_torchrl() -> parts.Part:
    """Prepare inserting into torchrl."""
    buffer, chunk = full_torchrl(True), tensors(random_chunk(ROWS))
    return lambda: buffer.extend(chunk)


def inserting_sb3() -> parts.Part:
    """Prepare inserting into stable-baselines3: a step of all lanes at a time, without priorities."""
    buffer, chunk = empty_sb3(), random_chunk(parts.FILLING_LANES)

    def insert() -> None:
        for _ in range(parts.CHUNK_STEPS):
            add_to_sb3(buffer, chunk)

    return insert


INSERTS = {"cpprb": inserting_cpprb, "torchrl": inserting_torchrl, "sb3": inserting_sb3}
