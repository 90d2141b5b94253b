"""`hogwild` and `a3c`: what is lost, what is stale, and what a push does."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from strategy_runs import COPY_BACK, run_here, train

import strategies
from common import distributions
from common.audit import AuditReader, MasterWriter
from common.config import ConfigError
from common.learner import Learner
from common.locks import FileLock
from common.supervisor import RunProbe, Shared
from common.trajectories import Trajectory
from common.types import RunResult
from strategies import a3c, hogwild


def run(name: str, **choices: Any) -> RunResult:
    strategy = strategies.load(name)
    result: RunResult = strategy.train(strategy.Config.for_env("CartPole-v1", **choices), RunProbe())
    assert result.status == "completed", result.error
    return result


class _Uncounted:
    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def make_rollout(length: int = 6, lanes: int = 3) -> Trajectory:
    generator = np.random.default_rng(3)
    shape = (length, lanes)
    ended = generator.random((2, *shape)) < 0.2
    valid = np.ones(shape, dtype=bool)
    valid[1:] = ~(ended[0] | ended[1])[:-1]
    return Trajectory(
        observation=generator.normal(size=(length + 1, lanes, 4)).astype(np.float32),
        action=generator.integers(2, size=shape),
        action_probability=np.full(shape, 0.5, dtype=np.float32),
        reward=generator.normal(size=shape).astype(np.float32),
        terminated=ended[0],
        truncated=ended[1] & ~ended[0],
        valid=valid,
        weights_version=np.zeros(length, dtype=np.int64),
    )


def n_step_targets_by_hand(rollout: Trajectory, learner: Learner, gamma: float) -> list[float]:
    """Mnih et al. 2016, Algorithm S2, one transition at a time."""
    length, lanes = rollout.reward.shape
    targets = []
    for t in range(length):
        for lane in range(lanes):
            if not rollout.valid[t, lane]:
                continue
            total, weight, k = 0.0, 1.0, t
            while True:
                total += weight * float(rollout.reward[k, lane])
                weight *= gamma
                if rollout.terminated[k, lane]:
                    break
                if rollout.truncated[k, lane] or k == length - 1:
                    after = rollout.observation[k + 1, lane][None]
                    total += weight * float(learner.target_values(after)[0])
                    break
                k += 1
            targets.append(total)
    return targets


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_one_push_is_one_plain_optimizer_step(optimizer: str) -> None:
    config = a3c.Config.for_env("CartPole-v1", workers=1, optimizer=optimizer, max_grad_norm=None)
    shared = Shared(config, 1, optimizer)
    weights = shared.latest()
    state, writer = shared.optimizer_state, MasterWriter(shared.master)
    learner = Learner(config, shared.spec, weights, writer, optimizer, state)
    plain = Learner(config, shared.spec, weights)
    if optimizer == "rmsprop":
        plain.optimizer = torch.optim.RMSprop(
            plain.network.parameters(), lr=config.learning_rate, alpha=0.99, eps=config.adam_epsilon
        )
    rollout = make_rollout()
    target = torch.tensor(n_step_targets_by_hand(rollout, plain, config.gamma), dtype=torch.float32)
    for _ in range(3):
        learner.read()
        learner.compute_rollout_gradient(rollout)
        a3c.push_gradient(_Uncounted(), learner, shared, FileLock(None), 0)  # type: ignore[arg-type]
        observation = torch.from_numpy(rollout.observation[:-1][rollout.valid])
        action = torch.from_numpy(rollout.action[rollout.valid])
        q_taken = plain.network(observation).gather(1, action[:, None]).squeeze(1)
        plain.optimizer.zero_grad()
        torch.nn.functional.huber_loss(q_taken, target).backward()
        plain.optimizer.step()
    assert np.abs(plain.vector - weights).max() > 1e-3
    np.testing.assert_allclose(shared.master.vector(), plain.vector, atol=1e-6, rtol=0)
    assert AuditReader(shared.master).report()["updates_issued"] == 3


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_staleness_is_bounded_between_threads(max_staleness: int) -> None:
    workers = 3
    choices: dict[str, Any] = {"workers": workers, "steps": 2_000, "straggler": "1:2", "lock": True}
    left = run_here("a3c", max_staleness=max_staleness, **choices)
    updates = [left.telemetry.word(role, "updates") for role in range(workers)]
    assert max(updates) - min(updates) <= max_staleness + 2 and min(updates) > 10
    staleness = distributions.quantiles(left.telemetry.histogram("gradient_staleness"))
    assert staleness is not None and staleness["max"] <= (workers - 1) * (2 * max_staleness + 1)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_staleness_is_bounded_although_a_worker_is_slow(max_staleness: int) -> None:
    workers = 3
    choices: dict[str, Any] = {"workers": workers, "steps": 6_000, "straggler": "1:2"}
    result = run("a3c", max_staleness=max_staleness, lock=True, **choices)
    updates = [role.counters["updates"] for role in result.roles]
    # At the end workers leave one by one, each with one push that nobody waits for.
    assert max(updates) - min(updates) <= max_staleness + 2
    staleness = distributions.quantiles(result.histograms["gradient_staleness"])
    assert staleness is not None and staleness["max"] <= (workers - 1) * (2 * max_staleness + 1)
    assert result.audit is not None and result.audit["writes_lost"] == 0
    assert result.total("stored") == result.env_steps


@pytest.mark.slow  # a longer one than those of the contract
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", ["hogwild", "a3c"])
def test_under_a_lock_nothing_is_lost_and_every_step_is_accounted_for(name: str) -> None:
    result = run(name, workers=2, lock=True, steps=3_000)
    assert result.audit is not None and result.audit["auditable"]
    assert result.audit["writes_lost"] == 0 and result.audit["updates_issued"] == result.updates > 40
    taken = result.total("stored") + result.total("dropped")
    assert result.env_steps == taken + result.in_flight_at_end
    assert np.isfinite(result.final_weights).all()


@pytest.mark.multiprocess
def test_copying_back_undoes_whole_updates_and_says_whose() -> None:
    audit = train("hogwild", **COPY_BACK).result.audit
    assert audit is not None and audit["auditable"]
    assert 0 < audit["writes_lost"] < audit["writes_issued"]
    assert audit["lost_whole_at_most"] > 0, "whole updates, not only elements, are undone"
    assert len(audit["survivors_by_worker"]) == 2
    assert sum(audit["survivors_by_worker"]) <= audit["updates_issued"]


def test_shared_moments_count_the_steps_of_all() -> None:
    left = run_here("hogwild", shared_optimizer=True, lock=True)
    state, updates = left.shared.optimizer_state, left.telemetry.total("updates")
    assert state is not None and updates > 100
    assert f"step count says {updates} of {updates} updates" in state.describe(updates)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_shared_moments_are_named_and_their_step_count_is_checked() -> None:
    result = run("hogwild", workers=2, shared_optimizer=True, steps=3_000)
    assert result.audit is not None
    assert result.audit["optimizer_state"].startswith("shared, not audited")
    assert f"of {result.updates} updates" in result.audit["optimizer_state"]


def test_the_header_follows_the_configuration() -> None:
    for strategy in (hogwild, a3c):
        config = strategy.Config.for_env("CartPole-v1", workers=2)
        assert strategy.traits(config).can_lose_updates
        assert not strategy.traits(dataclasses.replace(config, lock=True)).can_lose_updates
        assert not strategy.traits(dataclasses.replace(config, workers=1)).can_lose_updates
    assert "replay_ratio" in a3c.TRAITS.unused_options


def test_a_wrong_way_to_write_is_refused() -> None:
    with pytest.raises(ConfigError, match="'sideways' is not allowed; give one of in-place, copy-back"):
        hogwild.Config.for_env("CartPole-v1", write="sideways")
    with pytest.raises(ConfigError, match="one of adam, rmsprop"):
        a3c.Config.for_env("CartPole-v1", optimizer="sgd")
