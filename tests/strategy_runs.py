"""Runs of strategies that several test files look at, made once each.

Nothing here knows how a strategy is built: its ``train`` is called, and what it hands to ``run_roles``
is looked at. So a strategy is held to the tests by being registered.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

import strategies
from bench.runner import run as run_into_folder
from common.audit import AuditReader
from common.config import Config
from common.envs import Lanes, make_lanes
from common.evaluate import play_episodes
from common.experience import ExperienceBuffer
from common.probe import Probe
from common.processes import Role, random_stream
from common.supervisor import RunProbe, Shared
from common.telemetry import Telemetry
from common.types import LaneStep, RunResult, Traits

# Small enough to take seconds, large enough for hundreds of updates. Replay holds all of it, so that
# every row of a run can be looked at afterwards. What a strategy has no use for is left out.
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
# Few lanes and short rollouts, for as many updates as the others make.
FOR_STRATEGY: dict[str, dict[str, Any]] = {
    "vector": {"envs_per_worker": 8},
    "sync": {"workers": 2, "envs_per_worker": 4, "chunk_steps": 4},
    "hogwild": {"workers": 2},
    "a3c": {"workers": 2, "envs_per_worker": 2, "rollout_length": 4},
    "impala": {"workers": 2, "envs_per_worker": 2, "rollout_length": 4},
    "apex": {"workers": 2, "envs_per_worker": 4, "chunk_steps": 4},
    "pqn": {"envs_per_worker": 4, "rollout_length": 8, "minibatches": 4, "epochs": 2},
}
# Loses updates for certain: whole sets of weights are written back over each other.
COPY_BACK: dict[str, Any] = {"write": "copy-back", "steps": 2_400}

TRAITS: dict[str, Traits] = {name: strategies.traits_of(name) for name in strategies.STRATEGIES}
# Those that sample rows from replay, and so keep the rows of a whole run in the shared buffer.
WITH_REPLAY = [name for name in TRAITS if "replay_capacity" not in TRAITS[name].unused_options]
WITH_ACTORS = [name for name in TRAITS if "actor" in TRAITS[name].roles]
HOLDING_A_RATIO = [name for name in TRAITS if "held" in TRAITS[name].ratios]

_folder = tempfile.TemporaryDirectory(prefix="strategy-runs-")
_number = itertools.count()


def config_of(name: str, **given: Any) -> Config:
    """Return the configuration of a short run."""
    unused = TRAITS[name].unused_options
    choices = {**CHOICES, **FOR_STRATEGY.get(name, {}), **given}
    choices = {key: value for key, value in choices.items() if key not in unused}
    config: Config = strategies.load(name).Config.for_env("CartPole-v1", **choices)
    return config


@dataclass
class Run:
    """A finished run with what the supervisor was given, its shared memory included."""

    name: str
    config: Config
    result: RunResult
    summary: dict[str, Any]
    folder: Path
    initial_weights: np.ndarray
    shared: Shared
    roles: list[Role]
    kept: ExperienceBuffer | None

    @property
    def traits(self) -> Traits:
        return strategies.traits_of(self.name, self.config)

    @property
    def buffer(self) -> ExperienceBuffer:
        assert self.kept is not None, f"{self.name} has no experience buffer"
        return self.kept


@contextlib.contextmanager
def replaced(module: Any, **functions: Any) -> Iterator[None]:
    """Give a module other functions for a while."""
    own = {name: getattr(module, name) for name in functions}
    for name, function in functions.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(module, name, function)


@functools.cache
def train(name: str, attempt: int = 0, **given: Any) -> Run:
    """Train as ``bench run`` does, in real processes; once per set of arguments."""
    module = strategies.load(name)
    config = config_of(name, **given)
    seen: dict[str, Any] = {}
    run_roles = module.run_roles

    def look(
        config: Config, probe: RunProbe, roles: Any, shared: Shared, buffer: Any = None
    ) -> RunResult:
        seen.update(roles=list(roles), shared=shared, kept=buffer, initial_weights=shared.latest())
        seen["result"] = run_roles(config, probe, roles, shared, buffer)
        result: RunResult = seen["result"]
        return result

    folder = Path(_folder.name) / f"{next(_number)}"
    with replaced(module, run_roles=look):
        summary = run_into_folder(name, config, folder)
    assert seen, summary["error"]
    return Run(name=name, config=config, summary=summary, folder=folder, **seen)


class EvaluatingProbe(Probe):
    """Does what the supervisor does at an evaluation, in this process and by hand."""

    def watch(self, config: Config, shared: Shared) -> None:
        """Say whose weights to play."""
        self.config, self.shared = config, shared
        self.evaluations: list[tuple[float, ...]] = []
        self._telemetry.set_control("evaluations_done", 10**9)  # nobody has to be waited for

    def evaluate(self) -> None:
        vector = self.shared.latest()
        seeds = random_stream(self.config.seed, "evaluation", 0, len(self.evaluations))
        episodes = self.config.evaluation_episodes
        self.evaluations.append(
            play_episodes(self.config.env_id, self.shared.spec, vector, episodes, seeds)
        )
        super().evaluate()


@dataclass
class WatchedLanes:
    """Lanes that note what really happened in them."""

    lanes: Lanes
    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    env_steps: int = 0
    episodes: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lanes, name)

    def reset(self) -> np.ndarray:
        observation = self.lanes.reset()
        self.observations.append(observation.copy())
        return observation

    def step(self, action: np.ndarray) -> LaneStep:
        self.actions.append(np.array(action))
        step = self.lanes.step(action)
        self.observations.append(step.observation.copy())
        self.env_steps += int(step.valid.sum())
        self.episodes += int((step.terminated | step.truncated).sum())
        return step


@dataclass
class InProcess:
    """What roles left that ran in this process, as threads where there are several."""

    config: Config
    weights: np.ndarray
    evaluations: list[tuple[float, ...]]
    telemetry: Telemetry
    shared: Shared
    kept: ExperienceBuffer | None
    lanes: list[WatchedLanes]

    @property
    def audit(self) -> dict[str, Any]:
        return AuditReader(self.shared.master).report()


def run_here(name: str, **given: Any) -> InProcess:
    """Run the same role functions in this process: no start-up, so that many runs are cheap."""
    module = strategies.load(name)
    config = config_of(name, **given)
    seen: dict[str, Any] = {}
    lanes: list[WatchedLanes] = []

    def look(config: Config, probe: RunProbe, roles: Any, shared: Shared, buffer: Any = None) -> None:
        seen.update(roles=list(roles), shared=shared, kept=buffer)

    def watch(*arguments: Any) -> WatchedLanes:
        lanes.append(WatchedLanes(make_lanes(*arguments)))
        return lanes[-1]

    with replaced(module, run_roles=look, make_lanes=watch):
        module.train(config, RunProbe())
        roles, shared = seen["roles"], seen["shared"]
        telemetry = Telemetry(len(roles), config.workers)
        probes = [EvaluatingProbe(telemetry, i, config) for i in range(len(roles))]
        for probe in probes:
            probe.watch(config, shared)
        _run_as_threads(config, roles, probes, telemetry)
    evaluations = [each for probe in probes for each in probe.evaluations]
    return InProcess(
        config, shared.latest(), evaluations, telemetry, shared, kept=seen["kept"], lanes=lanes
    )


def _run_as_threads(
    config: Config, roles: list[Role], probes: list[EvaluatingProbe], telemetry: Telemetry
) -> None:
    faults: list[BaseException] = []

    def guarded(role: Role, probe: Probe) -> None:
        try:
            role.function(config, probe, *role.arguments)
            probe.finish()
        except BaseException as fault:
            faults.append(fault)
            telemetry.set_control("stop", 1)

    with threadpoolctl.threadpool_limits(1):
        threads = [
            threading.Thread(target=guarded, args=(role, probe), daemon=True)
            for role, probe in zip(roles, probes, strict=True)
        ]
        for thread in threads:
            thread.start()
        deadline = time.perf_counter() + 60
        for thread in threads:
            thread.join(max(0.0, deadline - time.perf_counter()))
        stuck = any(thread.is_alive() for thread in threads)
        telemetry.set_control("stop", 1)
    if faults:
        raise faults[0]
    assert not stuck, "the roles did not come to an end"
