"""The supervisor's side of checkpoints: when one is due, who saves when, and what is shared.

A checkpoint is one moment of the whole run. First the learner stands still, at its stop check, and
saves its own state; nothing new begins without it. Then all others do the same. Now nobody writes: the
shared arrays are saved, and everybody goes on. Only then are the files brought to the disk and named in
the manifest. At the end of a run the last checkpoint comes before anybody leaves, since who leaves
closes its last rows: a resumed run must find them open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import Config
from common.events import EVENTS
from common.experience import ExperienceBuffer
from common.processes import Role
from common.role_state import RoleState, role_file
from common.saved_run import FOLDER, SavedRun, remove_others, run_file, write_manifest
from common.shared_memory import SharedArrays, memory_fence
from common.state_files import State, StateError, write_state
from common.telemetry import WORD, Telemetry
from common.types import CheckpointReport

HOLD_TIMEOUT_SECONDS = 30.0
LEARNER = "learner"


def shared_parts(roles: Sequence[Role]) -> dict[str, SharedArrays | ExperienceBuffer]:
    """Return everything in shared memory that the roles were given, each once, by a name.

    Found by looking through the attributes of what they were given; so a strategy needs to say nothing.
    """
    found: dict[str, SharedArrays | ExperienceBuffer] = {}
    seen: set[int] = set()

    def look(value: Any, holder: str) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, SharedArrays | ExperienceBuffer):
            found[f"{len(found)}-{holder}"] = value
        else:
            for each in getattr(value, "__dict__", {}).values():
                look(each, type(value).__name__)

    for role in roles:
        for argument in role.arguments:
            look(argument, type(argument).__name__)
    return found


@dataclass
class _Attempt:
    number: int
    began: float
    deadline: float
    has_asked_all: bool = False


class Checkpointer:
    """Makes the checkpoints of a run.

    Args:
        config: choices.
        telemetry: whose words say who has saved.
        roles: all processes.
        folder: the run's; None makes no checkpoint.
        facts: about the run, for the manifest.
        own_state: returns what the supervisor knows, among it ``training_seconds``.
        resume: the checkpoint that this run goes on from.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        roles: Sequence[Role],
        folder: Path | None,
        facts: Mapping[str, Any],
        own_state: Callable[[], State],
        resume: SavedRun | None = None,
    ) -> None:
        self._config, self._telemetry, self._roles = config, telemetry, roles
        self._folder = None if folder is None else folder / FOLDER
        self._facts, self._own_state, self._resume = facts, own_state, resume
        self._parts = shared_parts(roles)
        self._attempt: _Attempt | None = None
        self._number = 0 if resume is None else resume.number
        self._names: list[str] = [] if resume is None else list(resume.contents["files"])
        self._next_at = float("inf")
        self._last_within: float | None = None
        self._reason: str | None = None
        self._stops = False
        self.held_seconds = 0.0  # to be taken off the training clock
        self.report = CheckpointReport(replay=config.checkpoint_replay)
        self.is_wanted = folder is not None and config.checkpoint_seconds is not None
        self.is_over = not self.is_wanted
        telemetry.set_control("may_leave", int(self.is_over))
        telemetry.set_control("saves_done", self._number)

    def role_state(self, role: int, is_restarted: bool = False) -> RoleState | None:
        """Return where a process saves its part, and where it finds an earlier one.

        Args:
            role: which process.
            is_restarted: it takes the place of one that died since, and loads nothing: what is shared
                has moved on.
        """
        earlier = None if self._resume is None or is_restarted else self._resume.role_file(role)
        if self._folder is None or (self.is_over and earlier is None):
            return None
        return RoleState(self._folder, role, self._roles[role].name == LEARNER, earlier)

    def restore(self) -> None:
        """Fill the shared memory with that of the checkpoint, before a process starts.

        Raises:
            StateError: it does not fit.
        """
        if self._resume is None:
            return
        saved = self._resume.run.pop("shared")  # large, and not needed any more
        if set(saved) != set(self._parts) or self._resume.num_roles != len(self._roles):
            raise StateError("it has other processes or other shared memory")
        for name, part in self._parts.items():
            part.load_state(saved[name])
        seconds = self._resume.contents["training_seconds"]
        self._telemetry.load_state(self._resume.run["telemetry"], seconds)

    def want_last(self, within_seconds: float, reason: str, stop: bool = True) -> None:
        """Have the last checkpoint made soon, or none; one that is being made becomes the last.

        Args:
            within_seconds: after this nobody is waited for.
            reason: why the run ends, for the manifest.
            stop: whether everybody is told to stop before they are let go, so that nothing is done that
                the checkpoint does not hold.
        """
        self._stops = self._stops or stop
        if self._last_within is not None and within_seconds >= self._last_within:
            return
        self._last_within, self._reason = within_seconds, self._reason or reason
        if self._attempt is not None:
            deadline = time.perf_counter() + within_seconds
            self._attempt.deadline = min(self._attempt.deadline, deadline)

    def give_up(self, error: str | None = None) -> None:
        """Make no further checkpoint; nobody waits for one any more."""
        if not self.is_over:
            self.is_over = True
            self._end(error)

    def abandon(self, error: str) -> None:
        """End the attempt that is being made, if there is one: who it waits for is gone."""
        if self._attempt is not None:
            self._end(error)

    def advance(self) -> None:
        """Do what is to be done now; never waits for a process."""
        if self.is_over:
            return
        if self._attempt is None:
            self._begin_if_due()
        attempt = self._attempt
        if attempt is None:
            return
        if time.perf_counter() > attempt.deadline:
            self._end("not every process reached its stop check in time")
        elif not attempt.has_asked_all and self._have_saved(attempt, LEARNER):
            attempt.has_asked_all = True
            self._telemetry.set_control("save", attempt.number)
        elif attempt.has_asked_all and self._have_saved(attempt):
            self._save(attempt)

    def _begin_if_due(self) -> None:
        words, now = self._telemetry.arrays["words"], time.perf_counter()
        if not words[:, WORD["started_ns"]].all():
            if self._last_within is not None:
                self.give_up()  # it ends before it began
            return
        if not words[:, WORD["ready_ns"]].all():
            return  # a process is starting in the place of one that died
        if not words[:, WORD["is_resumable"]].all():
            self.give_up("a process does not name what to save (Probe.resumable)")
            return
        if words[:, WORD["is_at_end"]].any():
            self.want_last(HOLD_TIMEOUT_SECONDS, "completed", stop=False)
        every = self._config.checkpoint_seconds
        self._next_at = min(self._next_at, now + every) if every else self._next_at
        if now >= self._next_at or self._last_within is not None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        within = HOLD_TIMEOUT_SECONDS if self._last_within is None else self._last_within
        self._number += 1
        self._attempt = _Attempt(self._number, now, now + within)
        try:
            assert self._folder is not None
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            self._could_not_write(error)
            return
        self._telemetry.set_control("save_learner", self._number)

    def _have_saved(self, attempt: _Attempt, name: str | None = None) -> bool:
        rows = [i for i, role in enumerate(self._roles) if name in (None, role.name)]
        have_saved = self._telemetry.arrays["words"][rows, WORD["saved"]] == attempt.number
        memory_fence()
        return bool(have_saved.all())

    def _save(self, attempt: _Attempt) -> None:
        """Save what is shared while everybody stands still, let them go on, and finish the files."""
        assert self._folder is not None
        began, folder = time.perf_counter(), self._folder
        names = [run_file(attempt.number)]
        names += [role_file(role, attempt.number) for role in range(len(self._roles))]
        try:
            contents = self._write(folder / names[0], attempt.number)
            self._let_go()
            self._note_held(time.perf_counter() - began)
            self.report.num_bytes = write_manifest(folder, contents, names)
        except OSError as error:
            remove_others(folder, self._names)
            self._could_not_write(error)
            return
        self._names = names
        remove_others(folder, names)
        self.report.saves += 1
        self.report.folder, self.report.error = folder, None
        self.report.saved_at_env_steps = contents["env_steps"]
        seconds = time.perf_counter() - attempt.began
        self.report.save_seconds = max(self.report.save_seconds, seconds)
        self._end()

    def _write(self, path: Path, number: int) -> dict[str, Any]:
        """Write what is shared and return what the manifest says of this moment."""
        failed = int(self._telemetry.arrays["words"][:, WORD["save_failed"]].max())
        if failed:
            raise OSError(failed, os.strerror(failed))
        own = self._own_state()
        shared = {name: part.state() for name, part in self._parts.items()}
        write_state(path, {"own": own, "telemetry": self._telemetry.state(), "shared": shared})
        events = path.parents[1] / EVENTS
        return {
            **self._facts,
            "number": number,
            "ended": self._reason,
            "env_steps": self._telemetry.total("env_steps"),
            "updates": self._telemetry.total("updates"),
            "training_seconds": own["training_seconds"],
            "command_seconds": own["command_seconds"],
            "replay": self._config.checkpoint_replay,
            "warmup_env_steps": self._config.warmup_env_steps,
            "events_bytes": events.stat().st_size if events.is_file() else 0,
        }

    def _note_held(self, seconds: float) -> None:
        self.held_seconds += seconds
        self.report.held_seconds = max(self.report.held_seconds, seconds)

    def _could_not_write(self, error: OSError) -> None:
        self.report.write_error = error.strerror or str(error)
        self._end(self.report.write_error)

    def _end(self, error: str | None = None) -> None:
        """End an attempt, and with the last one everything."""
        self.report.error = error or self.report.error
        self._attempt = None
        self._next_at = float("inf")
        self.is_over = self.is_over or self._last_within is not None
        self._let_go()

    def _let_go(self) -> None:
        # In this order: who is at its end and sees that all is saved must see that it may leave.
        is_last = self.is_over or self._last_within is not None
        if is_last and self._stops:
            self._telemetry.set_control("stop", 1)
        self._telemetry.set_control("may_leave", int(is_last))
        memory_fence()
        self._telemetry.set_control("saves_done", self._number)
