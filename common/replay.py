"""Replay: the learner's end of the experience buffer, uniform or prioritized.

Both kinds take in newly published rows, draw rows whose n-step window is complete, and copy them. The
workers never wait for that: a row that was overwritten during the copy is noticed and drawn anew.
Belongs to one process, the learner's.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from common.config import Config
from common.consumption import Consumption
from common.experience import ExperienceBuffer
from common.probe import Probe
from common.returns import n_step_window
from common.shared_memory import memory_fence
from common.state_files import State
from common.types import Batch, FloatArray, IntArray

# Rows are drawn anew when they were no transitions, or overwritten during the copy. Both are rare
# enough that running out of tries means something is wrong.
MAX_DRAWS = 100

# A transition with no error at all keeps a small chance (Schaul et al. 2016, section 3.3).
PRIORITY_FLOOR = 1e-6


class Replay(Protocol):
    """What a learner needs of either kind."""

    num_transitions: int

    def state(self) -> State:
        """Return what a resumed run needs; the rows themselves are the buffer's."""

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""

    def take_in(self) -> None:
        """Look for newly published rows."""

    def sample(self) -> Batch:
        """Draw and copy a batch."""

    def update_priorities(self, batch: Batch, td_error: FloatArray) -> None:
        """Give the batch's TD errors back."""


def make_replay(
    config: Config, buffer: ExperienceBuffer, generator: np.random.Generator, probe: Probe
) -> Replay:
    """Return the replay that the configuration asks for."""
    kind = PrioritizedReplay if config.prioritized else UniformReplay
    return kind(config, buffer, generator, probe)


class _Reader:
    """Finds published rows and copies transitions out of the buffer.

    A ``place`` is a position in the buffer: ((worker * num_rows) + slot) * num_lanes + lane.
    """

    def __init__(self, config: Config, buffer: ExperienceBuffer, probe: Probe) -> None:
        self._buffer = buffer
        self._probe = probe
        self._n_step = config.n_step
        self._gamma = config.gamma
        self.num_rows, self.num_lanes = buffer.num_rows, buffer.num_lanes
        self.num_places = buffer.num_workers * self.num_rows * self.num_lanes
        self.taken_rows = [0] * buffer.num_workers
        self.taken_env_steps = [0] * buffer.num_workers
        self._first_row = [0] * buffer.num_workers  # later where a resumed run's rows were not saved
        self._saves_rows = config.checkpoint_replay
        if buffer.num_workers == 1:
            # What a process that died had accounted for is sampled again and not counted again.
            self.taken_env_steps = [probe.accounted_env_steps]
        self._offsets = np.arange(config.n_step)
        # The same memory with worker, slot and lane as one axis: one gather instead of three.
        self._flat = {
            name: buffer[name].reshape(self.num_places, *buffer[name].shape[3:])
            for name in ("observation", "action", "reward", "terminated", "truncated", "valid")
        }
        self._probability = buffer["action_probability"].reshape(-1)
        self._version = buffer["weights_version"].reshape(-1)
        self._consumption: Consumption | None = None
        if config.instruments:
            self._consumption = Consumption(
                buffer.num_workers, self.num_rows, self.num_lanes, buffer.first_worker, probe
            )
        self.priority = buffer["priority"].reshape(-1)

    def state(self) -> State:
        """Return how far this reader is."""
        consumption = self._consumption
        return {
            "with_rows": self._saves_rows,
            "first_row": self._first_row,
            "taken_rows": self.taken_rows,
            "taken_env_steps": self.taken_env_steps,
            "consumption": None if consumption is None else consumption.state(self._saves_rows),
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken.

        Where the rows were not saved, those that were published and not taken in yet are lost.
        """
        self._first_row = state["first_row"]
        self.taken_rows, self.taken_env_steps = state["taken_rows"], state["taken_env_steps"]
        if self._consumption is not None and state["consumption"] is not None:
            self._consumption.load_state(state["consumption"])
        if state["with_rows"]:
            return
        for worker in range(self._buffer.num_workers):
            until = self._buffer.published(worker)
            env_steps = self._buffer.env_steps_until(worker, until)
            self._probe.count("dropped", env_steps - self.taken_env_steps[worker])
            self.taken_rows[worker], self.taken_env_steps[worker] = until, env_steps
            self._first_row[worker] = until

    def first_safe_row(self, worker: int) -> int:
        """Return the oldest row of a worker outside the band that it may be overwriting."""
        safe = self._buffer.writing(worker) - self.num_rows + self._buffer.guard_rows
        return max(self._first_row[worker], safe)

    def new_rows(self, worker: int) -> tuple[int, int]:
        """Return the range of rows published since the last call, and count them.

        Rows that were overwritten before anybody looked are counted as dropped.
        """
        buffer, first = self._buffer, self.taken_rows[worker]
        for _ in range(MAX_DRAWS):
            until = buffer.published(worker)
            if until == first:
                break
            oldest = min(max(first, self.first_safe_row(worker)), until)
            env_steps_at_oldest = self.taken_env_steps[worker]
            if oldest != first:
                env_steps_at_oldest = max(env_steps_at_oldest, buffer.env_steps_before(worker, oldest))
            env_steps = buffer.env_steps_until(worker, until)
            # The worker may have come round while these were read: then they are of other rows.
            if oldest == until or oldest < buffer.writing(worker) - self.num_rows:
                continue
            self._probe.count("dropped", env_steps_at_oldest - self.taken_env_steps[worker])
            self._probe.count("stored", env_steps - env_steps_at_oldest)
            self.taken_rows[worker], self.taken_env_steps[worker] = until, env_steps
            self._note(worker, oldest, until)
            return oldest, until
        return first, first

    def _note(self, worker: int, first: int, until: int) -> None:
        """Keep account of rows just taken in."""
        if self._consumption is None:
            return
        place = self.places(worker, np.arange(first, until))
        ended = self._flat["terminated"][place] | self._flat["truncated"][place]
        valid = self._flat["valid"][place]
        lanes = (until - first, self.num_lanes)
        self._consumption.take_in(worker, place, ended.reshape(lanes), valid.reshape(lanes))
        self._probe.raise_gauge("largest_reward", float(np.abs(self._flat["reward"][place]).max()))

    def consume(self, batch: Batch) -> Batch:
        """Keep account of a batch that is given out, and return it."""
        consumption = self._consumption
        if consumption is not None and consumption.draw(batch.place, batch.weights_version):
            probability = self._probability[batch.place]
            self._probe.gauge("action_entropy", -float(np.log(probability).mean()))
        return batch

    def places(self, worker: int, rows: IntArray) -> IntArray:
        """Return the place of every lane of some rows of a worker, ``[K * L]``."""
        slots = worker * self.num_rows + rows % self.num_rows
        return (slots[:, None] * self.num_lanes + np.arange(self.num_lanes)).reshape(-1)

    def row_of(self, place: IntArray) -> IntArray:
        """Return the number of the newest taken-in row at each place, ``[B]``."""
        worker, slot = np.divmod(place // self.num_lanes, self.num_rows)
        newest = np.asarray(self.taken_rows)[worker] - 1
        row: IntArray = newest - (newest - slot) % self.num_rows
        return row

    def is_valid(self, place: IntArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Return whether each place holds a transition, ``[B]``."""
        return self._flat["valid"][place]

    def is_intact(
        self, place: IntArray, row: IntArray
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Return whether the row sampled at each place cannot have been touched since, ``[B]``."""
        memory_fence()  # the copy is finished before the question is asked
        writing = np.array([self._buffer.writing(w) for w in range(self._buffer.num_workers)])
        return row >= writing[place // (self.num_lanes * self.num_rows)] - self.num_rows

    def gather(self, place: IntArray, row: IntArray, importance_weight: FloatArray) -> Batch:
        """Copy the transitions that begin at each place, n-step windows included."""
        window = self._following(place[:, None], self._offsets)
        n_step_return, discount, horizon = n_step_window(
            self._flat["reward"][window],
            self._flat["terminated"][window],
            self._flat["truncated"][window],
            self._gamma,
        )
        bootstrap = self._following(place, horizon)
        return Batch(
            observation=self._flat["observation"][place],
            action=self._flat["action"][place].astype(np.int64),
            n_step_return=n_step_return,
            bootstrap_discount=discount,
            bootstrap_observation=self._flat["observation"][bootstrap],
            importance_weight=importance_weight,
            weights_version=self._version[place // self.num_lanes],
            place=place,
            row=row,
        )

    def _following(self, place: IntArray, offset: IntArray) -> IntArray:
        """Return the place some rows later in the same lane of the same worker's ring."""
        segment = self.num_rows * self.num_lanes
        base = place - place % segment
        return base + (place - base + offset * self.num_lanes) % segment


class UniformReplay:
    """Every stored transition is as likely as any other (Mnih et al. 2015)."""

    def __init__(
        self,
        config: Config,
        buffer: ExperienceBuffer,
        generator: np.random.Generator,
        probe: Probe,
    ) -> None:
        self._reader = _Reader(config, buffer, probe)
        self._buffer = buffer
        self._generator = generator
        self._batch_size = config.batch_size
        self._probe = probe
        self._weight = np.ones(config.batch_size, dtype=np.float32)
        self.num_transitions = 0

    def state(self) -> State:
        """Return what a resumed run needs; the rows themselves are the buffer's."""
        return {"reader": self._reader.state(), "num_transitions": self.num_transitions}

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self._reader.load_state(state["reader"])
        self.num_transitions = state["num_transitions"] if state["reader"]["with_rows"] else 0

    def take_in(self) -> None:
        """Look for newly published rows."""
        reader = self._reader
        for worker in range(self._buffer.num_workers):
            reader.new_rows(worker)
        rows = [until - reader.first_safe_row(w) for w, until in enumerate(reader.taken_rows)]
        self.num_transitions = max(0, sum(rows)) * reader.num_lanes

    def sample(self) -> Batch:
        """Draw a batch, uniformly and with replacement.

        Raises:
            RuntimeError: nothing was published, or no whole batch could be copied.
        """
        reader = self._reader
        for _ in range(MAX_DRAWS):
            place, row = self._draw()
            if len(place) == self._batch_size:
                batch = reader.gather(place, row, self._weight)
                if reader.is_intact(place, row).all():
                    return reader.consume(batch)
            self._probe.count("samples_retried")
            self.take_in()
        raise RuntimeError(f"no intact batch in {MAX_DRAWS} draws")

    def _draw(self) -> tuple[IntArray, IntArray]:
        """Return places and rows of transitions; a row that is none is drawn anew.

        They are too few when there are no rows: none was published yet, or the worker has come round
        since they were taken in.
        """
        reader, generator = self._reader, self._generator
        first = np.array([reader.first_safe_row(w) for w in range(self._buffer.num_workers)])
        number = np.maximum(0, np.array(reader.taken_rows) - first)
        ends = np.cumsum(number)
        found_place: list[IntArray] = []
        found_row: list[IntArray] = []
        missing = self._batch_size
        for _ in range(MAX_DRAWS if ends[-1] else 0):
            drawn = generator.integers(ends[-1] * reader.num_lanes, size=missing)
            position, lane = np.divmod(drawn, reader.num_lanes)
            worker = np.searchsorted(ends, position, side="right")
            row = first[worker] + position - (ends - number)[worker]
            slot = worker * reader.num_rows + row % reader.num_rows
            place = slot * reader.num_lanes + lane
            valid = reader.is_valid(place)
            found_place.append(place[valid])
            found_row.append(row[valid])
            missing -= int(valid.sum())
            if missing == 0:
                break
        nothing = np.empty(0, dtype=np.int64)
        return np.concatenate([nothing, *found_place]), np.concatenate([nothing, *found_row])

    def update_priorities(self, batch: Batch, td_error: FloatArray) -> None:
        """Do nothing: uniform replay has no priorities."""


class PrioritizedReplay:
    """Proportional prioritization (Schaul et al. 2016) over the shared experience buffer.

    The sum tree belongs to the learner alone. A worker only writes the first priority into its row;
    the learner copies it into the tree when it takes the row in.
    """

    def __init__(
        self,
        config: Config,
        buffer: ExperienceBuffer,
        generator: np.random.Generator,
        probe: Probe,
    ) -> None:
        from common.sum_tree import SumTree  # imports numba: for the learner's process only

        self._reader = _Reader(config, buffer, probe)
        self._buffer = buffer
        self._generator = generator
        self._batch_size = config.batch_size
        self._priority_exponent = config.priority_exponent
        self._importance_exponent = config.importance_exponent
        self._probe = probe
        self._tree = SumTree(self._reader.num_places)
        self._tree.compile()
        self._first_kept = [0] * buffer.num_workers
        self.num_transitions = 0

    def state(self) -> State:
        """Return what a resumed run needs: above all, the priority of every row that is saved."""
        state: State = {
            "reader": self._reader.state(),
            "num_transitions": self.num_transitions,
            "first_kept": self._first_kept,
            "total": self._tree.total,
        }
        if state["reader"]["with_rows"]:
            state["priorities"] = self._tree.get(np.arange(self._reader.num_places))
        return state

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self._reader.load_state(state["reader"])
        if "priorities" not in state:
            self._first_kept = list(self._reader.taken_rows)
            return
        self._first_kept = state["first_kept"]
        self.num_transitions = state["num_transitions"]
        # Every node is the sum of its two children, whatever was set when: the same tree, to the bit.
        self._tree.set(np.arange(self._reader.num_places), state["priorities"])

    def take_in(self) -> None:
        """Enter newly published rows with their first priority; remove those about to be reused."""
        for worker in range(self._buffer.num_workers):
            first, until = self._reader.new_rows(worker)
            # Retired after looking and before entering: the rows that held the new rows' places
            # before are all removed here, and no later removal can hit a new row.
            self._retire(worker)
            self._enter(worker, max(first, self._first_kept[worker]), until)

    def _retire(self, worker: int) -> None:
        first, until = self._first_kept[worker], self._reader.first_safe_row(worker)
        if until <= first:
            return
        first = max(first, until - self._reader.num_rows)
        places = self._reader.places(worker, np.arange(first, until))
        self.num_transitions -= int(np.count_nonzero(self._tree.get(places)))
        self._tree.set(places, np.zeros(len(places)))
        self._first_kept[worker] = until

    def _enter(self, worker: int, first: int, until: int) -> None:
        if until <= first:
            return
        places = self._reader.places(worker, np.arange(first, until))
        priority = self._reader.priority[places].astype(np.float64) + PRIORITY_FLOOR
        leaf = np.where(self._reader.is_valid(places), priority**self._priority_exponent, 0.0)
        self._tree.set(places, leaf)
        self.num_transitions += int(np.count_nonzero(leaf))

    def sample(self) -> Batch:
        """Draw a batch with probability p_i^a / sum p^a, weighted by (N P(i))^-b / max.

        The largest weight of the batch is 1 (Schaul et al. 2016, section 3.4).

        Raises:
            RuntimeError: nothing was published, or no whole batch could be copied.
        """
        for _ in range(MAX_DRAWS):
            if self.num_transitions == 0:  # a worker may have come round while this process slept
                self.take_in()
                continue
            place, probability = self._tree.sample(self._batch_size, self._generator)
            row = self._reader.row_of(place)
            weight = (self.num_transitions * probability) ** -self._importance_exponent
            weight /= weight.max()
            batch = self._reader.gather(place, row, weight.astype(np.float32))
            if self._reader.is_intact(place, row).all():
                return self._reader.consume(batch)
            self._probe.count("samples_retried")
            self.take_in()
        if self.num_transitions == 0:
            raise RuntimeError("there is no transition to draw")
        raise RuntimeError(f"no intact batch in {MAX_DRAWS} draws")

    def update_priorities(self, batch: Batch, td_error: FloatArray) -> None:
        """Set the priorities of a batch to its new |TD error|.

        A priority for a row that was replaced meanwhile belongs to nothing: it is dropped and counted.
        """
        kept = np.asarray(self._first_kept)
        worker = batch.place // (self._reader.num_lanes * self._reader.num_rows)
        alive = batch.row >= kept[worker]
        alive &= self._reader.row_of(batch.place) == batch.row
        self._probe.count("priorities_dropped", len(alive) - int(alive.sum()))
        priority = np.abs(td_error[alive]).astype(np.float64) + PRIORITY_FLOOR
        self._tree.set(batch.place[alive], priority**self._priority_exponent)
