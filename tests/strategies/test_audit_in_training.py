"""The audit in whole runs: what in-place writing loses, and that looking changes nothing."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

import strategies
from common.acting import NetworkSpec, initial_weights
from common.audit import MasterWriter, SharedMaster
from common.config import Config
from common.learner import Learner
from common.supervisor import RunProbe
from common.types import Batch, RunResult

NEVER = 10**9
ATTEMPTS = 6


def run(name: str, **choices: Any) -> RunResult:
    strategy = strategies.load(name)
    result: RunResult = strategy.train(strategy.Config.for_env("CartPole-v1", **choices), RunProbe())
    assert result.status == "completed", result.error
    return result


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [2, 4])
def test_in_place_some_writes_are_lost_and_never_more_than_were_issued(workers: int) -> None:
    """How many is the machine's business; that a report is possible at all is ours."""
    reports = []
    for seed in range(ATTEMPTS):
        choices = {"steps": 6_000, "seed": seed, "evaluate_every_env_steps": NEVER}
        reports.append(run("hogwild", workers=workers, **choices).audit)
        assert reports[-1] is not None and reports[-1]["auditable"], reports[-1]
        if reports[-1]["writes_lost"]:
            break
    for report in reports:
        assert report is not None
        assert 0 <= report["writes_lost"] <= report["writes_issued"]
        assert 0 <= report["worst_element_lost"] <= report["updates_issued"]
        for left, issued in zip(
            report["survivors_by_worker"], report["updates_issued_by_worker"], strict=True
        ):
            assert 0 <= left <= issued
    last = reports[-1]
    assert last is not None and last["writes_lost"] > 0, f"nothing was lost in {ATTEMPTS} runs"
    print(f"{workers} workers: {last['writes_lost']} of {last['writes_issued']} writes lost")


def learnable_batch(generator: np.random.Generator, size: int) -> Batch:
    observation = generator.normal(size=(size, 4)).astype(np.float32)
    return Batch(
        observation=observation,
        action=generator.integers(2, size=size),
        n_step_return=np.sin(observation.sum(axis=1)),
        bootstrap_discount=np.zeros(size, dtype=np.float32),
        bootstrap_observation=observation,
        importance_weight=np.ones(size, dtype=np.float32),
        weights_version=np.zeros(size, dtype=np.int64),
        place=np.arange(size),
        row=np.arange(size),
    )


@pytest.mark.slow
def test_on_the_same_batches_the_audit_does_no_more_than_rounding_does() -> None:
    """One update is off by one rounding; a thousand as far as rounding errors of that size grow."""
    spec = NetworkSpec((4,), "float32", 2, 128, layer_norm=False)
    first = initial_weights(spec, 0)
    config = Config.for_env("CartPole-v1", learning_rate=1e-3, learning_rate_end=None)
    generator = np.random.default_rng(0)
    nudged = first + generator.choice([-1, 1], len(first)).astype(np.float32) * np.float32(2**-24)
    starts = {"plain": (first, False), "audited": (first, True), "nudged": (nudged, False)}
    learners = {
        name: Learner(config, spec, start, MasterWriter(SharedMaster(start, 1, audit)))
        for name, (start, audit) in starts.items()
    }
    for number in range(1_000):
        batch = learnable_batch(generator, config.batch_size)
        for learner in learners.values():
            learner.update(batch)
        if number == 0:
            plain, audited = (learners[name].vector.astype(float) for name in ("plain", "audited"))
            assert 0 < np.abs(audited - plain).max() <= 2**-24
    vectors = {name: learner.vector.astype(float) for name, learner in learners.items()}
    for name in ("nudged", "audited"):
        assert_near(f"1,000 batches, {name}", vectors[name], vectors["plain"], first)


def assert_near(what: str, one: Any, other: Any, first: Any) -> None:
    """A ReLU that flips carries single weights off, so only the mean is held to something."""
    moved, apart = np.abs(other - first), np.abs(one - other)
    print(
        f"{what}: weights moved by up to {moved.max():.2g} (mean {moved.mean():.2g}), and are apart by "
        f"up to {apart.max():.2g} (mean {apart.mean():.2g})"
    )
    assert moved.mean() > 0.001 and 0 < apart.mean() < 0.25 * moved.mean()


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_the_same_seed_runs_alike_until_rounding_chooses_another_action() -> None:
    config = strategies.load("single").Config.for_env("CartPole-v1")
    spec = NetworkSpec((4,), "float32", 2, config.hidden_size, config.layer_norm)
    choices = {
        "steps": config.warmup_env_steps + int(300 / config.replay_ratio),
        "evaluate_every_env_steps": NEVER,
    }
    audited, plain = (run("single", audit=audit, **choices) for audit in (True, False))
    assert audited.updates == plain.updates > 250
    first = initial_weights(spec, 0)
    what = f"single, seed 0, {plain.updates} updates"
    assert_near(what, audited.final_weights, plain.final_weights, first)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(900)
def test_single_solves_as_soon_with_the_audit_as_without() -> None:
    solved: dict[bool, list[int]] = {True: [], False: []}
    for seed in range(4):
        for audit, steps in solved.items():
            result = run("single", seed=seed, audit=audit, until_solved=True)
            assert result.solved_at is not None, f"seed {seed} was not solved"
            steps.append(result.solved_at.env_steps)
    print(f"env steps until solved with the audit {solved[True]}, without {solved[False]}")
    spread = max(solved[False]) - min(solved[False])
    assert spread > 0
    assert abs(statistics.median(solved[True]) - statistics.median(solved[False])) <= spread
