"""Counters, clocks and flags: one block per process, written by that process alone.

Instruments must not synchronise what they measure. So no counter is shared: every process adds to
its own words, and whoever wants a sum adds up the words of all. A 64-bit word is read and written
whole. The flags that the supervisor sets (stop, pause) are words too, looked at between two steps:
nothing here can be held by a process that was killed.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from common.config import Config
from common.shared_memory import SharedArrays
from common.types import Evaluation, IntArray

COUNTERS = (
    "env_steps",
    "updates",
    "episodes",
    "stored",
    "dropped",
    "samples_retried",
    "priorities_dropped",
    "target_copies",
    "weights_version",
    "lag_sum",
    "lock_waits",
)
MARKS = (
    "heartbeat_ns",
    "ready_ns",
    "started_ns",
    "finished_ns",
    "first_update_ns",
    "env_steps_at_first_update",
    "held_ns",
    "held_ns_at_first_update",
    "is_held",
    "evaluations_requested",
)
ACTIVITIES = (
    "env_step",
    "act",
    "write",
    "pull",
    "sample",
    "update",
    "priorities",
    "publish",
    "wait",
    "barrier",
    "held",
)
WORD = {name: i for i, name in enumerate((*COUNTERS, *MARKS, *ACTIVITIES))}
WORDS_PER_ROLE = -(-len(WORD) // 8) * 8  # whole cache lines: no two writers share one
CONTROL = {"stop": 0, "pause": 1, "evaluations_done": 2}
EPISODES_KEPT = 256

# A process remembers when its last activities began and ended: (begin ns, end ns, word) each.
SPANS_KEPT = 4096
SPAN = struct.Struct("=qqq")

# A histogram has one bin for each whole number; the last holds everything above.
HISTOGRAMS = ("gradient_staleness",)
HISTOGRAM_BINS = 1024
QUANTILES = {"p50": 0.5, "p95": 0.95}

HOLD_SECONDS = 0.001
WAIT_SECONDS = 0.0002

HEARTBEAT, ENV_STEPS, UPDATES = WORD["heartbeat_ns"], WORD["env_steps"], WORD["updates"]
STOP, PAUSE, EVALUATIONS_DONE = CONTROL["stop"], CONTROL["pause"], CONTROL["evaluations_done"]


class Telemetry:
    """The blocks of all processes of a run, and the supervisor's flags."""

    def __init__(self, num_roles: int) -> None:
        # words: row i is written by process i alone and read by everybody. episodes: a ring of the
        # last (return, length) per process, written before the process advances its word "episodes".
        # histograms: row i is written by process i alone and read by the supervisor.
        # spans: a ring per process, written by it alone, read by the supervisor when it has ended.
        # control: written by the supervisor alone, read by everybody between two steps.
        self.arrays = SharedArrays(
            {
                "words": ((num_roles, WORDS_PER_ROLE), np.int64),
                "episodes": ((num_roles, EPISODES_KEPT, 2), np.float64),
                "histograms": ((num_roles, len(HISTOGRAMS), HISTOGRAM_BINS), np.int64),
                "spans": ((num_roles, SPANS_KEPT, 3), np.int64),
                "control": ((len(CONTROL),), np.int64),
            }
        )

    def total(self, name: str) -> int:
        """Sum one word over all processes."""
        return int(self.arrays["words"][:, WORD[name]].sum())

    def word(self, role: int, name: str) -> int:
        """Return one word of one process."""
        return int(self.arrays["words"][role, WORD[name]])

    def set_control(self, name: str, value: int) -> None:
        """Set a flag. Only the supervisor calls it."""
        self.arrays["control"][CONTROL[name]] = value

    def quantiles(self, histogram: str) -> dict[str, int] | None:
        """Return p50, p95 and max of one histogram over all processes; None if it is empty."""
        counts = self.arrays["histograms"][:, HISTOGRAMS.index(histogram)].sum(axis=0)
        total = int(counts.sum())
        if total == 0:
            return None
        upto = np.cumsum(counts)
        at = {name: int(np.searchsorted(upto, share * total)) for name, share in QUANTILES.items()}
        return {**at, "max": int(np.flatnonzero(counts)[-1])}

    def spans(self, role: int) -> IntArray:
        """Return a process's last activities ``[n, 3]``: begin ns, end ns, index in ``ACTIVITIES``.

        In the order in which they ended. An activity that was interrupted, by a lock or an evaluation,
        follows what interrupted it and encloses it.
        """
        ring = self.arrays["spans"][role]
        # A process that was killed may have left half an entry.
        whole = ring[(ring[:, 0] > 0) & (ring[:, 0] <= ring[:, 1])]
        spans: IntArray = whole[np.argsort(whole[:, 1], kind="stable")]
        spans[:, 2] -= WORD[ACTIVITIES[0]]
        return spans

    def last_returns(self, count: int) -> list[float]:
        """Return the returns of the last training episodes, at most ``count`` in all.

        Each process contributes in proportion to the episodes it finished.
        """
        finished = self.arrays["words"][:, WORD["episodes"]]
        total = int(finished.sum())
        if total == 0:
            return []
        share = np.ceil(count * finished / total).astype(int)
        share = np.minimum(np.minimum(share, finished), EPISODES_KEPT)
        returns: list[float] = []
        for role, number in enumerate(share):
            slots = (finished[role] - 1 - np.arange(number)) % EPISODES_KEPT
            returns.extend(self.arrays["episodes"][role, slots, 0].tolist())
        return returns[:count]


class Probe:
    """What one process reports through, and where it learns that it should stop. Picklable.

    Args:
        telemetry: the run's blocks.
        role: this process's row.
        config: choices; only the limits and the evaluation schedule are used.
    """

    def __init__(self, telemetry: Telemetry, role: int, config: Config) -> None:
        self._telemetry = telemetry
        self._role = role
        self._steps = config.steps
        self._evaluate_every = config.evaluate_every_env_steps
        self._evaluation_min_updates = config.evaluation_min_updates
        self._next_evaluation = config.evaluate_every_env_steps
        self._updates_at_evaluation = 0
        self._open()

    def _open(self) -> None:
        arrays = self._telemetry.arrays
        # A memoryview reads and writes one word in a third of the time that a numpy array takes.
        words: Any = arrays["words"]
        control: Any = arrays["control"]
        self._all_words = [memoryview(row) for row in words]
        self._words = self._all_words[self._role]
        self._control = memoryview(control)
        self._episodes = arrays["episodes"][self._role]
        self._histograms = arrays["histograms"][self._role]
        spans: Any = arrays["spans"][self._role]
        self._spans = memoryview(spans).cast("B")
        self._span_at = 0
        self._last_ns = self._began_ns = time.perf_counter_ns()

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_all_words", "_words", "_control", "_episodes", "_histograms", "_spans")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def should_stop(self, unpublished_env_steps: int = 0) -> bool:
        """Return whether to leave the loop; waits here while the supervisor holds everybody.

        Args:
            unpublished_env_steps: env steps that this process has made and not yet published.
        """
        words = self._words
        words[HEARTBEAT] = now = time.perf_counter_ns()
        if not words[WORD["started_ns"]]:
            self._start_together(now)
        if self._control[PAUSE]:
            self._hold_while(lambda: self._control[PAUSE] != 0)
        return self._control[STOP] != 0 or self.env_steps + unpublished_env_steps >= self._steps

    def _start_together(self, now: int) -> None:
        """Wait until every process has made its parts: importing torch takes a second or more.

        Otherwise actors would run ahead of a learner that is not there yet, and training clocks would
        include start-up.
        """
        words, started, ready = self._words, WORD["started_ns"], WORD["ready_ns"]
        words[ready] = now
        while not all(each[ready] for each in self._all_words) and not self._control[STOP]:
            words[HEARTBEAT] = time.perf_counter_ns()
            time.sleep(HOLD_SECONDS)
        words[started] = self._last_ns = self._began_ns = time.perf_counter_ns()

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor has asked everybody to stop. Never waits."""
        return self._control[STOP] != 0

    @property
    def own_env_steps(self) -> int:
        """Env steps published so far by this process."""
        return int(self._words[ENV_STEPS])

    @property
    def own_updates(self) -> int:
        """Updates so far by this process."""
        return int(self._words[UPDATES])

    @property
    def env_steps(self) -> int:
        """Env steps published so far over all workers: the clock of every schedule."""
        return sum([words[ENV_STEPS] for words in self._all_words])

    @property
    def updates(self) -> int:
        """Updates so far over all processes."""
        return sum([words[UPDATES] for words in self._all_words])

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of this process's counters."""
        self._words[WORD[name]] += number

    def set(self, name: str, value: int) -> None:
        """Set one of this process's words."""
        self._words[WORD[name]] = value

    def record(self, histogram: str, value: int) -> None:
        """Add one value to a histogram of this process."""
        bins = self._histograms[HISTOGRAMS.index(histogram)]
        bins[min(value, HISTOGRAM_BINS - 1)] += 1

    def count_update(self) -> None:
        """Count one optimizer step; the first one opens the steady window."""
        words = self._words
        if words[UPDATES] == 0:
            words[WORD["env_steps_at_first_update"]] = self.env_steps
            words[WORD["held_ns_at_first_update"]] = words[WORD["held_ns"]]
            words[WORD["first_update_ns"]] = time.perf_counter_ns()
        words[UPDATES] += 1

    def spent(self, activity: str) -> None:
        """Book the time since the last call to ``activity``: what was just done."""
        now, word = time.perf_counter_ns(), WORD[activity]
        self._words[word] += now - self._last_ns
        self._note(self._began_ns, now, word)
        self._last_ns = self._began_ns = now

    def _note(self, began_ns: int, ended_ns: int, word: int) -> None:
        """Remember a span of time in the ring. One call into C: it costs a tenth of a microsecond."""
        SPAN.pack_into(self._spans, self._span_at, began_ns, ended_ns, word)
        self._span_at = (self._span_at + SPAN.size) % (SPANS_KEPT * SPAN.size)

    def waited_since(self, began_ns: int) -> None:
        """Book the time since ``began_ns`` as waiting, apart from the activity it interrupted."""
        now = time.perf_counter_ns()
        self._words[WORD["wait"]] += now - began_ns
        self._note(began_ns, now, WORD["wait"])
        self._last_ns += now - began_ns

    def wait(self, activity: str = "wait") -> None:
        """Sleep a fraction of a millisecond because another process has to go first."""
        time.sleep(WAIT_SECONDS)
        self.spent(activity)

    def record_episodes(self, episodes: list[tuple[float, int]]) -> None:
        """Note finished episodes as (return, length), and empty the list."""
        for episode in episodes:
            self._episodes[self._words[WORD["episodes"]] % EPISODES_KEPT] = episode
            self._words[WORD["episodes"]] += 1
        episodes.clear()

    def evaluation_is_due(self) -> bool:
        """Return whether the schedule, in env steps, asks the weights' writer for an evaluation."""
        if self.env_steps < self._next_evaluation:
            return False
        return self.updates >= self._updates_at_evaluation + self._evaluation_min_updates

    def evaluate(self) -> None:
        """Ask for an evaluation of the published weights and wait until it is done."""
        self._next_evaluation = (self.env_steps // self._evaluate_every + 1) * self._evaluate_every
        self._updates_at_evaluation = self.updates
        self.count("evaluations_requested")
        request = self._words[WORD["evaluations_requested"]]
        self._hold_while(
            lambda: (
                (self._control[EVALUATIONS_DONE] < request or self._control[PAUSE] != 0)
                and self._control[STOP] == 0
            )
        )

    def _hold_while(self, condition: Any) -> None:
        started = time.perf_counter_ns()
        self._words[WORD["is_held"]] = 1
        while condition():
            self._words[HEARTBEAT] = time.perf_counter_ns()
            time.sleep(HOLD_SECONDS)
        self._words[WORD["is_held"]] = 0
        now = time.perf_counter_ns()
        self._words[WORD["held_ns"]] += now - started
        self._words[WORD["held"]] += now - started
        self._note(started, now, WORD["held"])
        self._last_ns += now - started


class Observer(Protocol):
    """What the runner wants to hear while a run goes on."""

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Called some times a second with the run's counters."""

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Called after each evaluation."""


class NullObserver:
    """Hears nothing."""

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Ignore."""

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Ignore."""


class EventLog:
    """``events.jsonl``: one JSON object per line, flushed as written. Belongs to the supervisor."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8")

    def write(self, kind: str, **values: Any) -> None:
        """Append one row."""
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
