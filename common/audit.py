"""The exact update audit: a weight that counts the writes it has received.

The shared master weights are float64, and each is the sum of two parts that never touch:

    w = value + count * 2^-48        value a multiple of 2^-24, |value| <= 16;  0 <= count < 2^24

A float64 holds 53 significant bits, so below 32 every multiple of 2^-48 is exact, and so is every sum
and difference of such numbers, in any order. An update rounds its delta to a multiple of 2^-24 and adds
2^-48 to it. The one addition that applies the delta then also counts itself: the same load, the same
store, the same race. If another process overwrites the result, delta and count are gone together.

    value  = floor(w / 2^-24) * 2^-24          the weight
    landed = (w - value) / 2^-48               writes that survived in this element, exactly
    lost   = issued - landed                   issued: counted by each worker for itself, unshared

The count moves the weight by less than 2^-24. When it passes 2^24 it carries one step of 2^-24 into the
value and begins again, so a reader looks more often than that and counts the rounds (``AuditReader``).

Rounding alone would drop every delta below 2^-25. Each worker keeps what rounding left and adds it to
its next delta (error feedback), so that the sum of what was applied stays within 2^-25 of the sum of
what was asked.

What races here is ``numpy``'s in-place addition over the whole vector: it loads, adds and stores a few
elements at a time. A bare ``optimizer.step()`` on shared float32 parameters loads and stores them the
same way, but begins its load earlier and spends longer between load and store, so it may lose more.
Weights averaged, scaled or decayed in the master by anything but a writer carry counts that fit no
history; the report then says so and gives no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.shared_memory import SharedArrays, memory_fence
from common.state_files import State, fill
from common.types import FloatArray, IntArray

if TYPE_CHECKING:
    from common.audited_module import SharedAudit as SharedAudit
else:

    def __getattr__(name: str) -> Any:
        """Load what needs torch only when it is asked for: actors import this file without it."""
        if name != "SharedAudit":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from common.audited_module import SharedAudit

        return SharedAudit


Float64Array = NDArray[np.float64]
Progress = list[tuple[int, int]]  # updates started and finished, of each other writer

VALUE_STEP = 2.0**-24
TAG = 2.0**-48
COUNT_MODULUS = 2**24
MAX_WEIGHT = 16.0
# Adding this to a number below 2^27 leaves no bits finer than 2^-24: round to nearest, ties to even.
ROUNDER = 1.5 * 2.0**28

# A reader must look before this many updates were issued since its last look.
MAX_UPDATES_BETWEEN_SAMPLES = 2**22
SAMPLE_EVERY_UPDATES = 2**20

# Words of one worker: one cache line, so that no two workers write the same one.
STARTED, FINISHED, TORN_READS, VOID_SINCE, OWNER, ABANDONED = range(6)
WORDS_PER_WORKER = 8

WRITES = ("in-place", "copy-back")


def round_to_lattice(weights: NDArray[Any]) -> NDArray[Any]:
    """Round to multiples of 2^-24, ties to even. A float32 within +-16 stays one, exactly."""
    scale = weights.dtype.type(1 / VALUE_STEP)
    rounded: NDArray[Any] = np.rint(weights * scale) / scale
    return rounded


def join(value: Float64Array, count: IntArray) -> Float64Array:
    """Return the float64 that carries both; the count is taken modulo 2^24."""
    joined: Float64Array = value + (count % COUNT_MODULUS) * TAG
    return joined


def split(weights: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return (value, count modulo 2^24) of master weights; the inverse of ``join``.

    The count is a float64: a whole number unless something other than a writer changed the weight.
    """
    value = np.floor(weights / VALUE_STEP) * VALUE_STEP
    return value, (weights - value) / TAG


def stamps_lost_and_duplicated(
    issued_by_worker: Sequence[int], applied: Iterable[tuple[int, int]]
) -> tuple[int, int]:
    """Count gradients that a shared buffer lost, and those it gave to the optimizer again.

    Args:
        issued_by_worker: gradients that each worker put in, numbered from 0.
        applied: (worker, number) of each gradient that the optimizer took.

    Returns:
        Lost and duplicated: issued = distinct applied + lost, applied = distinct + duplicated.
    """
    taken = list(applied)
    distinct = len(set(taken))
    return sum(issued_by_worker) - distinct, len(taken) - distinct


class SharedMaster:
    """The one set of weights that all writers change, with a count in every element.

    Args:
        initial: ``[P]`` first weights; rounded to the lattice.
        num_workers: how many processes write.
        audit: False keeps everything but the rounding and the count.
    """

    def __init__(self, initial: FloatArray, num_workers: int = 1, audit: bool = True) -> None:
        self.num_parameters = len(initial)
        self.num_workers = num_workers
        self.audit = audit
        # weights: [P + num_workers]. Read and written by every worker, by design without any guard; the
        # last elements belong to no weight: number P + k is counted up by worker k's updates alone, and
        # is overwritten and copied with the rest. words: row k is written by worker k alone, STARTED
        # before it touches the weights and FINISHED after it, and read by everybody.
        self._arrays = SharedArrays(
            {
                "weights": ((self.num_parameters + num_workers,), np.float64),
                "words": ((num_workers, WORDS_PER_WORKER), np.int64),
            }
        )
        self.weights[: self.num_parameters] = round_to_lattice(initial.astype(np.float64))

    @property
    def weights(self) -> Float64Array:
        """``[P + num_workers]``, shared."""
        return self._arrays["weights"]

    @property
    def words(self) -> IntArray:
        """``[num_workers, 8]``, shared."""
        return self._arrays["words"]

    @property
    def num_bytes(self) -> int:
        """Shared memory used."""
        return self._arrays.num_bytes

    @property
    def updates_issued(self) -> int:
        """Updates finished by all writers."""
        return int(self.words[:, FINISHED].sum())

    @property
    def is_torn(self) -> bool:
        """Whether a writer is in the middle of an update, or was killed in one."""
        words = self.words
        return bool((words[:, STARTED] != words[:, FINISHED] + words[:, ABANDONED]).any())

    def settle(self, worker: int) -> None:
        """Note that nobody will finish the update in which a writer was killed, if it was in one.

        Called when the writer is dead, by the one process that may write its words then. The update
        stays uncertain in the report; reads by others are no longer taken for torn because of it.
        """
        words = self.words[worker]
        words[ABANDONED] = words[STARTED] - words[FINISHED]

    def vector(self) -> FloatArray:
        """Return the weights ``[P]`` as float32. Whole only while nobody writes."""
        return self.weights[: self.num_parameters].astype(np.float32)


class MasterWriter:
    """One worker's way to read the master and to write its updates into it.

    Read the master into a private float32 vector, let any optimizer change that vector, and apply the
    difference. The buffers are made once: an update allocates nothing.

    Args:
        master: the shared weights.
        worker: whose words and whose extra element.
        write: ``in-place`` adds the difference to whatever the master holds by then; ``copy-back``
            writes back what was read plus the difference, and with it undoes what others did meanwhile.
    """

    def __init__(self, master: SharedMaster, worker: int = 0, write: str = "in-place") -> None:
        if write not in WRITES:
            raise ValueError(f"write {write!r} is not allowed; it is one of {', '.join(WRITES)}")
        self._num_parameters = master.num_parameters
        self._audit = master.audit
        self._copies_back = write == "copy-back"
        self._weights = master.weights
        self._words: Any = memoryview(master.words[worker])
        # Memoryviews: reading one word through numpy takes several times as long.
        self._others: list[Any] = [
            memoryview(row) for other, row in enumerate(master.words) if other != worker
        ]
        size = len(master.weights)
        self._before = np.empty(master.num_parameters, dtype=np.float32)
        self._seen: Progress | None = None  # how far the other writers were when the master was read
        self._copy = np.empty(size if self._copies_back else 0)
        self._left = np.zeros(master.num_parameters)  # what rounding left of earlier deltas
        # What the last update added: its tail is this worker's mark in the extra elements.
        self.delta = np.zeros(size)
        if self._audit:
            self.delta[self._num_parameters + worker] = TAG

    @property
    def updates_issued(self) -> int:
        """Updates finished by all writers."""
        return int(self._words[FINISHED]) + sum([int(words[FINISHED]) for words in self._others])

    def state(self) -> State:
        """Return what rounding has left so far, of which the master knows nothing."""
        return {"left": self._left}

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        fill(self._left, state["left"], "left")

    def read_into(self, vector: FloatArray) -> None:
        """Copy the master into ``vector`` ``[P]`` and remember what was read."""
        self._seen = seen = self._others_progress()
        if self._copies_back:
            np.copyto(self._copy, self._weights)
            np.copyto(vector, self._copy[: self._num_parameters], casting="same_kind")
        else:
            np.copyto(vector, self._weights[: self._num_parameters], casting="same_kind")
        if seen is not None and self._maybe_torn(seen):
            self._words[TORN_READS] += 1
        np.copyto(self._before, vector)
        # Written so that a weight that is no number fails it too.
        if not (vector.max() <= MAX_WEIGHT and vector.min() >= -MAX_WEIGHT):
            self._words[VOID_SINCE] = self._words[VOID_SINCE] or max(1, self._words[FINISHED])

    def is_current(self) -> bool:
        """Return whether what was read is whole and no other writer has begun to write since."""
        return self._seen is None or not self._maybe_torn(self._seen)

    def is_as_read(self, vector: FloatArray) -> bool:
        """Return whether ``vector`` still holds what was read, bit for bit (so that NaN is itself)."""
        return bool(np.array_equal(vector.view(np.int32), self._before.view(np.int32)))

    def apply(self, vector: FloatArray) -> None:
        """Write the change of ``vector`` since it was read, in the way this writer writes.

        Once for each ``read_into``: what was read is used up.
        """
        self.make_delta(vector)
        self._words[STARTED] += 1
        memory_fence()
        if self._copies_back:
            self._copy += self.delta
            np.copyto(self._weights, self._copy)
        else:
            # Another process may load or store any of these elements while this runs.
            np.add(self._weights, self.delta, out=self._weights)
        memory_fence()
        self._words[FINISHED] += 1

    def apply_in_steps(self, vector: FloatArray, between: Callable[[], None]) -> None:
        """Load, add and store with a call between load and store: a race that can be forced."""
        self.make_delta(vector)
        self._words[STARTED] += 1
        loaded = self._weights.copy()
        between()
        loaded += self.delta
        memory_fence()
        np.copyto(self._weights, loaded)
        memory_fence()
        self._words[FINISHED] += 1

    def make_delta(self, vector: FloatArray) -> None:
        """Set ``delta`` to what ``apply`` adds: the rounded change, and the count."""
        delta, left = self.delta[: self._num_parameters], self._left
        np.subtract(vector, self._before, out=self._before)
        if not self._audit:
            np.copyto(delta, self._before)
            return
        left += self._before
        np.add(left, ROUNDER, out=delta)
        delta -= ROUNDER
        left -= delta
        delta += TAG

    def _others_progress(self) -> Progress | None:
        """Return how far each other writer is, or None if there are none."""
        if not self._others:
            return None
        progress = [(words[STARTED], words[FINISHED] + words[ABANDONED]) for words in self._others]
        memory_fence()
        return progress

    def _maybe_torn(self, before: Progress) -> bool:
        """Return whether another worker was writing when the copy began, or began meanwhile."""
        memory_fence()
        return any(
            started != finished or words[STARTED] != started
            for (started, finished), words in zip(before, self._others, strict=True)
        )


class AuditReader:
    """Follows the counts through their rounds of 2^24 and makes the report. Belongs to one process."""

    def __init__(self, master: SharedMaster) -> None:
        self._master = master
        self._landed = np.zeros(len(master.weights))
        self._last_count = np.zeros(len(master.weights))
        self._issued_at_sample = 0
        self._reason: str | None = None

    def state(self) -> State:
        """Return what the counts have come to."""
        return {
            "landed": self._landed,
            "last_count": self._last_count,
            "issued_at_sample": self._issued_at_sample,
            "reason": self._reason,
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        fill(self._landed, state["landed"], "landed")
        fill(self._last_count, state["last_count"], "last_count")
        self._issued_at_sample, self._reason = state["issued_at_sample"], state["reason"]

    def sample_if_due(self) -> None:
        """Look at the counts if many updates were issued since the last look."""
        if self._master.updates_issued - self._issued_at_sample >= SAMPLE_EVERY_UPDATES:
            self.sample()

    def sample(self) -> None:
        """Look at the counts.

        A count can also fall: a writer that copies back undoes what came after its read. So a change is
        a rise only where so many updates were issued at all, and a fall otherwise.
        """
        self._look_for_void()
        if self._reason is not None:
            return
        issued = self._master.updates_issued
        if issued - self._issued_at_sample > MAX_UPDATES_BETWEEN_SAMPLES:
            self._give_up(f"{issued - self._issued_at_sample} updates between two looks at the counts")
        _, count = split(self._master.weights.copy())
        if not np.array_equal(count, np.rint(count)):
            self._give_up("a weight was changed by something other than a writer (a broken count)")
        change = (count - self._last_count) % COUNT_MODULUS
        change[change > 2 * MAX_UPDATES_BETWEEN_SAMPLES] -= COUNT_MODULUS
        self._landed += change
        self._last_count, self._issued_at_sample = count, issued

    def _look_for_void(self) -> None:
        since = self._master.words[:, VOID_SINCE]
        for worker in np.flatnonzero(since):
            self._give_up(f"a weight left +-16 at update {since[worker]} of worker {worker}")

    def _give_up(self, reason: str) -> None:
        self._reason = self._reason or reason

    def report(self, optimizer_state: str = "local") -> dict[str, Any]:
        """Return the ``audit`` block of a summary. Exact once no writer is at work any more.

        Args:
            optimizer_state: what is said of the optimizer's moments, which carry no counts.
        """
        words = self._master.words
        self.sample()
        self._judge()
        report: dict[str, Any] = dict.fromkeys(REPORT_FIELDS)
        report["enabled"] = self._master.audit
        report["auditable"] = self._reason is None
        report["reason"] = self._reason
        report["optimizer_state"] = optimizer_state
        report["elements"] = self._master.num_parameters
        report["updates_issued"] = int(words[:, FINISHED].sum())
        report["updates_issued_by_worker"] = [int(number) for number in words[:, FINISHED]]
        report["torn_reads_at_most"] = int(words[:, TORN_READS].sum())
        if self._reason is None:
            report.update(self._counts(report["updates_issued"]))
        return report

    def _judge(self) -> None:
        """Say why there can be no number, if there can be none."""
        words, last_weight = self._master.words, self._master.num_parameters
        if not self._master.audit:
            self._reason = "the audit was switched off"
            return
        started = int(words[:, STARTED].sum())
        most = np.concatenate([np.full(last_weight, started), words[:, STARTED]])
        if (self._landed < 0).any() or (self._landed > most).any():
            self._give_up(
                "counts fit no history of writes: the weights were changed by something else than a "
                "writer (averaged, scaled or copied from elsewhere)"
            )

    def lost_by_element(self) -> IntArray | None:
        """Return how many writes each element lost, ``[P]``; None where ``report`` gave no number."""
        return None if self._reason is not None else self._lost(self._master.updates_issued)

    def _lost(self, issued: int) -> IntArray:
        lost: IntArray = np.maximum(issued - self._landed[: self._master.num_parameters], 0)
        return lost.astype(np.int64)

    def _counts(self, issued: int) -> dict[str, Any]:
        """Return what was lost; a worker killed in an update makes it lost .. lost + uncertain."""
        words, elements = self._master.words, self._master.num_parameters
        lost = self._lost(issued)
        writes_issued, writes_lost = issued * elements, int(lost.sum())
        return {
            "writes_issued": writes_issued,
            "writes_lost": writes_lost,
            "lost_fraction": writes_lost / writes_issued if writes_issued else 0.0,
            "elements_affected": int(np.count_nonzero(lost)),
            "worst_element_lost": int(lost.max()),
            # Every write that the worst element lost belongs to another update; an update that was lost
            # whole was lost in the least hit element too.
            "damaged_updates_at_least": int(lost.max()),
            "lost_whole_at_most": int(lost.min()),
            "writes_uncertain": int((words[:, STARTED] - words[:, FINISHED]).sum()) * elements,
            "survivors_by_worker": [int(landed) for landed in self._landed[elements:]],
            "duplicates": 0,  # each writer applies its own update itself, once
        }


REPORT_FIELDS = (
    "enabled",
    "writes_issued",
    "writes_lost",
    "lost_fraction",
    "elements",
    "elements_affected",
    "worst_element_lost",
    "damaged_updates_at_least",
    "lost_whole_at_most",
    "writes_uncertain",
    "updates_issued",
    "updates_issued_by_worker",
    "survivors_by_worker",
    "duplicates",
    "torn_reads_at_most",
    "auditable",
    "reason",
    "optimizer_state",
)
