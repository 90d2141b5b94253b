"""The processes of a run: started, listened to, and replaced when they die.

Nothing here waits for a process without a limit: one that gives no sign of life for ``worker_timeout``
is killed, and what is said of those that die holds for it, too.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol

from common.config import Config
from common.experience import ExperienceBuffer
from common.probe import Probe
from common.processes import Role, has_ended, interrupts_blocked, run_child
from common.role_state import RoleState
from common.telemetry import Telemetry
from common.types import Death, RoleReport

if TYPE_CHECKING:
    from common.supervisor import Shared

# Loading torch, compiling and making environments has no stop check; this comes on top of the timeout.
START_SECONDS = 60.0
# Whoever has not looked for longer was stopped itself (Ctrl-Z): the others may have been, too.
AWAY_SECONDS = 1.0
LAST_WORDS_SECONDS = 1.0


class Watcher(Protocol):
    """Who decides about the run."""

    @property
    def is_stopping(self) -> bool:
        """Whether the run is coming to its end, so that nobody has to be replaced."""

    def fail(self, reason: str) -> None:
        """End the run."""

    def not_finite(self, reason: str) -> None:
        """Hear that training ran into NaN or infinity."""

    def died(self, death: Death, outcome: str, is_replaced: bool = False) -> None:
        """Hear of a death, of what follows, and whether another takes the dead one's place."""


@dataclass
class Child:
    """One role and the process that has it now.

    Attributes:
        number: its row in the telemetry.
        role: what it does.
        report: what is known of it.
        process: None before the start and after the end.
        connection: what it reports through.
        born_at: on the ``perf_counter`` clock.
        reason: why it is dead, or about to be; None while it lives.
        has_raised: whether it ended by an exception.
        has_hung_at_start: whether it was killed before it came to its first stop check.
        is_finished: nothing more is expected of it.
    """

    number: int
    role: Role
    report: RoleReport
    process: BaseProcess | None = None
    connection: Connection | None = None
    born_at: float = 0.0
    reason: str | None = None
    has_raised: bool = False
    has_hung_at_start: bool = False
    is_finished: bool = False

    @property
    def name(self) -> str:
        """Role and number."""
        return f"{self.role.name}-{self.role.worker}"


class Children:
    """All processes of a run that have a role.

    Args:
        config: choices.
        roles: in the order of their rows in the telemetry.
        telemetry: where signs of life are found.
        settle: called with a dead child, before another one takes its place.
        watcher: who decides about the run.
        role_state: given a process's number and whether it takes another's place, returns where its
            part of a checkpoint is.
    """

    def __init__(
        self,
        config: Config,
        roles: Sequence[Role],
        telemetry: Telemetry,
        settle: Callable[[Child], None],
        watcher: Watcher,
        role_state: Callable[[int, bool], RoleState | None],
    ) -> None:
        self._config, self._telemetry, self._settle, self._watcher = config, telemetry, settle, watcher
        self._role_state = role_state
        self.all = [Child(i, role, RoleReport(role.name, role.worker)) for i, role in enumerate(roles)]
        self.deaths: list[Death] = []
        self._looked_at = self._silence_counts_from = time.perf_counter()

    @property
    def reports(self) -> list[RoleReport]:
        """One per role."""
        return [child.report for child in self.all]

    @property
    def are_finished(self) -> bool:
        """Whether nothing more is expected of any of them."""
        return all(child.is_finished for child in self.all)

    @property
    def are_held(self) -> bool:
        """Whether everybody stands at a stop check, or will as soon as it has started."""
        word = self._telemetry.word
        return all(
            child.is_finished
            or not (word(child.number, "ready_ns") and word(child.number, "started_ns"))
            or word(child.number, "is_held") == 1
            for child in self.all
        )

    def start(self) -> None:
        """Start everybody."""
        # multiprocessing starts its tracker with the first process, and unblocks SIGINT after that.
        if sys.platform != "win32":
            resource_tracker.ensure_running()
        for child in self.all:
            self._spawn(child)

    def _spawn(self, child: Child) -> None:
        context = multiprocessing.get_context("spawn")
        child.reason, child.has_raised, child.report.imports_torch = None, False, None
        child.born_at = time.perf_counter()
        try:
            here, there = context.Pipe()
            restarts = child.report.restarts
            saves = self._role_state(child.number, restarts > 0)
            probe = Probe(self._telemetry, child.number, self._config, saves, restarts)
            process = context.Process(
                target=run_child,
                args=(child.role, self._config, probe, there, child.born_at),
                name=child.name,
                daemon=True,
            )
            child.connection = here
            with there, interrupts_blocked():
                process.start()
            child.process, child.report.pid = process, process.pid or 0
        except OSError as error:  # no more processes, open files or memory
            child.reason = f"could not be started: {error.strerror or error}"

    def look(self) -> None:
        """Hear what everybody has to say, and deal with those that died or hang."""
        now = time.perf_counter()
        if now - self._looked_at > AWAY_SECONDS:
            self._silence_counts_from = now
        self._looked_at = now
        for child in self.all:
            if child.is_finished:
                continue
            if child.reason is None:
                self._listen(child)
            if child.reason is None and not child.is_finished:
                child.reason = self._silence(child, now)
                self._drop_if_late(child)
            if child.reason is not None:
                self._bury(child)

    def _listen(self, child: Child) -> None:
        assert child.process is not None and child.connection is not None
        alive = child.process.is_alive()  # asked first: what it sent before it died is still there
        try:
            while child.connection.poll():
                self._hear(child, *child.connection.recv())
        except (EOFError, OSError, pickle.UnpicklingError):
            alive = False
        if not alive and not child.is_finished and child.reason is None:
            has_ended(child.process, LAST_WORDS_SECONDS)
            child.reason = how_it_ended(child.process.exitcode)

    def _hear(self, child: Child, kind: str, values: dict[str, Any]) -> None:
        if values.get("not_finite"):
            self._watcher.not_finite(values["traceback"])
            self._watcher.fail(f"{child.name} failed:\n{values['traceback']}")
            child.is_finished = True
        elif kind == "failed":
            child.reason, child.has_raised = values["traceback"], True
        child.is_finished |= kind == "finished"
        for name, value in values.items():
            if hasattr(child.report, name):
                setattr(child.report, name, value)

    def _silence(self, child: Child, now: float) -> str | None:
        """Return what there is to say of a child that gives no sign of life any more."""
        ready_at, heard_at = (
            self._telemetry.word(child.number, name) / 1e9 for name in ("ready_ns", "heartbeat_ns")
        )
        limit = self._config.worker_timeout
        if ready_at == 0:
            limit, heard_at = limit + START_SECONDS, child.born_at
        if now - max(ready_at, heard_at, self._silence_counts_from) <= limit:
            return None
        child.has_hung_at_start = ready_at == 0
        while_starting = " while it started" if child.has_hung_at_start else ""
        return f"gave no sign of life for {limit:g} s{while_starting} and was killed"

    def _drop_if_late(self, child: Child) -> None:
        """End a process at once that is to take another's place and would come when all is over."""
        is_starting = child.report.restarts and not self._telemetry.word(child.number, "ready_ns")
        if child.reason is None and is_starting and self._watcher.is_stopping:
            self.kill(child)

    def _bury(self, child: Child) -> None:
        """Make sure that it is dead, settle what it left, and decide what follows."""
        if child.process is not None:
            child.process.kill()
            if not has_ended(child.process, LAST_WORDS_SECONDS):
                return  # the kernel is not done with it yet, and two must not write one row
        self.close(child)
        self._settle(child)
        reason, env_steps = child.reason or "", self._telemetry.total("env_steps")
        death = Death(child.role.name, child.role.worker, reason, env_steps)
        self.deaths.append(death)
        # Who hangs while it starts would hang again.
        is_lost = child.has_hung_at_start or child.report.restarts >= self._config.max_restarts
        if self._watcher.is_stopping and child.role.can_restart:
            self._expect_no_more(child)
            self._watcher.died(death, "not needed any more")
        elif child.role.can_restart and not is_lost:
            child.report.restarts += 1
            again = f"restarted ({child.report.restarts} of at most {self._config.max_restarts} times)"
            self._watcher.died(death, again, is_replaced=True)
            self._spawn(child)
        else:
            self._expect_no_more(child)
            self._give_up(child, death)

    def _expect_no_more(self, child: Child) -> None:
        """Tell those who would wait for it that it is gone for good."""
        child.is_finished = True
        self._telemetry.set_word(child.number, "gone", 1)

    def _give_up(self, child: Child, death: Death) -> None:
        """Go on without a worker that cannot be replaced any more, or end the run.

        An exception that comes again and again is a fault that going on would hide. A signal, an exit
        or a hang can be the machine's: with fewer workers it may have enough for the others.
        """
        workers = [each for each in self.all if each.role.can_restart]
        left = sum(not each.is_finished for each in workers)
        said = f"failed:\n{death.reason}" if child.has_raised else death.reason
        if child.report.restarts:
            number = child.report.restarts
            said += f"\n(after {number} restart{'' if number == 1 else 's'})"
        if not child.role.can_restart or child.has_raised or left == 0:
            self._watcher.died(death, "the run ends")
            none_left = child.role.can_restart and not child.has_raised
            self._watcher.fail(("no worker is left: " if none_left else "") + f"{child.name} {said}")
        else:
            self._watcher.died(death, f"given up: {left} of {len(workers)} workers are left")

    def kill(self, child: Child) -> None:
        """End a child at once; nothing more is expected of it."""
        if child.process is not None:
            child.process.kill()
            has_ended(child.process, LAST_WORDS_SECONDS)
        self._expect_no_more(child)

    def close(self, child: Child) -> None:
        """Give back what the supervisor holds of a process that has ended."""
        if child.connection is not None:
            child.connection.close()
        if child.process is not None and not child.process.is_alive():
            child.process.close()
        child.process = child.connection = None

    def end(self, seconds: float) -> None:
        """Wait for all processes a little, kill those that are left, and give everything back."""
        deadline = time.perf_counter() + seconds
        for child in self.all:
            process = child.process
            if process is not None and not has_ended(process, deadline - time.perf_counter()):
                self.kill(child)
            self.close(child)


def settle(telemetry: Telemetry, shared: Shared, buffer: ExperienceBuffer | None, child: Child) -> None:
    """Bring a dead process's share of the books into order. Nobody else writes it now.

    Its counters stay: whoever takes its place goes on from them. What it had collected and not shown is
    no part of any count, but for a rollout that was counted and not learned from: that is dropped.
    """
    row, role = child.number, child.role
    telemetry.set_word(row, "ready_ns", 0)
    telemetry.set_word(row, "is_held", 0)
    # The state of a writer that cannot be replaced tells whether the weights are whole.
    if role.can_restart and role.name != "actor" and role.worker < shared.master.num_workers:
        shared.master.settle(role.worker)
    if role.name == "learner":
        return
    env_steps = telemetry.word(row, "env_steps")
    if buffer is not None:
        buffer.settle(role.worker, env_steps)
        return
    dropped = telemetry.word(row, "dropped")
    missing = env_steps - telemetry.word(row, "stored") - dropped
    telemetry.set_word(row, "dropped", dropped + missing)


def how_it_ended(exitcode: int | None) -> str:
    """Return what an exit code says of a process that did not finish."""
    if exitcode is None:
        return "closed its line to the supervisor and was killed"
    if exitcode < 0:
        names = {int(known): known.name for known in signal.Signals}
        return f"was ended by signal {names.get(-exitcode, -exitcode)}"
    return f"left with exit code {exitcode} without finishing"
