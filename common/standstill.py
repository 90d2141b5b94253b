"""Finds a run that stands still: everybody gives signs of life and waits for somebody else."""

from __future__ import annotations

from collections.abc import Sequence

from common.telemetry import ACTIVITIES, WORD, Telemetry

WAITS = ("wait", "lock", "barrier", "evaluation", "checkpoint", "restart")
WORK = [WORD[name] for name in (*ACTIVITIES, "env_steps", "updates") if name not in WAITS]
LONGEST_LOOK_SECONDS = 1.0


class StandstillWatch:
    """Notes how long no process has done any work.

    A process that hangs in its work is found by its heartbeat and never gets this far: by then it was
    killed. Held processes, for an evaluation or a checkpoint, are meant to stand.

    Args:
        telemetry: of the processes.
        names: of the processes.
        limit_seconds: after which nobody can be in the middle of a long env step any more.
    """

    def __init__(self, telemetry: Telemetry, names: Sequence[str], limit_seconds: float) -> None:
        self._names, self._limit_seconds = names, limit_seconds
        self._words = telemetry.arrays["words"]
        self._before = self._words.copy()
        self._looked_at = self._still_seconds = 0.0

    def look(self, now: float) -> str | None:
        """Return who waits in what, once nobody has worked for too long; else None.

        Args:
            now: on the ``perf_counter`` clock.
        """
        # In a look that comes late the supervisor was away (a suspended machine, an evaluation).
        since = min(now - self._looked_at, LONGEST_LOOK_SECONDS)
        self._looked_at = now
        words = self._words
        is_held = words[:, WORD["is_held"]].any() or not words[:, WORD["started_ns"]].all()
        if is_held or (words[:, WORK] != self._before[:, WORK]).any():
            self._before, self._still_seconds = words.copy(), 0.0
            return None
        self._still_seconds += since
        if self._still_seconds <= self._limit_seconds:
            return None
        return f"no process has worked for {self._still_seconds:.0f} s: {self._who_waits()}"

    def _who_waits(self) -> str:
        waited = self._words - self._before
        longest = [max(WAITS, key=lambda name: row[WORD[name]]) for row in waited]
        return ", ".join(
            f"{name} in '{activity}'" for name, activity in zip(self._names, longest, strict=True)
        )
