"""Runs of strategies that several test files look at, made once each."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import threadpoolctl

import strategies
from common.config import Config
from common.evaluate import play_episodes
from common.experience import ExperienceBuffer
from common.processes import Role, random_stream
from common.supervisor import RunProbe, Shared
from common.telemetry import Probe, Telemetry
from common.types import RunResult

# Small enough to take seconds, large enough for hundreds of updates. Replay holds all of it, so that
# every row of a run can be looked at afterwards.
CHOICES: dict[str, Any] = {
    "steps": 1_600,
    "warmup_env_steps": 400,
    "hidden_size": 32,
    "batch_size": 32,
    "replay_ratio": 0.25,
    "target_update": 40.0,
    "evaluate_every_env_steps": 800,
    "evaluation_episodes": 5,
    "evaluation_min_updates": 50,
}
FOR_STRATEGY: dict[str, dict[str, Any]] = {
    "vector": {"envs_per_worker": 8},
    "apex": {"workers": 2, "envs_per_worker": 4, "chunk_steps": 4},
}


def config_of(name: str, **given: Any) -> Config:
    """Return the configuration of a short run."""
    choices = {**CHOICES, **FOR_STRATEGY.get(name, {}), **given}
    config: Config = strategies.load(name).Config.for_env("CartPole-v1", **choices)
    return config


@dataclass
class Run:
    """A finished run with what the supervisor was given, its shared memory included."""

    config: Config
    result: RunResult
    initial_weights: np.ndarray
    shared: Shared
    buffer: ExperienceBuffer
    roles: list[Role]


@functools.cache
def train(name: str, attempt: int = 0, **given: Any) -> Run:
    """Train through the strategy's ``train``, in real processes; once per set of arguments."""
    module = strategies.load(name)
    config = config_of(name, **given)
    seen: dict[str, Any] = {}
    run_roles = module.run_roles

    def look(config: Config, probe: RunProbe, roles: Any, shared: Shared, buffer: Any) -> RunResult:
        seen.update(roles=list(roles), shared=shared, buffer=buffer)
        seen["initial_weights"] = shared.weights.latest()[0]
        result: RunResult = run_roles(config, probe, roles, shared, buffer)
        return result

    module.run_roles = look
    try:
        result = module.train(config, RunProbe())
    finally:
        module.run_roles = run_roles
    return Run(config, result, **seen)


class EvaluatingProbe(Probe):
    """Does what the supervisor does at an evaluation, in this process and by hand."""

    def watch(self, config: Config, shared: Shared) -> None:
        """Say whose weights to play."""
        self.config, self.shared = config, shared
        self.evaluations: list[tuple[float, ...]] = []
        self._telemetry.set_control("evaluations_done", 10**9)  # nobody has to be waited for

    def evaluate(self) -> None:
        vector, _ = self.shared.weights.latest()
        seeds = random_stream(self.config.seed, "evaluation", 0, len(self.evaluations))
        episodes = self.config.evaluation_episodes
        self.evaluations.append(
            play_episodes(self.config.env_id, self.shared.spec, vector, episodes, seeds)
        )
        super().evaluate()


@dataclass
class InProcess:
    """What roles left that ran in this process, as threads where there are several."""

    config: Config
    weights: np.ndarray
    evaluations: list[tuple[float, ...]]
    telemetry: Telemetry
    buffer: ExperienceBuffer


def run_here(name: str, **given: Any) -> InProcess:
    """Run the same role functions in this process: no start-up, so that many runs are cheap."""
    module = strategies.load(name)
    config = config_of(name, **given)
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    if "learner" in module.TRAITS.roles:
        calls = [(module.learner, ())] + [(module.actor, (w,)) for w in range(config.workers)]
    else:
        calls = [(module.actor_learner, ())]
    telemetry = Telemetry(len(calls))
    probes = [EvaluatingProbe(telemetry, i, config) for i in range(len(calls))]
    for probe in probes:
        probe.watch(config, shared)
    faults: list[BaseException] = []

    def guarded(function: Any, probe: Probe, arguments: tuple[Any, ...]) -> None:
        try:
            function(config, probe, buffer, shared.weights, *arguments)
        except BaseException as fault:
            faults.append(fault)
            telemetry.set_control("stop", 1)

    with threadpoolctl.threadpool_limits(1):
        threads = [
            threading.Thread(target=guarded, args=(function, probe, arguments), daemon=True)
            for (function, arguments), probe in zip(calls, probes, strict=True)
        ]
        for thread in threads:
            thread.start()
        deadline = time.perf_counter() + 20
        for thread in threads:
            thread.join(max(0.0, deadline - time.perf_counter()))
        stuck = any(thread.is_alive() for thread in threads)
        telemetry.set_control("stop", 1)
    if faults:
        raise faults[0]
    assert not stuck, "the roles did not come to an end"
    return InProcess(config, shared.weights.latest()[0], probes[0].evaluations, telemetry, buffer)
