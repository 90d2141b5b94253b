"""Trains with a strategy while its processes are killed, and says what became of it."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import counting_env as ce
import numpy as np
import psutil
import watched_roles
from strategy_runs import replaced
from watched_roles import Fault, make_findings

import strategies
from common import supervisor
from common.children import Child
from common.events import NullObserver
from common.processes import Role
from common.supervisor import RunProbe, Shared
from common.types import Death, RunResult

ENV = f"counting_env:{ce.PLAIN}"
FOR_EVER = 10**12
# Rewards grow with the episodes; a small step keeps the weights where their writes can be counted.
CHOICES: dict[str, Any] = {
    "workers": 2,
    "hidden_size": 32,
    "batch_size": 32,
    "warmup_env_steps": 100,
    "replay_capacity": 4_000,
    "learning_rate": 1e-7,
    "evaluate_every_env_steps": 1_000,
    "evaluation_min_updates": 50,
    "evaluation_episodes": 3,
    "max_restarts": 1_000,
    "steps": FOR_EVER,
}
FOR_STRATEGY: dict[str, dict[str, Any]] = {
    "apex": {"envs_per_worker": 4, "replay_ratio": 1 / 16},
    "impala": {"envs_per_worker": 2, "rollout_length": 8},
    "sync": {"envs_per_worker": 4, "replay_ratio": 1 / 16},
    "hogwild": {"replay_ratio": 0.25, "n_step": 3},
    "a3c": {"envs_per_worker": 2, "rollout_length": 8, "max_staleness": 8, "optimizer": "adam"},
    "single": {"workers": 1, "replay_ratio": 0.25},
}


@dataclass
class Ended(NullObserver):
    """What a run came to.

    Attributes:
        result: as ``train`` returns it.
        shared: its weights.
        counts: what was checked in its processes, summed over them (see ``watched_roles``).
        killed: names of the processes that were killed.
        seconds: from the start to the end.
        left: processes, shared memory and files that were left.
        descriptors: that this process has more than before.
        outcomes: what was said to follow each death.
    """

    result: RunResult = field(init=False)
    shared: Shared = field(init=False)
    counts: np.ndarray = field(init=False)
    checksum: np.ndarray = field(init=False)
    killed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)
    descriptors: int = 0
    outcomes: list[str] = field(default_factory=list)

    def on_death(self, death: Death, outcome: str) -> None:
        self.outcomes.append(f"{death.role}-{death.worker}: {outcome}")

    @property
    def accounted(self) -> int:
        """What became of the env steps that were counted: all of them if this equals their number."""
        result = self.result
        return result.total("stored") + result.total("dropped") + result.in_flight_at_end


class Director(threading.Thread):
    """Kills random processes at random moments, or waits for a planted fault; then ends the run."""

    def __init__(self, run: supervisor._Supervisor, ended: Ended, kills: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._run, self._ended, self._kills = run, ended, kills
        self._random = random.Random(seed)
        self._killed: set[int] = set()
        self.is_over = threading.Event()

    def run(self) -> None:
        """Have the run stop when there were enough kills, or a death, and all are back at work."""
        while len(self._ended.killed) < self._kills and not self.is_over.is_set():
            self._wait()
            self._kill_one()
        while not self._ended.outcomes and not self.is_over.is_set():
            self.is_over.wait(0.05)
        self._wait_until_ready(60)
        self.is_over.wait(1.5)  # the last ones that came back do some work
        self._run._stop("completed", 15.0)

    def _wait(self) -> None:
        # Most of the time until everybody works again; else anywhere, also while one starts.
        if self._random.random() < 0.8:
            self._wait_until_ready(20)
        self.is_over.wait(self._random.uniform(0.0, 0.4))

    def _wait_until_ready(self, seconds: float) -> None:
        deadline = time.perf_counter() + seconds
        words = self._run._telemetry.arrays["words"]
        place = supervisor.WORD["ready_ns"]
        while time.perf_counter() < deadline and not self.is_over.is_set():
            if all(words[:, place] > 0):
                return
            time.sleep(0.005)

    def _kill_one(self) -> None:
        children: list[Child] = [c for c in self._run._children.all if c.role.can_restart]
        targets = [(child.name, child.process) for child in children if not child.is_finished]
        targets.append(("evaluator-0", self._run._evaluator._process))
        name, process = self._random.choice(targets)
        try:
            victim = psutil.Process(process.pid) if process is not None else None
        except (ValueError, psutil.Error):
            return
        if victim is None or victim.ppid() != os.getpid() or victim.status() == "zombie":
            return
        if victim.pid in self._killed:  # on a busy machine a process is not dead at once
            return
        self._killed.add(victim.pid)
        os.kill(victim.pid, signal.SIGKILL)
        self._ended.killed.append(name)


def train(
    name: str, kills: int = 0, seed: int = 0, faults: dict[str, Fault] | None = None, **given: Any
) -> Ended:
    """Train while random processes are killed ``kills`` times, or faults are planted by role's name."""
    module, ended = strategies.load(name), Ended()
    choices = {**CHOICES, **FOR_STRATEGY[name], "seed": seed, **given}
    unused = strategies.traits_of(name).unused_options
    choices = {key: value for key, value in choices.items() if key not in unused}
    config = module.Config.for_env(ENV, **choices)
    resource_tracker.ensure_running()  # it stays, with a pipe to it
    before, opened = left_now(), descriptors()
    findings: Any = None

    def run_watched(config: Any, probe: Any, roles: Any, shared: Shared, buffer: Any = None) -> Any:
        nonlocal findings
        findings, ended.shared = make_findings(len(roles)), shared
        planted = faults or {}
        watched = [watch(role, findings, planted.get(f"{role.name}-{role.worker}")) for role in roles]
        run = supervisor._Supervisor(config, probe, watched, shared, buffer)
        director = Director(run, ended, kills, seed)
        director.start()
        try:
            return run.run()
        finally:
            director.is_over.set()
            director.join(30)

    started = time.perf_counter()
    with replaced(module, run_roles=run_watched):
        ended.result = module.train(config, RunProbe(observer=ended))
    ended.seconds = time.perf_counter() - started
    ended.counts = findings["counts"].sum(axis=0)
    ended.checksum = findings["checksum"].copy()
    lock = ended.shared.lock_file  # it goes with the weights that the test looks at
    ended.descriptors = descriptors() - opened
    ended.left = sorted(left_now() - before - {str(lock and lock.path)})
    return ended


def watch(role: Role, findings: Any, fault: Fault | None) -> Role:
    arguments = (role.function, findings, fault, *role.arguments)
    return Role(role.name, role.worker, watched_roles.watched, arguments, role.can_restart)


def left_now() -> set[str]:
    """Return child processes and files of shared memory and locks; those of a moment are waited for."""
    deadline = time.perf_counter() + 2
    first = _left()
    while time.perf_counter() < deadline and first != (second := _left()):
        first &= second
    return first


def descriptors() -> int:
    """Return how many files this process has open; 0 where nothing says so.

    Freed shared memory is not counted: multiprocessing keeps it for the next who asks for some.
    """
    folder = Path("/proc/self/fd")
    names = [os.path.realpath(path) for path in folder.iterdir()] if folder.is_dir() else []
    return sum(f"/pym-{os.getpid()}-" not in name for name in names)


def _left() -> set[str]:
    left = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != "zombie" and "resource_tracker" not in " ".join(process.cmdline()):
                left.add(f"process {process.pid}")
        except psutil.Error:
            continue
    own = f"-{os.getpid()}-"
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if folder.is_dir():
            left |= {str(path) for path in folder.iterdir() if own in path.name}
    return left
