"""Who hears a run while it goes on, and the file in which its events are kept."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from common.types import Alarm, Death, Evaluation

EVENTS = "events.jsonl"

# Kinds of events that come for as long as a run goes on, and how many of each are written before only
# every second is: a month at a row a second makes about 40,000 rows, 6 MB.
THINNED = ("progress", "health", "evaluation")
ROWS_PER_DOUBLING = 4096


class Observer(Protocol):
    """What the runner wants to hear while a run goes on."""

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Called some times a second with the run's counters."""

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Called after each evaluation."""

    def on_health(self, sample: Mapping[str, float], seconds: float) -> None:
        """Called with each sample of the network's health (``HEALTH``), soon after it was taken."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Called when an alarm is raised."""

    def on_death(self, death: Death, outcome: str) -> None:
        """Called when a process has died; ``outcome`` says what follows."""

    def on_final_evaluation(self, episodes: int) -> None:
        """Called before the final weights play so many episodes."""


class NullObserver:
    """Hears nothing."""

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Ignore."""

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Ignore."""

    def on_health(self, sample: Mapping[str, float], seconds: float) -> None:
        """Ignore."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Ignore."""

    def on_death(self, death: Death, outcome: str) -> None:
        """Ignore."""

    def on_final_evaluation(self, episodes: int) -> None:
        """Ignore."""


class EventLog:
    """``events.jsonl``: one JSON object per line, flushed as written. Belongs to the supervisor.

    A disk that is full ends no run: rows are lost, which is said once, and when there is room again a
    row of kind ``lost`` says how many.

    The file's size is bounded: of each kind in ``THINNED`` every row is written at first, after
    ``ROWS_PER_DOUBLING`` rows every second, after as many again every fourth, and so on.

    Args:
        path: the file.
        kept_bytes: of what is there already; what follows them is dropped with the first row.
    """

    def __init__(self, path: Path, kept_bytes: int = 0) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._kept_bytes: int | None = min(kept_bytes, path.stat().st_size)
        self._seen = dict.fromkeys(THINNED, 0)
        self._written = dict.fromkeys(THINNED, 0)
        self._lost = 0
        self._has_said = False

    def write(self, kind: str, **values: Any) -> None:
        """Append one row, if it is its turn."""
        if kind in self._seen and not self._is_its_turn(kind):
            return
        rows = [{"kind": kind, **values}]
        if self._lost:
            rows.insert(0, {"kind": "lost", "rows": self._lost})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        try:
            self._append(text.encode())
            self._lost = 0
        except OSError as error:
            self._lost += 1
            self._say(error)

    def _is_its_turn(self, kind: str) -> bool:
        number = self._seen[kind]
        self._seen[kind] += 1
        if number % (1 << self._written[kind] // ROWS_PER_DOUBLING):
            return False
        self._written[kind] += 1
        return True

    def _append(self, data: bytes) -> None:
        """Write whole rows or nothing.

        Raises:
            OSError: there was no room for all of them.
        """
        end = self._file.seek(0, os.SEEK_END)
        if self._kept_bytes is not None and end > self._kept_bytes:
            # What an interrupted run wrote after its last checkpoint happens once more from here on.
            self._file.truncate(self._kept_bytes)
            end = self._file.seek(0, os.SEEK_END)
        self._kept_bytes = None
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
                self._file.seek(end)
            raise

    def _say(self, error: OSError) -> None:
        if self._has_said:
            return
        self._has_said = True
        with contextlib.suppress(OSError):
            print(
                f"{self._path} cannot be written ({error.strerror}); the run goes on, and its events "
                "are lost until it can",
                file=sys.stderr,
            )

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()
