"""Counters, clocks and flags: one block per process, written by that process alone.

Instruments must not synchronise what they measure. So no counter is shared: every process adds to
its own words, and whoever wants a sum adds up the words of all. A 64-bit word is read and written
whole. The flags that the supervisor sets (stop, pause) are words too, looked at between two steps:
nothing here can be held by a process that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from common import distributions
from common.config import Config
from common.distributions import NUM_PLACES, add_counts, add_value, add_values
from common.role_state import RoleState
from common.shared_memory import SharedArrays, memory_fence
from common.state_files import State, fill
from common.types import Alarm, Before, Death, Evaluation, IntArray

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
    "lock_waits",
    "health_samples",
    "episodes_cut",
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
    "is_resumable",
    "is_at_end",
    "saved",
    "save_failed",
    "gone",
    "updates_credited",
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
    "lock",
    "barrier",
    "evaluation",
    "checkpoint",
    "restart",
)
WORD = {name: i for i, name in enumerate((*COUNTERS, *MARKS, *ACTIVITIES))}
WORDS_PER_ROLE = -(-len(WORD) // 8) * 8  # whole cache lines: no two writers share one
# evaluations_off: the run ends, and nobody will evaluate. save_learner, save: number of the checkpoint
# that the learner, or everybody, shall save a part of; saves_done: of the last that is through.
# may_leave: whether what has to be saved before anybody leaves is saved.
CONTROL = {
    name: i
    for i, name in enumerate(
        (
            *("stop", "pause", "evaluations_done", "evaluations_off"),
            *("save_learner", "save", "saves_done", "may_leave"),
        )
    )
}
EPISODES_KEPT = 256

# A process remembers when its last activities began and ended: (begin ns, end ns, word) each.
SPANS_KEPT = 4096
SPAN = struct.Struct("=qqq")

# In updates, env steps (of all workers) and microseconds. Policy lag: of the weights that acted behind
# those that learn, when a transition is consumed; acting lag: behind the newest, when acting. Gradient
# staleness: what others did between reading the weights and writing the step. Sample age: since the
# transition was taken into replay.
HISTOGRAMS = (
    "policy_lag",
    "policy_lag_env_steps",
    "policy_lag_microseconds",
    "acting_lag",
    "gradient_staleness",
    "gradient_staleness_env_steps",
    "gradient_staleness_microseconds",
    "sample_age",
    "sample_age_updates",
    "sample_age_microseconds",
)

HISTOGRAM_UNITS = {
    name: "microseconds"
    if name.endswith("_microseconds")
    else "env steps"
    if name.endswith("_env_steps") or name == "sample_age"
    else "updates"
    for name in HISTOGRAMS
}

# Weighted by env steps, over the length of their episode: of finished episodes, of what a replay took
# in, of what was drawn from it (draws). And the episodes themselves.
LENGTHS = ("episodes", "collected", "taken_in", "consumed")

# The newest value of something that is no sum.
GAUGES = ("largest_reward", "most_sampled", "action_entropy")

# What a sample of the learner's health holds (common.health says what each is).
HEALTH = (
    "env_steps",
    "updates",
    "q_mean",
    "q_max",
    "q_bound",
    "td_error",
    "grad_norm",
    "dormant_fraction",
    "effective_rank",
    "churn",
    "weight_norm",
    "most_sampled",
    "action_entropy",
)
HEALTH_KEPT = 64

# What a resumed run goes on with, beside the counters.
KEPT_ARRAYS = ("episodes", "histograms", "lengths", "consumed", "gauges", "health")
# Kinds of events that come for as long as a run goes on, and how many of each are written before only
# every second is: a month at a row a second makes about 40,000 rows, 6 MB.
THINNED = ("progress", "health", "evaluation")
ROWS_PER_DOUBLING = 4096

HOLD_SECONDS = 0.001
WAIT_SECONDS = 0.0002

EVENTS = "events.jsonl"

HEARTBEAT, ENV_STEPS, UPDATES = WORD["heartbeat_ns"], WORD["env_steps"], WORD["updates"]
READY, STARTED, GONE = WORD["ready_ns"], WORD["started_ns"], WORD["gone"]
CREDIT, REQUESTED = WORD["updates_credited"], WORD["evaluations_requested"]
STOP, PAUSE = CONTROL["stop"], CONTROL["pause"]
EVALUATIONS_DONE, EVALUATIONS_OFF = CONTROL["evaluations_done"], CONTROL["evaluations_off"]
SAVES_DONE, MAY_LEAVE, SAVED = CONTROL["saves_done"], CONTROL["may_leave"], WORD["saved"]


class Moment(NamedTuple):
    """A point in time on the three clocks of a run."""

    updates: int
    env_steps: int
    ns: int


class Telemetry:
    """The blocks of all processes of a run, and the supervisor's flags.

    Args:
        num_roles: processes.
        num_workers: workers whose experience is consumed.
    """

    def __init__(self, num_roles: int, num_workers: int = 1) -> None:
        # words: row i is written by process i alone and read by everybody; after a process's death and
        # before another takes its place the supervisor writes it. episodes: a ring of the last
        # (return, length) per process, written before the process advances its word "episodes".
        # histograms, lengths, consumed (transitions by the worker that collected them), gauges and
        # health (a ring of samples, written before the process advances its word "health_samples"):
        # row i is written by process i alone and read by the supervisor.
        # spans: a ring per process, written by it alone, read by the supervisor when it has ended.
        # control: written by the supervisor alone, read by everybody between two steps.
        self.arrays = SharedArrays(
            {
                "words": ((num_roles, WORDS_PER_ROLE), np.int64),
                "episodes": ((num_roles, EPISODES_KEPT, 2), np.float64),
                "histograms": ((num_roles, len(HISTOGRAMS), NUM_PLACES), np.int64),
                "lengths": ((num_roles, len(LENGTHS), NUM_PLACES), np.int64),
                "consumed": ((num_roles, num_workers), np.int64),
                "gauges": ((num_roles, len(GAUGES)), np.float64),
                "health": ((num_roles, HEALTH_KEPT, len(HEALTH)), np.float64),
                "spans": ((num_roles, SPANS_KEPT, 3), np.int64),
                "control": ((len(CONTROL),), np.int64),
            }
        )

        self.before = Before()

    def state(self) -> State:
        """Return what was counted. Clocks and flags belong to the processes and are not part of it."""
        kept = {name: self.arrays[name] for name in KEPT_ARRAYS}
        return {"counters": self.arrays["words"][:, : len(COUNTERS)], **kept}

    def load_state(self, state: State, training_seconds: float) -> None:
        """Go on counting where ``state`` was taken, before any process starts.

        Args:
            state: of the earlier part.
            training_seconds: that it took.

        Raises:
            StateError: it is of other processes.
        """
        counters = self.arrays["words"][:, : len(COUNTERS)]
        fill(counters, state["counters"], "counters")
        for name in KEPT_ARRAYS:
            fill(self.arrays[name], state[name], name)
        self.before = Before(self.total("env_steps"), self.total("updates"), training_seconds)

    def total(self, name: str) -> int:
        """Sum one word over all processes."""
        return int(self.arrays["words"][:, WORD[name]].sum())

    def word(self, role: int, name: str) -> int:
        """Return one word of one process."""
        return int(self.arrays["words"][role, WORD[name]])

    def set_word(self, role: int, name: str, value: int) -> None:
        """Set a word of a process that is dead. Only the supervisor calls it."""
        self.arrays["words"][role, WORD[name]] = value

    def set_control(self, name: str, value: int) -> None:
        """Set a flag. Only the supervisor calls it."""
        self.arrays["control"][CONTROL[name]] = value

    def histogram(self, name: str) -> IntArray:
        """Return one histogram over all processes, as ``common.distributions`` keeps it."""
        return distributions.merge(self.arrays["histograms"][:, HISTOGRAMS.index(name)])

    def lengths(self, kind: str) -> IntArray:
        """Return counts by episode length over all processes, likewise."""
        return distributions.merge(self.arrays["lengths"][:, LENGTHS.index(kind)])

    def consumed_by_worker(self) -> list[int]:
        """Return the transitions consumed, by the worker that collected them."""
        return [int(number) for number in self.arrays["consumed"].sum(axis=0)]

    def health_since(self, role: int, number: int) -> tuple[list[dict[str, float]], int]:
        """Return the samples of a process after the first ``number``, and how many there are now.

        The ring holds the last ``HEALTH_KEPT``; older ones are lost.
        """
        written = self.word(role, "health_samples")
        ring = self.arrays["health"][role]
        numbers = range(max(number, written - HEALTH_KEPT + 1), written)
        samples = [dict(zip(HEALTH, ring[i % HEALTH_KEPT].tolist(), strict=True)) for i in numbers]
        return samples, written

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
        saves: where this process's part of a checkpoint is; None if there are no checkpoints.
        restarts: processes that had this role before and died. Part of every random stream's number,
            so that a worker that takes another's place does not repeat its steps.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        role: int,
        config: Config,
        saves: RoleState | None = None,
        restarts: int = 0,
    ) -> None:
        self._telemetry = telemetry
        self._role = role
        self._saves = saves
        self._save_word = CONTROL["save_learner" if saves is not None and saves.is_first else "save"]
        self.restarts = restarts
        self.worker_timeout_seconds = config.worker_timeout
        self._num_workers = config.workers
        self._at_end: list[Callable[[], None]] = []
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
        self._histograms = dict(zip(HISTOGRAMS, arrays["histograms"][self._role], strict=True))
        self._lengths = dict(zip(LENGTHS, arrays["lengths"][self._role], strict=True))
        self._gauges = arrays["gauges"][self._role]
        self._health = arrays["health"][self._role]
        self.cpu_seconds_at_start = 0.0
        spans: Any = arrays["spans"][self._role]
        self._spans = memoryview(spans).cast("B")
        self._span_at = 0
        self._last_ns = self._began_ns = time.perf_counter_ns()

    def __getstate__(self) -> dict[str, Any]:
        opened = (
            *("_all_words", "_words", "_control", "_episodes", "_last_ns"),
            *("_histograms", "_lengths", "_gauges", "_health", "_spans"),
        )
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def resumable(self, **parts: Any) -> None:
        """Name what only this process has and a resumed run needs; a resumed run loads it here.

        From then on ``should_stop`` may save it. So whoever asks that must be where this function,
        started anew with the same parts, would get to.

        Args:
            parts: numpy generators, or objects with ``state`` and ``load_state``.
        """
        self.set("is_resumable", 1)
        if self._saves is not None:
            self.count("episodes_cut", self._saves.register({"probe": self, **parts}))

    def state(self) -> State:
        """Return where the schedule of evaluations is."""
        return {"next": self._next_evaluation, "updates": self._updates_at_evaluation}

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self._next_evaluation, self._updates_at_evaluation = state["next"], state["updates"]

    def should_stop(self, unpublished_env_steps: int = 0) -> bool:
        """Return whether to leave the loop; waits here while the supervisor holds everybody.

        What this process has named in ``resumable`` is saved here when a checkpoint is due, and before
        it leaves at the last env step.

        Args:
            unpublished_env_steps: env steps that this process has made and not yet published.
        """
        words = self._words
        now = time.perf_counter_ns()
        if words[READY]:
            words[HEARTBEAT] = now
        else:
            self._start_together(now)
        if self._control[PAUSE]:
            self._hold_while(lambda: self._control[PAUSE] != 0)
        if self._control[self._save_word] != words[SAVED]:
            self._save()
        if self._control[STOP] != 0:
            return True
        if self.env_steps + unpublished_env_steps < self._steps:
            return False
        self._wait_to_leave()
        return True

    def should_stop_within(self) -> bool:
        """Return whether to leave in the middle of something that the others count on to be finished.

        Nothing is saved there, and the last env step is no reason.
        """
        words = self._words
        words[HEARTBEAT] = time.perf_counter_ns()
        if self._control[PAUSE]:
            self._hold_while(lambda: self._control[PAUSE] != 0)
        return self._control[STOP] != 0

    def _save(self) -> None:
        """Save this process's part of a checkpoint, and stand still until all have saved theirs."""
        number = self._control[self._save_word]
        assert self._saves is not None
        if self._control[SAVES_DONE] < number:  # else this process was too late, and it is over
            self._words[WORD["save_failed"]] = self._saves.save(number)
        memory_fence()
        self._words[SAVED] = number
        self._hold_while(
            lambda: self._control[SAVES_DONE] < number and not self._control[STOP], "checkpoint"
        )

    def _wait_to_leave(self) -> None:
        """Wait at the last env step until a checkpoint is saved: what a process does as it leaves (it
        closes its last rows) has no place in one.
        """
        control, words = self._control, self._words
        if self._saves is None:
            return
        words[WORD["is_at_end"]] = 1
        while not control[MAY_LEAVE] and not control[STOP]:
            if control[self._save_word] != words[SAVED]:
                self._save()
            self._hold_while(
                lambda: (
                    not (control[MAY_LEAVE] or control[STOP])
                    and control[self._save_word] == words[SAVED]
                ),
                "checkpoint",
            )

    def _start_together(self, now: int) -> None:
        """Wait until every process has made its parts: importing torch takes a second or more.

        Otherwise actors would run ahead of a learner that is not there yet, and training clocks would
        include start-up. Nobody waits for a process that is gone for good.
        """
        words = self._words
        if words[STARTED]:
            self._take_over(now)
            return
        words[HEARTBEAT] = words[READY] = now
        while (
            not all(each[READY] or each[GONE] for each in self._all_words) and not self._control[STOP]
        ):
            words[HEARTBEAT] = time.perf_counter_ns()
            time.sleep(HOLD_SECONDS)
        words[STARTED] = self._last_ns = self._began_ns = time.perf_counter_ns()
        self.cpu_seconds_at_start = time.process_time()

    def _take_over(self, now: int) -> None:
        """Take the place of a process that died after the common start, and go on where it stood."""
        words = self._words
        words[WORD["restart"]] += now - words[HEARTBEAT]
        self._next_evaluation = (self.env_steps // self._evaluate_every + 1) * self._evaluate_every
        self._updates_at_evaluation = self.updates
        words[HEARTBEAT] = words[READY] = now
        # Only now: from here on the others wait for the slowest, which is this one until it is credited
        # with what they did while it was away.
        others = [each for each in self._all_words if each[READY] and each is not words]
        if others:
            slowest = min(each[UPDATES] + each[CREDIT] for each in others)
            words[CREDIT] = slowest - words[UPDATES]
        self._last_ns = self._began_ns = time.perf_counter_ns()
        self.cpu_seconds_at_start = time.process_time()

    def beat(self) -> None:
        """Give a sign of life where there is no stop check: a wait with a deadline of its own."""
        self._words[HEARTBEAT] = time.perf_counter_ns()

    @property
    def is_first(self) -> bool:
        """Whether no process before this one is still in the run: what one alone has to do is its."""
        return all(words[GONE] for words in self._all_words[: self._role])

    @property
    def workers_gone(self) -> list[bool]:
        """Whether each worker has died for good. The last rows are the workers', in their order."""
        return [bool(words[GONE]) for words in self._all_words[-self._num_workers :]]

    def updates_ahead(self) -> int:
        """Return by how many updates this process is ahead of the slowest one that is at work."""
        own = self._words[UPDATES] + self._words[CREDIT]
        return own - min(
            (each[UPDATES] + each[CREDIT] for each in self._all_words if each[READY]), default=own
        )

    @property
    def accounted_env_steps(self) -> int:
        """Env steps that this process, and those before it in its role, have stored or dropped."""
        return int(self._words[WORD["stored"]] + self._words[WORD["dropped"]])

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

    def moment(self, updates: int | None = None) -> Moment:
        """Return where the run is now.

        Args:
            updates: of whoever counts them closer to the weights than this process's words.
        """
        updates = self.updates if updates is None else updates
        return Moment(updates, self.env_steps, time.perf_counter_ns())

    def record(self, histogram: str, value: int) -> None:
        """Add one value to a histogram of this process."""
        add_value(self._histograms[histogram], value)

    def record_values(self, histogram: str, values: IntArray) -> None:
        """Add some values ``[B]`` to a histogram of this process."""
        if len(values):
            add_values(self._histograms[histogram], values)

    def record_staleness(self, read: Moment, written: Moment) -> None:
        """Record what others did to the weights between this process's read and its write."""
        self.record("gradient_staleness", written.updates - read.updates)
        self.record("gradient_staleness_env_steps", written.env_steps - read.env_steps)
        self.record("gradient_staleness_microseconds", (written.ns - read.ns) // 1000)

    def count_episode_length(self, kind: str, length: int, number: int) -> None:
        """Count env steps or draws (see ``LENGTHS``) of an episode of this length."""
        add_value(self._lengths[kind], length, number)

    def count_episode_lengths(self, kind: str, lengths: IntArray, numbers: IntArray) -> None:
        """Count env steps or draws ``[N]`` of episodes of these lengths ``[N]``."""
        if len(lengths):
            add_counts(self._lengths[kind], lengths, numbers)

    def count_consumed(self, worker: int, number: int) -> None:
        """Count transitions that this process has learned from, by who collected them."""
        self._telemetry.arrays["consumed"][self._role, worker] += number

    def gauge(self, name: str, value: float) -> None:
        """Set the newest value of something."""
        self._gauges[GAUGES.index(name)] = value

    def raise_gauge(self, name: str, value: float) -> None:
        """Set the newest value of something that only grows."""
        place = GAUGES.index(name)
        self._gauges[place] = max(value, self._gauges[place])

    def gauges(self) -> dict[str, float]:
        """Return the newest values that this process has set."""
        return dict(zip(GAUGES, self._gauges.tolist(), strict=True))

    def record_health(self, sample: dict[str, float]) -> None:
        """Add a sample of the learner's health; its keys are those of ``HEALTH``."""
        number = self._words[WORD["health_samples"]]
        self._health[number % HEALTH_KEPT] = [sample[name] for name in HEALTH]
        self._words[WORD["health_samples"]] = number + 1

    def at_end(self, callback: Callable[[], None]) -> None:
        """Have something reported when the role function has returned."""
        self._at_end.append(callback)

    def finish(self) -> None:
        """Close this process's books: the role function has returned."""
        for callback in self._at_end:
            callback()
        self.set("finished_ns", time.perf_counter_ns())

    def count_update(self) -> None:
        """Count one optimizer step; the first one opens the steady window."""
        words = self._words
        if words[WORD["first_update_ns"]] == 0:
            words[WORD["env_steps_at_first_update"]] = self.env_steps
            words[WORD["held_ns_at_first_update"]] = words[WORD["held_ns"]]
            words[WORD["first_update_ns"]] = time.perf_counter_ns()
        words[UPDATES] += 1

    def spent(self, activity: str) -> None:
        """Book the time since the last call to ``activity``: what was just done.

        Until all processes have started together it is start-up, and not booked.
        """
        now, word = time.perf_counter_ns(), WORD[activity]
        if self._words[STARTED]:
            self._words[word] += now - self._last_ns
            self._note(self._began_ns, now, word)
        self._last_ns = self._began_ns = now

    def _note(self, began_ns: int, ended_ns: int, word: int) -> None:
        """Remember a span of time in the ring. One call into C: it costs a tenth of a microsecond."""
        SPAN.pack_into(self._spans, self._span_at, began_ns, ended_ns, word)
        self._span_at = (self._span_at + SPAN.size) % (SPANS_KEPT * SPAN.size)

    def waited_since(self, began_ns: int) -> None:
        """Book the time since ``began_ns`` as waiting for a lock, not to the activity around it."""
        now = time.perf_counter_ns()
        self._words[WORD["lock"]] += now - began_ns
        self._note(began_ns, now, WORD["lock"])
        self._last_ns += now - began_ns

    def wait(self, activity: str = "wait") -> None:
        """Sleep a fraction of a millisecond because another process has to go first."""
        time.sleep(WAIT_SECONDS)
        self.spent(activity)

    def record_episodes(self, episodes: list[tuple[float, int]]) -> None:
        """Note finished episodes as (return, length), and empty the list."""
        for episode in episodes:
            self.count_episode_length("episodes", episode[1], 1)
            self.count_episode_length("collected", episode[1], episode[1])
            self._episodes[self._words[WORD["episodes"]] % EPISODES_KEPT] = episode
            self._words[WORD["episodes"]] += 1
        episodes.clear()

    def evaluation_is_due(self) -> bool:
        """Return whether the schedule, in env steps, asks the weights' writer for an evaluation."""
        if self.env_steps < self._next_evaluation:
            return False
        return self.updates >= self._updates_at_evaluation + self._evaluation_min_updates

    def evaluate(self) -> None:
        """Ask for an evaluation of the published weights and wait until it is done.

        If the run ends before that, it is due again, for the run that goes on from there.
        """
        before = self._next_evaluation, self._updates_at_evaluation
        self._next_evaluation = (self.env_steps // self._evaluate_every + 1) * self._evaluate_every
        self._updates_at_evaluation = self.updates
        self.count("evaluations_requested")
        request = sum([words[REQUESTED] for words in self._all_words])
        self._hold_while(
            lambda: (
                (self._control[EVALUATIONS_DONE] < request or self._control[PAUSE] != 0)
                and self._control[STOP] == self._control[EVALUATIONS_OFF] == 0
            )
        )
        if self._control[EVALUATIONS_DONE] < request:
            self._next_evaluation, self._updates_at_evaluation = before

    def _hold_while(self, condition: Any, activity: str = "evaluation") -> None:
        started = time.perf_counter_ns()
        self._words[WORD["is_held"]] = 1
        while condition():
            self._words[HEARTBEAT] = time.perf_counter_ns()
            time.sleep(HOLD_SECONDS)
        self._words[WORD["is_held"]] = 0
        now = time.perf_counter_ns()
        self._words[WORD["held_ns"]] += now - started
        self._words[WORD[activity]] += now - started
        self._note(started, now, WORD[activity])
        self._last_ns += now - started


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
        if self._kept_bytes is not None:
            # What an interrupted run wrote after its last checkpoint happens once more from here on.
            self._file.truncate(self._kept_bytes)
            self._kept_bytes = None
        end = self._file.seek(0, os.SEEK_END)
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
