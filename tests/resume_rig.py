"""Runs in parts, in this process: the roles are threads, and what they leave behind is a checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from strategy_runs import EvaluatingProbe, config_of, replaced

import strategies
from common.audit import AuditReader
from common.config import Config
from common.experience import ExperienceBuffer
from common.processes import Role
from common.saved_run import SavedRun, load_saved_run
from common.saving import Checkpointer
from common.state_files import State, read_state
from common.supervisor import RunProbe, Shared
from common.telemetry import Telemetry

# Small enough that a run takes a fraction of a second, with every mechanism at work.
SMALL: dict[str, Any] = {
    "steps": 700,
    "warmup_env_steps": 100,
    "hidden_size": 16,
    "batch_size": 16,
    "target_update": 10.0,
    "replay_capacity": 300,  # the ring comes round
    "evaluate_every_env_steps": 150,
    "evaluation_episodes": 2,
    "health_every_updates": 7,
    "n_step": 3,
}
TIMEOUT_SECONDS = 60


class PartProbe(EvaluatingProbe):
    """Counts how often it was asked, and calls for the end of this part at a given number."""

    calls = 0
    interrupt_at: int | None = None
    interrupt: Callable[[], None]

    def should_stop(self, unpublished_env_steps: int = 0) -> bool:
        self.calls += 1
        if self.calls == self.interrupt_at:
            self.interrupt()
        return super().should_stop(unpublished_env_steps)


@dataclass
class Part:
    """One part of a run: from its start or a checkpoint to its end or the next one."""

    name: str
    config: Config
    folder: Path
    resume: SavedRun | None = None
    evaluations: list[tuple[float, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        module, seen = strategies.load(self.name), dict[str, Any]()

        def look(
            config: Config, probe: RunProbe, roles: Any, shared: Shared, buffer: Any = None
        ) -> None:
            seen.update(roles=list(roles), shared=shared, kept=buffer)

        with replaced(module, run_roles=look):
            module.train(self.config, RunProbe())
        self.roles: list[Role] = seen["roles"]
        self.shared: Shared = seen["shared"]
        self.kept: ExperienceBuffer | None = seen["kept"]
        self.telemetry = Telemetry(len(self.roles), self.config.workers)
        facts = {"strategy": self.name, "run_id": "rig", "started_at": "now"}
        self.saver = Checkpointer(
            self.config, self.telemetry, self.roles, self.folder, facts, self._state, self.resume
        )
        self.audit = AuditReader(self.shared.master)
        if self.resume is not None:
            self.saver.restore()
            own = self.resume.run["own"]
            self.evaluations = [tuple(each) for each in own["evaluations"]]
            self.audit.load_state(own["audit"])
        self.probes = [self._probe(i) for i in range(len(self.roles))]
        self.faults: list[BaseException] = []

    def _state(self) -> State:
        evaluations, audit = self.evaluations, self.audit.state()
        clocks = {"training_seconds": 0.0, "command_seconds": 0.0}
        return {**clocks, "evaluations": evaluations, "audit": audit, "record": {"solved_at": None}}

    def _probe(self, role: int) -> PartProbe:
        probe = PartProbe(self.telemetry, role, self.config, self.saver.role_state(role))
        probe.watch(self.config, self.shared)
        probe.evaluations = self.evaluations
        return probe

    def run(self, interrupt_at: int | None = None, role: int = 0) -> Part:
        """Run to the end, or until a role has been at its stop check a number of times."""
        called = threading.Event()
        self.probes[role].interrupt_at, self.probes[role].interrupt = interrupt_at, called.set
        with threadpoolctl.threadpool_limits(1):
            threads = [
                threading.Thread(target=self._guarded, args=each, daemon=True)
                for each in zip(self.roles, self.probes, strict=True)
            ]
            for thread in threads:
                thread.start()
            deadline = time.perf_counter() + TIMEOUT_SECONDS
            while any(thread.is_alive() for thread in threads):
                assert time.perf_counter() < deadline, "the roles did not come to an end"
                if called.is_set():
                    self.saver.want_last(TIMEOUT_SECONDS, "interrupted")
                self.saver.advance()
                if self.faults or (called.is_set() and self.saver.is_over):
                    self.telemetry.set_control("stop", 1)
                time.sleep(0.0002)
        if self.faults:
            raise self.faults[0]
        return self

    def save_at_once(self) -> Part:
        """Save again what a checkpoint has just been loaded into, before anything else happens."""
        self.telemetry.set_control("pause", 1)
        with threadpoolctl.threadpool_limits(1):
            threads = [
                threading.Thread(target=self._guarded, args=each, daemon=True)
                for each in zip(self.roles, self.probes, strict=True)
            ]
            for thread in threads:
                thread.start()
            self._wait(lambda: all(self.telemetry.word(i, "is_held") for i in range(len(threads))))
            self.saver.want_last(TIMEOUT_SECONDS, "interrupted")
            self.saver.advance()
            # All at once: nobody goes on to anything that the learner would have to begin.
            self.telemetry.set_control("save", self.saver._number)
            self.telemetry.set_control("pause", 0)
            self._wait(lambda: self.saver.advance() or self.saver.is_over)
            self.telemetry.set_control("stop", 1)
            self._wait(lambda: not any(thread.is_alive() for thread in threads))
        return self

    def _wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.perf_counter() + TIMEOUT_SECONDS
        while not condition():
            if self.faults:
                raise self.faults[0]
            assert time.perf_counter() < deadline, "it did not happen"
            time.sleep(0.0005)

    def _guarded(self, role: Role, probe: PartProbe) -> None:
        try:
            role.function(self.config, probe, *role.arguments)
            probe.finish()
        except BaseException as fault:
            self.faults.append(fault)

    def following(self, **choices: Any) -> Part:
        """Return the part that goes on from this one's checkpoint."""
        config = self.config
        if choices:
            config = type(config)(**{**vars(config), **choices})
        return Part(self.name, config, self.folder, load_saved_run(self.folder))

    @property
    def weights(self) -> np.ndarray:
        return self.shared.latest()

    @property
    def audit_report(self) -> dict[str, Any]:
        return self.audit.report()


def first_part(name: str, folder: Path, **choices: Any) -> Part:
    """Return a run that has not begun."""
    folder.mkdir(parents=True, exist_ok=True)
    return Part(name, config_of(name, **{**SMALL, "checkpoint_seconds": 0.0, **choices}), folder)


def role_states(saved: SavedRun) -> list[State]:
    """Return what each process has saved."""
    return [read_state(saved.role_file(role).read_bytes()) for role in range(saved.num_roles)]


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two states differ, by name; equal means of the same type and bits."""
    if type(one) is not type(other):
        return [f"{path}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, dict):
        found = [f"{path}.{key}" for key in one.keys() ^ other.keys()]
        for key in one.keys() & other.keys():
            found += differences(one[key], other[key], f"{path}.{key}")
        return found
    if isinstance(one, list):
        found = [] if len(one) == len(other) else [f"{path}: {len(one)} and {len(other)} items"]
        for i, pair in enumerate(zip(one, other, strict=False)):
            found += differences(*pair, f"{path}[{i}]")
        return found
    if isinstance(one, np.ndarray):
        same = (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        return [] if same else [path]
    return [] if one == other or (one != one and other != other) else [path]
