"""Whole runs: every strategy once, and how two of them grow with their workers.

The time of a run is that of its training clock, without start-up and evaluation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

import strategies
from bench import parts
from bench.suite.rig import Benchmark, once, training_seconds

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.benchmark(timer=training_seconds),
    pytest.mark.timeout(300),
]

ENV_STEPS = 20_000
NEVER = 10**12
WORKERS = (1, 2, 4)
# As many as take seconds: hogwild holds its replay ratio, apex collects as fast as it can.
GROWTH: dict[str, dict[str, Any]] = {
    "hogwild": {"steps": 6_000},
    "apex": {"steps": 300_000, "replay_ratio": "free"},
}
# What is remembered of a run, by where its summary has it.
REMEMBERED = (
    "env_steps_per_second",
    "updates_per_second",
    "replay_ratio.achieved",
    "audit.writes_lost",
    "audit.lost_fraction",
    "policy_lag.p50",
    "policy_lag.p95",
    "gradient_staleness.p50",
    "gradient_staleness.p95",
)


@pytest.mark.parametrize("name", strategies.STRATEGIES)
def test_run(benchmark: Benchmark, name: str) -> None:
    """As many env steps of each strategy, with its defaults."""
    benchmark.group = f"run: {ENV_STEPS:,} env steps of CartPole-v1"
    summary = once(benchmark, lambda: run(name, steps=ENV_STEPS))
    benchmark.extra_info.update(remembered(summary), strategy=name)
    if name == "apex":
        benchmark.extra_info["actor_rss_mib"] = summary["processes"]["peak_rss_mib"]["actor"]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", GROWTH)
def test_workers(benchmark: Benchmark, name: str, workers: int) -> None:
    """The same env steps with more and more workers: the time falls, or does not."""
    choices = GROWTH[name]
    benchmark.group = f"run: {choices['steps']:,} env steps of {name}, by workers"
    benchmark.extra_info.update(series=f"run, {name}", axis="workers", at=workers)
    summary = once(benchmark, lambda: run(name, workers=workers, **choices))
    benchmark.extra_info.update(remembered(summary))


def run(name: str, **choices: Any) -> dict[str, Any]:
    """Train as ``bench run`` does, without evaluations on the way, and return the summary."""
    from bench.runner import run as run_into_folder

    config = strategies.load(name).Config.for_env(
        parts.ENV_ID, evaluate_every_env_steps=NEVER, **choices
    )
    with tempfile.TemporaryDirectory() as folder:
        summary = run_into_folder(name, config, Path(folder) / "run")
    assert summary["status"] == "completed", summary["error"]
    return summary


def remembered(summary: dict[str, Any]) -> dict[str, Any]:
    """Return some fields of a summary by their dotted name; those that are null are left out."""
    found = {}
    for path in REMEMBERED:
        value: Any = summary
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[path.replace(".", "_")] = value
    return found
