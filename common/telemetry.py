"""Counters, clocks and flags: one block per process, written by that process alone.

Instruments must not synchronise what they measure. So no counter is shared: every process adds to
its own words, and whoever wants a sum adds up the words of all. A 64-bit word is read and written
whole. The flags that the supervisor sets (stop, pause) are words too, looked at between two steps:
nothing here can be held by a process that was killed.
"""

from __future__ import annotations

import struct

import numpy as np

from common import distributions
from common.distributions import NUM_PLACES
from common.shared_memory import SharedArrays
from common.state_files import State, fill
from common.types import Before, IntArray

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
    "updates_credited",
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
    "has_target",
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

    def most_sampled(self) -> int:
        """Return how often one transition was drawn at the most; 0 if nobody counts that."""
        return int(self.arrays["gauges"][:, GAUGES.index("most_sampled")].max())

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
