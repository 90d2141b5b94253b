"""The audit against planted losses in one process; test_audit_processes.py has the real races."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.audit import (
    COUNT_MODULUS,
    FINISHED,
    MAX_WEIGHT,
    REPORT_FIELDS,
    STARTED,
    TAG,
    VALUE_STEP,
    AuditReader,
    MasterWriter,
    SharedMaster,
    join,
    round_to_lattice,
    split,
    stamps_lost_and_duplicated,
)

LIMIT = int(MAX_WEIGHT / VALUE_STEP)

lattice_steps = st.integers(-LIMIT, LIMIT)
counts = st.integers(0, COUNT_MODULUS - 1)


def make_master(num_elements: int = 5, num_workers: int = 1, **choices: Any) -> SharedMaster:
    initial = np.linspace(-1, 1, num_elements).astype(np.float32)
    return SharedMaster(initial, num_workers, **choices)


def one_update(writer: MasterWriter, change: float = 0.001, size: int = 5) -> None:
    vector = np.empty(size, dtype=np.float32)
    writer.read_into(vector)
    vector += np.float32(change)
    writer.apply(vector)


# --- One number ---


@given(steps=lattice_steps, count=counts)
def test_split_inverts_join_over_the_whole_range(steps: int, count: int) -> None:
    value = np.array([steps * VALUE_STEP])
    got_value, got_count = split(join(value, np.array([count])))
    assert got_value[0] == value[0]
    assert got_count[0] == count


@pytest.mark.parametrize("steps", [0, 1, -1, LIMIT, -LIMIT, LIMIT - 1, 1 - LIMIT])
@pytest.mark.parametrize("count", [0, 1, COUNT_MODULUS - 1])
def test_split_inverts_join_at_the_corners(steps: int, count: int) -> None:
    joined = join(np.array([steps * VALUE_STEP]), np.array([count]))
    assert split(joined)[0][0] == steps * VALUE_STEP
    assert split(joined)[1][0] == count


@given(st.lists(st.floats(-16, 16, width=32), min_size=1, max_size=20))
def test_rounding_float32_weights_to_the_lattice_is_exact_and_near(weights: list[float]) -> None:
    vector = np.array(weights, dtype=np.float32)
    rounded = round_to_lattice(vector)
    assert rounded.dtype == np.float32
    assert np.array_equal(np.rint(rounded.astype(float) / VALUE_STEP) * VALUE_STEP, rounded)
    assert np.abs(rounded.astype(float) - vector.astype(float)).max() <= VALUE_STEP / 2


@given(st.lists(st.integers(-(2**20), 2**20), min_size=2, max_size=12), st.randoms())
def test_the_order_of_additions_never_matters(steps: list[int], random: Any) -> None:
    deltas = [step * VALUE_STEP + TAG for step in steps]
    in_order = sum(deltas, 0.5)
    random.shuffle(deltas)
    assert sum(deltas, 0.5) == in_order
    value, count = split(np.array([in_order]))
    assert value[0] == 0.5 + sum(steps) * VALUE_STEP
    assert count[0] == len(steps)


# --- A simulated scheduler ---


class _Simulated:
    """A worker whose every load and store of every element is one event of a schedule."""

    def __init__(self, master: SharedMaster, worker: int, num_updates: int) -> None:
        self.master, self.worker, self.left = master, worker, num_updates
        self.writer = MasterWriter(master, worker)
        self.generator = np.random.default_rng(worker)
        self.loaded: dict[int, tuple[float, frozenset[int]]] = {}
        self.to_store: list[int] = []
        self.deltas = np.zeros(master.num_parameters)

    def events(self) -> list[tuple[str, int]]:
        if not self.to_store:
            return [("begin", -1)] if self.left else []
        return [("store" if e in self.loaded else "load", e) for e in self.to_store]

    def do(self, kind: str, element: int, histories: list[frozenset[int]], number: int) -> None:
        master = self.master
        if kind == "begin":
            vector = np.empty(master.num_parameters, dtype=np.float32)
            self.writer.read_into(vector)
            vector += self.generator.normal(size=len(vector)).astype(np.float32) * np.float32(0.01)
            self.writer.make_delta(vector)
            self.deltas += split(self.writer.delta[: master.num_parameters])[0]
            master.words[self.worker, STARTED] += 1
            self.number, self.left = number, self.left - 1
            self.to_store = list(range(len(master.weights)))
        elif kind == "load":
            self.loaded[element] = (float(master.weights[element]), histories[element])
        else:
            weight, history = self.loaded.pop(element)
            master.weights[element] = weight + self.writer.delta[element]
            histories[element] = history | {self.number}
            self.to_store.remove(element)
            if not self.to_store:
                master.words[self.worker, FINISHED] += 1


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_any_schedule_loses_exactly_what_it_plants(
    data: st.DataObject, num_workers: int, num_updates: int
) -> None:
    master = make_master(3, num_workers)
    workers = [_Simulated(master, w, num_updates) for w in range(num_workers)]
    histories: list[frozenset[int]] = [frozenset()] * len(master.weights)
    number = itertools.count()
    while enabled := [(w, *event) for w in workers for event in w.events()]:
        worker, kind, element = enabled[data.draw(st.integers(0, len(enabled) - 1))]
        worker.do(kind, element, histories, next(number))
    issued = num_workers * num_updates
    planted = [issued - len(histories[element]) for element in range(3)]
    report = AuditReader(master).report()
    assert report["auditable"] and report["reason"] is None
    assert report["writes_lost"] == sum(planted)
    assert report["worst_element_lost"] == max(planted)
    assert report["lost_whole_at_most"] == min(planted)
    assert report["elements_affected"] == sum(lost > 0 for lost in planted)
    value, count = split(master.weights[:3])
    assert (issued - count).tolist() == planted
    assert np.array_equal(np.rint(value / VALUE_STEP) * VALUE_STEP, value)
    # The value-sum check, beside the counters: with random deltas no sum of lost ones is zero.
    change = value - round_to_lattice(np.linspace(-1, 1, 3).astype(np.float32).astype(float))
    asked = sum(w.deltas for w in workers)
    assert ((change != asked) == (np.array(planted) > 0)).all()


# --- One process ---


def test_a_report_has_the_fields_of_the_summary_and_one_writer_loses_nothing() -> None:
    master = make_master()
    writer = MasterWriter(master)
    for _ in range(100):
        one_update(writer)
    report = AuditReader(master).report()
    assert tuple(report) == REPORT_FIELDS
    assert report["writes_issued"] == 500 and report["writes_lost"] == 0
    assert report["survivors_by_worker"] == [100]
    assert report["torn_reads_at_most"] == report["duplicates"] == report["writes_uncertain"] == 0


@pytest.mark.parametrize(
    "num_steps", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)], ids=["short", "million"]
)
def test_deltas_below_the_lattice_are_not_lost_and_not_biased(num_steps: int) -> None:
    master = SharedMaster(np.zeros(4, dtype=np.float32))
    writer = MasterWriter(master)
    vector = np.empty(4, dtype=np.float32)
    step = np.array([3e-10, -3e-10, 1e-9, 0.0], dtype=np.float32)
    asked = np.zeros(4)
    for _ in range(num_steps):
        writer.read_into(vector)
        before = vector.astype(float)
        vector += step
        asked += vector - before
        writer.apply(vector)
    value, count = split(master.weights[:4])
    assert (count == num_steps % COUNT_MODULUS).all()
    assert np.abs(value - asked).max() <= VALUE_STEP / 2
    # All but a rounding error of the float32 step itself arrives.
    assert value[0] == pytest.approx(num_steps * 3e-10, rel=0.05, abs=VALUE_STEP)
    assert np.abs(step).max() < VALUE_STEP / 2, "each step alone would round to zero"


def test_counts_are_followed_through_their_rounds_for_a_billion_updates() -> None:
    master = make_master(3, 2)
    reader = AuditReader(master)
    initial, at_once = split(master.weights)[0], 2**20
    issued = lost = 0
    for number in range(500):  # a billion updates of two workers; now and then some are lost
        master.words[:, [STARTED, FINISHED]] += at_once
        master.weights[:3] += 2 * at_once * TAG
        master.weights[3:] += at_once * TAG
        issued += 2 * at_once
        if number % 100 == 7:
            master.weights[1] -= 5 * TAG
            master.weights[:] -= np.array([3, 3, 3, 0, 3]) * TAG  # three of worker 1, lost whole
            lost += 5 + 3 * 3
        reader.sample_if_due()
    report = reader.report()
    assert report["auditable"], report["reason"]
    assert report["updates_issued"] == issued > 10**9 > 59 * COUNT_MODULUS
    assert report["writes_lost"] == lost == 5 * 14 and report["worst_element_lost"] == 5 * 8
    assert report["lost_whole_at_most"] == 5 * 3
    assert report["survivors_by_worker"] == [issued // 2, issued // 2 - 15]
    # Each round of the count has carried one step of 2^-24 into the value: some 63 steps in all.
    assert (split(master.weights)[0] - initial == issued // COUNT_MODULUS * VALUE_STEP)[:3].all()


def test_a_reader_that_looks_too_seldom_says_so() -> None:
    master = make_master()
    master.words[0, [STARTED, FINISHED]] += 2**23
    report = AuditReader(master).report()
    assert not report["auditable"] and "between two looks" in report["reason"]
    assert report["writes_lost"] is None


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("worst", [16.5, -17.0, np.nan, np.inf])
def test_beyond_the_range_the_audit_is_void_and_training_goes_on(worst: float) -> None:
    master = make_master()
    writer = MasterWriter(master)
    one_update(writer)
    vector = np.empty(5, dtype=np.float32)
    writer.read_into(vector)
    vector[2] = worst
    writer.apply(vector)
    writer.read_into(vector)
    assert vector[2] == worst or np.isnan(vector[2])
    report = AuditReader(master).report()
    assert not report["auditable"] and "left +-16 at update 2" in report["reason"]
    assert report["writes_lost"] is None and report["updates_issued"] == 2


def test_averaged_weights_give_a_reason_and_no_number() -> None:
    master = make_master(200)
    writer = MasterWriter(master)
    generator = np.random.default_rng(0)
    vector = np.empty(200, dtype=np.float32)
    for _ in range(4):
        writer.read_into(vector)
        before = master.weights.copy()
        vector += generator.normal(size=200).astype(np.float32)
        writer.apply(vector)
    master.weights[:] = (master.weights + before) / 2
    report = AuditReader(master).report()
    assert not report["auditable"] and "something" in report["reason"]
    assert report["writes_lost"] is None and report["lost_fraction"] is None


def test_an_update_that_was_killed_half_way_makes_an_interval() -> None:
    master = make_master(5, 2)
    for worker in range(2):
        one_update(MasterWriter(master, worker))
    master.words[1, STARTED] += 1
    master.weights[:2] += TAG  # the killed update reached two of five elements
    report = AuditReader(master).report()
    assert report["auditable"] and report["writes_uncertain"] == 5
    assert report["writes_lost"] == 0 and report["writes_issued"] == 10


def test_a_read_is_possibly_torn_if_another_worker_was_writing() -> None:
    master = make_master(5, 2)
    first, second = MasterWriter(master, 0), MasterWriter(master, 1)
    vector = np.empty(5, dtype=np.float32)
    second.read_into(vector)
    vector += np.float32(0.5)
    first.read_into(np.empty(5, dtype=np.float32))
    assert AuditReader(master).report()["torn_reads_at_most"] == 0
    mixed = np.empty(5, dtype=np.float32)

    def read_in_the_middle() -> None:
        master.weights[:2] += 0.5  # the other's write has reached two elements
        first.read_into(mixed)

    second.apply_in_steps(vector, read_in_the_middle)
    assert (mixed[:2] != master.vector()[:2] - 1).any() and mixed[3] != master.vector()[3]
    assert AuditReader(master).report()["torn_reads_at_most"] == 1


def test_without_the_audit_the_same_path_counts_nothing() -> None:
    master = make_master(audit=False)
    writer = MasterWriter(master)
    before = master.vector()
    one_update(writer, 2**-10)
    assert np.allclose(master.vector() - before, 2**-10, rtol=1e-4)
    report = AuditReader(master).report()
    assert report["enabled"] is False and report["auditable"] is False
    assert report["writes_lost"] is None and "switched off" in report["reason"]


def test_stamps_tell_lost_gradients_from_duplicated_ones() -> None:
    # Worker 0's gradient 1 was overwritten in the buffer, worker 1's gradient 0 was applied twice.
    applied = [(0, 0), (1, 0), (1, 0), (0, 2), (1, 1)]
    assert stamps_lost_and_duplicated([3, 2], applied) == (1, 1)
    assert stamps_lost_and_duplicated([1, 1], [(0, 0), (1, 0)]) == (0, 0)
