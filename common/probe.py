"""What a process reports through, and where it learns that it should stop, wait or save."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from common.config import Config
from common.distributions import add_counts, add_value, add_values
from common.role_state import RoleState
from common.shared_memory import memory_fence
from common.state_files import State
from common.telemetry import (
    CONTROL,
    EPISODES_KEPT,
    GAUGES,
    HEALTH,
    HEALTH_KEPT,
    HISTOGRAMS,
    LENGTHS,
    SPAN,
    SPANS_KEPT,
    WORD,
    Telemetry,
)
from common.types import IntArray

HOLD_SECONDS = 0.001
WAIT_SECONDS = 0.0002

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
        self._at_start: list[Callable[[], None]] = []
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
        began_ns = time.perf_counter_ns()
        if self._control[SAVES_DONE] < number:  # else this process was too late, and it is over
            self._words[WORD["save_failed"]] = self._saves.save(number)
        memory_fence()
        self._words[SAVED] = number
        self._hold_while(
            lambda: self._control[SAVES_DONE] < number and not self._control[STOP],
            "checkpoint",
            began_ns,
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
        for callback in self._at_start:
            callback()
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
    def env_steps_before(self) -> int:
        """Env steps over all workers in the earlier parts of a resumed run."""
        return self._telemetry.before.env_steps

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

    def at_start(self, callback: Callable[[], None]) -> None:
        """Have something done at the first stop check, when all parts of the process are made."""
        self._at_start.append(callback)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Have something reported when the role function has returned."""
        self._at_end.append(callback)

    def finish(self) -> None:
        """Close this process's books: the role function has returned."""
        for callback in self._at_end:
            callback()
        self.set("finished_ns", time.perf_counter_ns())

    def count_update(self) -> None:
        """Count one optimizer step, a sign of life; the first one opens the steady window."""
        words = self._words
        words[HEARTBEAT] = time.perf_counter_ns()
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

    def _hold_while(
        self, condition: Any, activity: str = "evaluation", began_ns: int | None = None
    ) -> None:
        started = time.perf_counter_ns() if began_ns is None else began_ns
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
