"""Acting and updating: the ceilings of one process, and what autograd's defaults cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import parts
from bench.suite.rig import Benchmark, measure, median, paired_ratio, peer, quick

pytestmark = quick

ACTING_BATCHES = (1, 8, 64)
LEARNING_BATCHES = (64, 128, 512)
WIDTHS = (32, 128, 512)
CAPACITY = 50_000


@pytest.mark.parametrize("batch", ACTING_BATCHES)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_act(benchmark: Benchmark, library: str, batch: int) -> None:
    """Q-values of a batch of observations."""
    make = {"numpy": parts.acting, "torch": parts.acting_in_torch}[library]
    measure(
        benchmark,
        f"act: batch {batch}",
        make(batch),
        series=f"act, {library}",
        axis="batch",
        at=batch,
        per_call={"actions": batch},
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_act_by_width(benchmark: Benchmark, width: int) -> None:
    """The same with other widths of the network."""
    group, series = "act: batch 8, by width", "act, numpy, batch 8"
    measure(benchmark, group, parts.acting(8, width), series=series, axis="width", at=width)


@pytest.mark.parametrize("batch", LEARNING_BATCHES)
@pytest.mark.parametrize("writes", ["audited", "unaudited", "private"])
def test_update(benchmark: Benchmark, writes: str, batch: int) -> None:
    """One update: into the audited master, the same without counting, and a private network."""
    measure(
        benchmark,
        f"update: batch {batch}",
        parts.update(batch, writes=writes),
        series=f"update, {writes}",
        axis="batch",
        at=batch,
        per_call={"updates": 1},
    )


@pytest.mark.parametrize("batch", LEARNING_BATCHES)
def test_update_textbook(benchmark: Benchmark, batch: int) -> None:
    """The update as most tutorials write it: eager torch with its default Adam."""
    measure(
        benchmark,
        f"update: batch {batch}",
        textbook_update(batch),
        series="update, textbook",
        axis="batch",
        at=batch,
        per_call={"updates": 1},
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_update_by_width(benchmark: Benchmark, width: int) -> None:
    """The audited update with other widths of the network."""
    group, series = "update: batch 128, by width", "update, audited, batch 128"
    measure(benchmark, group, parts.update(128, width), series=series, axis="width", at=width)


def test_sample_and_update(benchmark: Benchmark) -> None:
    """A training step from replay to weights: ours."""
    part = parts.sample_and_update(CAPACITY)
    measure(benchmark, "sample and update: batch 128", part, per_call={"updates": 1})


def test_sample_and_update_sb3(benchmark: Benchmark) -> None:
    """A step of stable-baselines3's DQN: the same width and batch; one head, no double Q-learning."""
    part = sb3_training_step()
    measure(benchmark, "sample and update: batch 128", part, per_call={"updates": 1})


def test_audit_cost(benchmark: Benchmark) -> None:
    """The update with and without the audit, in pairs; what the audit leaves of the speed."""
    audited, unaudited = parts.update(64), parts.update(64, writes="unaudited")
    ratios = paired_ratio(unaudited, audited) if benchmark.enabled else [1.0]
    measure(benchmark, "update: batch 64", audited, audit_ratio=median(ratios))


def textbook_update(batch_size: int) -> parts.Part:
    """Prepare one double-DQN update of the same network with the defaults of torch."""
    import torch
    from torch.nn.functional import smooth_l1_loss

    from common.acting import initial_weights
    from common.network import QNetwork

    spec = parts.network_spec_of(parts.WIDTH)
    network = QNetwork(spec, initial_weights(spec, 0))
    target = QNetwork(spec, initial_weights(spec, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    batch = parts.random_batch(batch_size)
    observation, following = map(torch.from_numpy, (batch.observation, batch.bootstrap_observation))
    action = torch.from_numpy(batch.action)[:, None]
    reward, discount = map(torch.from_numpy, (batch.n_step_return, batch.bootstrap_discount))

    def update() -> None:
        with torch.no_grad():
            best = network(following).argmax(1, keepdim=True)
            wanted = reward + discount * target(following).gather(1, best)[:, 0]
        loss = smooth_l1_loss(network(observation).gather(1, action)[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()

    return update


def sb3_training_step() -> parts.Part:
    """Prepare one training step of stable-baselines3's DQN on a full replay."""
    sb3: Any = peer("stable_baselines3")
    model = sb3.DQN(
        "MlpPolicy",
        parts.ENV_ID,
        batch_size=parts.BATCH_SIZE,
        buffer_size=CAPACITY,
        policy_kwargs={"net_arch": [parts.WIDTH, parts.WIDTH]},
        device="cpu",
    )
    model.set_logger(sb3.common.logger.Logger(None, []))
    observation, action = parts.random_observations(1), np.zeros(1, dtype=np.int64)
    reward, done = np.ones(1), np.zeros(1)
    for _ in range(2_000):
        model.replay_buffer.add(observation, observation, action, reward, done, [{}])
    return lambda: model.train(gradient_steps=1, batch_size=parts.BATCH_SIZE)
