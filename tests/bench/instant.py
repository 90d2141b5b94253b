"""A strategy that trains nothing and ends at once, installed into a folder as another package would be.

A comparison starts it as it starts every strategy: ``bench run`` in a fresh process. So what is seen of
many runs, interrupted ones among them, is the real thing, and only the training is left out.
"""

from __future__ import annotations

from pathlib import Path

MODULE = '''
import time
from dataclasses import dataclass

import numpy as np

from common.config import Config as CommonConfig
from common.config import option
from common.types import Evaluation, RunResult, Traits


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices, how long it takes, and which seed fails."""

    pause: float = option(0.0, "Seconds that it takes.", at_least=0)
    failing_seed: int | None = option(None, "The seed that fails.")


TRAITS = Traits(
    name="instant",
    parent="single",
    summary="Trains nothing.",
    processes="1",
    collects="nobody",
    computes_gradients="nobody",
    writes_weights="nobody",
    guard="none",
    experience="none",
    correction="none",
    loss="none",
    can_go_wrong="nothing is learned",
    paper="none",
    can_lose_updates=False,
    single_process=False,
    ratios=("held",),
    roles=("actor_learner",),
    unused_options=("layer_norm",),
)


def train(config, probe):
    time.sleep(config.pause)
    probe.observer.on_tick(1, 1, 1.0, [])
    if config.seed == config.failing_seed:
        raise RuntimeError("planned to fail")
    returns = (100.0 + config.seed + 1_000 * config.gamma,) * 3
    final = Evaluation(10, 5, 1.0, 1.0, returns)
    nothing = np.zeros(0, dtype=np.float32)
    return RunResult(
        status="completed",
        error=None,
        env_steps=10,
        updates=5,
        training_seconds=1.0,
        steady_seconds=1.0,
        steady_env_steps=1_000 * config.workers + config.seed,
        steady_updates=5,
        evaluations=[final],
        final_weights=nothing,
        best_weights=nothing,
        best_mean=final.mean,
        solved_at=None,
        final_evaluation=final,
        train_returns=[],
        shared_mib=0.0,
        in_flight_at_end=0,
        roles=[],
    )
'''


def install(folder: Path) -> Path:
    """Install the strategies ``instant`` and ``instant-too`` into a folder for ``PYTHONPATH``."""
    for name in ("instant", "instant-too"):
        module = name.replace("-", "_") + "_strategy"
        text = MODULE.replace('name="instant"', f'name="{name}"')
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    info = folder / "instant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: instant\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[parallel_dqn_bench.strategies]\n"
        "instant = instant_strategy\n"
        "instant-too = instant_too_strategy\n"
    )
    return folder
