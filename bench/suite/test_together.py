"""What running together costs: actors with and without a learner, a learner with and without actors."""

from __future__ import annotations

import os

import pytest

from bench.suite.rig import TRAINING_CLOCK, Benchmark, training_seconds

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.benchmark(timer=training_seconds),
    pytest.mark.timeout(300),
]

SECONDS = 4.0
NEVER = 10**12


def test_efficiency(benchmark: Benchmark) -> None:
    """One round of ``bench.efficiency``: no more processes than cores, nobody evaluates."""
    from bench.efficiency import measure
    from strategies import apex

    workers = max(1, (os.cpu_count() or 2) - 1)
    config = apex.Config.for_env(
        "CartPole-v1",
        steps=NEVER,
        workers=workers,
        replay_ratio="free",
        seconds=SECONDS,
        evaluate_every_env_steps=NEVER,
    )
    rates: dict[str, float] = {}

    def timed() -> None:
        rates.update(measure(config))
        TRAINING_CLOCK.advance(3 * SECONDS)

    benchmark.group = "run: apex together and apart"
    benchmark.pedantic(timed, rounds=1, iterations=1)
    benchmark.extra_info["collection_efficiency"] = rates.pop("collection")
    benchmark.extra_info["learning_efficiency"] = rates.pop("learning")
    benchmark.extra_info.update(rates)
