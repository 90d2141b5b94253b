"""What a learner consumes: how old it is, whose it is, and from episodes of which length.

Belongs to the learner's process, next to its replay. Nothing is added to the shared rows for it: all of
it follows from when rows were taken in, where episodes end, and which rows were drawn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from common.probe import Moment, Probe
from common.state_files import State
from common.types import BoolArray, IntArray

if TYPE_CHECKING:
    from common.trajectories import Trajectory

# Every draw is counted. How old a batch is costs more to say, so that is said of one in so many.
LOOK_EVERY_BATCHES = 16
CLOCK_SIZE = 1 << 14
NS = Moment._fields.index("ns")


class UpdateClock:
    """Remembers when the weights were at which update, to say how long ago a version was.

    At most ``CLOCK_SIZE`` moments are kept, evenly over the whole run: when they are full, every other
    one is forgotten.
    """

    def __init__(self) -> None:
        self._moments = np.zeros((CLOCK_SIZE, len(Moment._fields)), dtype=np.int64)
        self._number = 0
        self._every = 1
        self._skipped = 0

    def note(self, moment: Moment) -> None:
        """Take in a moment, later than those before it."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        if self._number == CLOCK_SIZE:
            self._moments[: CLOCK_SIZE // 2] = self._moments[::2].copy()
            self._number, self._every = CLOCK_SIZE // 2, 2 * self._every
        self._moments[self._number] = moment
        self._number += 1

    def state(self) -> State:
        """Return the moments, with the time now: the time until a resumed run goes on is no age."""
        return {
            "moments": self._moments[: self._number],
            "every": self._every,
            "skipped": self._skipped,
            "now_ns": time.perf_counter_ns(),
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken, as if no time had passed since."""
        self._number = len(state["moments"])
        self._every, self._skipped = state["every"], state["skipped"]
        self._moments[: self._number] = state["moments"]
        self._moments[:, NS] += time.perf_counter_ns() - state["now_ns"]

    def when(self, updates: IntArray) -> IntArray:
        """Return the moments ``[B, 3]`` at which so many updates ``[B]`` had been done."""
        known = self._moments[: self._number]
        at = np.searchsorted(known[:, 0], updates)
        moments: IntArray = known[np.minimum(at, self._number - 1)]
        return moments


def record_policy_lag(probe: Probe, clock: UpdateClock, versions: IntArray) -> None:
    """Record how far the weights have moved since those that chose each transition's action.

    Args:
        probe: of the learner.
        clock: of the learner, up to date.
        versions: ``[B]`` weights version that acted, in updates.
    """
    now = probe.moment()
    probe.record_values("policy_lag", now.updates - versions)
    since = clock.when(versions)
    probe.record_values("policy_lag_env_steps", now.env_steps - since[:, 1])
    probe.record_values("policy_lag_microseconds", (now.ns - since[:, 2]) // 1000)


def consume_trajectory(probe: Probe, trajectory: Trajectory, worker: int, times: int = 1) -> None:
    """Keep account of a trajectory that is learned from and forgotten.

    Args:
        probe: of the learner.
        trajectory: the rows.
        worker: who collected them.
        times: how often each transition is learned from.
    """
    number = trajectory.num_env_steps
    probe.count("stored", number)
    probe.count_consumed(worker, times * number)
    probe.raise_gauge("largest_reward", float(np.abs(trajectory.reward).max()))
    if number:
        chosen = trajectory.action_probability[trajectory.valid]
        probe.gauge("action_entropy", -float(np.log(chosen).mean()))


class _Lanes(NamedTuple):
    """Where each lane of one worker stands, ``[L]`` each."""

    episode: IntArray
    env_steps: IntArray
    env_steps_before_episode: IntArray


class Consumption:
    """Counts how often every stored transition is drawn, and adds up by worker and by episode.

    Args:
        num_workers: workers whose rows are drawn.
        num_rows: rows of a worker's ring.
        num_lanes: lanes of a row.
        first_worker: number of the first of the workers in the whole run.
        probe: where it is reported.
    """

    def __init__(
        self, num_workers: int, num_rows: int, num_lanes: int, first_worker: int, probe: Probe
    ) -> None:
        self._num_rows, self._num_lanes, self._first_worker = num_rows, num_lanes, first_worker
        self._probe = probe
        places = num_workers * num_rows * num_lanes
        # An episode takes two rows of its lane at the least, so the episodes of the rows that still
        # exist fit; a slot is used again only when all rows of its last episode are gone.
        self._slots_per_lane = num_rows // 2 + 2
        slots = num_workers * num_lanes * self._slots_per_lane
        self._slot_of_place = np.zeros(places, dtype=np.int32)
        self._draws_of_place = np.zeros(places, dtype=np.int64)
        self._length_of_slot = np.zeros(slots, dtype=np.int64)
        self._draws_of_slot = np.zeros(slots, dtype=np.int64)  # an episode may never end
        self._drawn_by_worker = np.zeros(num_workers, dtype=np.int64)
        self._taken_in = np.zeros((num_workers * num_rows, len(Moment._fields)), dtype=np.int64)
        self._lanes = [_Lanes(*np.zeros((3, num_lanes), dtype=np.int64)) for _ in range(num_workers)]
        # numpy adds at places ten times as fast when what is added has the counts' own type.
        self._ones = np.ones(0, dtype=np.int64)
        self._clock = UpdateClock()
        self._num_batches = 0
        probe.at_end(self.flush)

    def state(self, with_rows: bool) -> State:
        """Return what was counted so far.

        Args:
            with_rows: also what is counted per row; of no use where the rows themselves are not saved.
        """
        state: State = {
            "draws_of_slot": self._draws_of_slot,
            "length_of_slot": self._length_of_slot,
            "drawn_by_worker": self._drawn_by_worker,
            "lanes": [lanes._asdict() for lanes in self._lanes],
            "clock": self._clock.state(),
            "num_batches": self._num_batches,
            "now_ns": time.perf_counter_ns(),
        }
        if with_rows:
            state["slot_of_place"] = self._slot_of_place
            state["draws_of_place"] = self._draws_of_place
            state["taken_in"] = self._taken_in
        return state

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken, as if no time had passed since."""
        np.copyto(self._draws_of_slot, state["draws_of_slot"])
        np.copyto(self._length_of_slot, state["length_of_slot"])
        np.copyto(self._drawn_by_worker, state["drawn_by_worker"])
        self._lanes = [_Lanes(**lanes) for lanes in state["lanes"]]
        self._clock.load_state(state["clock"])
        self._num_batches = state["num_batches"]
        if "taken_in" in state:
            np.copyto(self._slot_of_place, state["slot_of_place"])
            np.copyto(self._draws_of_place, state["draws_of_place"])
            np.copyto(self._taken_in, state["taken_in"])
            self._taken_in[:, NS] += time.perf_counter_ns() - state["now_ns"]

    def take_in(self, worker: int, place: IntArray, ended: BoolArray, valid: BoolArray) -> None:
        """Note that rows arrived.

        Args:
            worker: whose.
            place: ``[K * L]`` where they lie.
            ended: ``[K, L]`` whether an episode ended with the row.
            valid: ``[K, L]`` whether it is a transition.
        """
        self._taken_in[place[:: self._num_lanes] // self._num_lanes] = self._probe.moment()
        lanes = self._lanes[worker]
        ends_before: IntArray = np.cumsum(ended, axis=0) - ended
        episode = lanes.episode + ends_before
        first_slot = (worker * self._num_lanes + np.arange(self._num_lanes)) * self._slots_per_lane
        self._slot_of_place[place] = (first_slot + episode % self._slots_per_lane).reshape(-1)
        self._draws_of_place[place] = 0
        env_steps = lanes.env_steps + np.cumsum(valid, axis=0)
        for row, lane in np.argwhere(ended):
            self._end_episode(lanes, int(lane), int(first_slot[lane]), int(env_steps[row, lane]))
        lanes.env_steps[:] = env_steps[-1]

    def _end_episode(self, lanes: _Lanes, lane: int, first_slot: int, env_steps: int) -> None:
        slot = first_slot + int(lanes.episode[lane]) % self._slots_per_lane
        self._length_of_slot[slot] = env_steps - lanes.env_steps_before_episode[lane]
        lanes.env_steps_before_episode[lane] = env_steps
        lanes.episode[lane] += 1
        following = first_slot + int(lanes.episode[lane]) % self._slots_per_lane
        self._settle(following, int(self._length_of_slot[following]))
        self._length_of_slot[following] = 0

    def _settle(self, slot: int, length: int) -> None:
        """Move what is known of an episode to the shared counts by episode length."""
        if length > 0:
            self._probe.count_episode_length("taken_in", length, length)
            self._probe.count_episode_length("consumed", length, int(self._draws_of_slot[slot]))
        worker = slot // (self._num_lanes * self._slots_per_lane)
        self._drawn_by_worker[worker] += self._draws_of_slot[slot]
        self._draws_of_slot[slot] = 0

    def draw(self, place: IntArray, version: IntArray) -> bool:
        """Count a batch ``[B]`` that was drawn from these places, chosen by these weights versions.

        Returns:
            Whether this is one of the batches of which more is recorded.
        """
        if len(self._ones) != len(place):
            self._ones = np.ones(len(place), dtype=np.int64)
        np.add.at(self._draws_of_place, place, self._ones)
        np.add.at(self._draws_of_slot, self._slot_of_place[place], self._ones)
        moment = self._probe.moment()
        self._clock.note(moment)
        is_looked_at = self._num_batches % LOOK_EVERY_BATCHES == 0
        if is_looked_at:
            self._record_ages(moment, place, version)
            self._probe.raise_gauge("most_sampled", float(self._draws_of_place.max()))
        self._num_batches += 1
        return is_looked_at

    def _record_ages(self, now: Moment, place: IntArray, version: IntArray) -> None:
        record_policy_lag(self._probe, self._clock, version)
        age = np.array(now) - self._taken_in[place // self._num_lanes]
        self._probe.record_values("sample_age_updates", age[:, 0])
        self._probe.record_values("sample_age", age[:, 1])
        self._probe.record_values("sample_age_microseconds", age[:, 2] // 1000)

    def flush(self) -> None:
        """Report the shares: all episodes, those that had not ended by their length so far."""
        self._probe.raise_gauge("most_sampled", float(self._draws_of_place.max()))
        for worker, lanes in enumerate(self._lanes):
            for lane in range(self._num_lanes):
                first = (worker * self._num_lanes + lane) * self._slots_per_lane
                current = first + int(lanes.episode[lane]) % self._slots_per_lane
                so_far = lanes.env_steps[lane] - lanes.env_steps_before_episode[lane]
                self._length_of_slot[current] = so_far
        kept = np.flatnonzero(self._length_of_slot)
        length, draws = self._length_of_slot[kept], self._draws_of_slot[kept]
        self._probe.count_episode_lengths("taken_in", length, length)
        self._probe.count_episode_lengths("consumed", length, draws)
        drawn = self._drawn_by_worker + self._draws_of_slot.reshape(len(self._lanes), -1).sum(axis=1)
        for worker, number in enumerate(drawn):
            self._probe.count_consumed(self._first_worker + worker, int(number))
