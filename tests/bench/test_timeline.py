"""The timeline of processes: what is kept, which window is cut, and where updates met."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import timeline as module
from bench.timeline import Update, common_window, joined, make_timeline, meetings, write_timeline
from common import probe as probe_module
from common.audit import AuditReader, MasterWriter, SharedMaster
from common.probe import Probe
from common.telemetry import ACTIVITIES, SPANS_KEPT, Telemetry
from common.types import RoleReport, RunResult
from strategies import a3c, hogwild

MS = 1_000_000


class Clock:
    """Stands in for ``perf_counter_ns``: moves only when told to."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def make_probe(shared: Telemetry, role: int = 0) -> Probe:
    """Return a probe of a process that has started."""
    probe = Probe(shared, role, hogwild.Config())
    probe.set("started_ns", 1)
    return probe


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(probe_module.time, "perf_counter_ns", clock)
    return clock


def ring(*spans: tuple[float, float, str]) -> Any:
    """Spans in milliseconds, as a process's ring gives them."""
    rows = [[round(a * MS), round(b * MS), ACTIVITIES.index(name)] for a, b, name in spans]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def result_of(*rings: Any) -> RunResult:
    fields: dict[str, Any] = dict.fromkeys(RunResult.__dataclass_fields__)
    fields["roles"] = [RoleReport("actor_learner", i, pid=100 + i) for i in range(len(rings))]
    return RunResult(**{**fields, "spans": list(rings)})


# --- The ring that each process keeps ---


def test_a_process_remembers_when_each_activity_began_and_ended(clock: Clock) -> None:
    shared = Telemetry(2)
    probe = make_probe(shared, 1)
    expected = []
    for i, name in enumerate(("act", "env_step", "write", "act")):
        began, clock.now = clock.now, clock.now + 10 * (i + 1)
        probe.spent(name)
        expected.append([began, clock.now, ACTIVITIES.index(name)])
    assert shared.spans(1).tolist() == expected
    starting = Probe(shared, 0, hogwild.Config())
    starting.spent("act")  # start-up is no activity
    assert shared.spans(0).tolist() == []


def test_what_interrupts_an_activity_lies_inside_it(clock: Clock) -> None:
    shared = Telemetry(1)
    probe = make_probe(shared)
    began = clock.now
    clock.now = wait_began = began + 5
    clock.now = wait_ended = began + 12
    probe.waited_since(wait_began)
    clock.now = ended = began + 20
    probe.spent("update")
    wait, update = shared.spans(0).tolist()
    assert wait == [wait_began, wait_ended, ACTIVITIES.index("lock")]
    assert update == [began, ended, ACTIVITIES.index("update")]
    # What is booked, in contrast, counts no moment twice.
    assert shared.word(0, "lock") == 7
    assert shared.word(0, "update") == 13


def test_the_ring_keeps_the_last_ones_and_leaves_out_half_an_entry(clock: Clock) -> None:
    shared = Telemetry(1)
    probe = make_probe(shared)
    ends = []
    for _ in range(SPANS_KEPT + 100):
        clock.now += 3
        probe.spent("act")
        ends.append(clock.now)
    spans = shared.spans(0)
    assert spans[:, 1].tolist() == ends[-SPANS_KEPT:]
    assert (spans[:, 1] - spans[:, 0] == 3).all()
    shared.arrays["spans"][0, 7, 0] = clock.now + 1  # begun, the end still that of an older entry
    assert len(shared.spans(0)) == SPANS_KEPT - 1


# --- The window ---


def test_the_window_is_where_everybody_was_at_work() -> None:
    early = ring(*[(t, t + 1, "act") for t in range(10, 80)])
    late = ring(*[(t, t + 2, "update") for t in range(40, 120, 2)])
    assert common_window([early, late]) == (40 * MS, 80 * MS)
    assert common_window([late]) == (40 * MS, 120 * MS)
    assert common_window([ring(), late]) == (40 * MS, 120 * MS)
    assert common_window([ring(), ring()]) is None


@pytest.mark.parametrize("hold", ["evaluation", "checkpoint"])
def test_a_hold_at_the_end_is_no_window(hold: str) -> None:
    worker = ring(*[(t, t + 1, "act") for t in range(10, 60)], (60, 900, hold))
    begin, end = common_window([worker, worker]) or (0, 0)
    assert (begin, end) == (10 * MS, 60 * MS)
    assert common_window([ring((1, 2, hold))]) is None


def test_long_and_crowded_windows_are_cut_to_their_end() -> None:
    slow = ring(*[(t, t + 10, "update") for t in range(0, 1000, 10)])
    assert common_window([slow]) == (900 * MS, 1000 * MS)
    crowded = ring(*[(1 + t / 100, 1 + (t + 1) / 100, "act") for t in range(module.MAX_SPANS + 500)])
    begin, end = common_window([crowded]) or (0, 0)
    assert ((crowded[:, 0] >= begin) & (crowded[:, 1] <= end)).sum() == module.MAX_SPANS


def test_on_a_busy_machine_the_window_is_longer() -> None:
    rare = ring(*[(t, t + 150, "update") for t in range(10, 3010, 150)])
    steady = ring(*[(t, t + 1, "act") for t in range(10, 3010)])
    begin, end = common_window([rare, steady]) or (0, 0)
    assert end == 3010 * MS
    assert begin == (3010 - 1600) * MS  # the first doubling of 100 ms in which ten updates ended
    assert ((rare[:, 1] > begin) & (rare[:, 1] <= end)).sum() >= module.MIN_SPANS


def test_rings_without_a_common_moment_show_the_last_one() -> None:
    dead, alive = ring((1, 5, "act")), ring((50, 60, "update"))
    assert common_window([dead, alive]) == (50 * MS, 60 * MS)
    timeline = make_timeline("hogwild", hogwild.Config(), result_of(dead, alive)) or {}
    assert timeline["all_at_work"] is False
    assert [len(role["spans"]) for role in timeline["roles"]] == [0, 1]


def test_many_short_sleeps_are_one_wait() -> None:
    polls = [(t / 5, t / 5 + 0.199, "wait") for t in range(10, 20)]
    spans = joined(ring((1, 2, "act"), *polls, (4, 5, "act"), (5, 6, "update")))
    assert (
        spans.tolist()
        == ring((1, 2, "act"), (2, 19 / 5 + 0.199, "wait"), (4, 5, "act"), (5, 6, "update")).tolist()
    )
    nested = ring((2, 3, "wait"), (1, 4, "update"), (4, 5, "update"))
    assert joined(nested).tolist() == ring((2, 3, "wait"), (1, 5, "update")).tolist()


# --- Where updates met ---


def updates(role: int, *times: tuple[float, float, float]) -> list[Update]:
    return [Update(role, read, began, ended) for read, began, ended in times]


def where(marks: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(mark["role"], mark["at"], mark["by"], mark["by_at"]) for mark in marks]


def test_a_write_that_another_copies_over_is_marked_and_no_other() -> None:
    slow = updates(0, (1, 10, 11))
    fast = updates(1, (2, 3, 4), (5, 6, 7), (12, 13, 14))
    assert where(meetings(slow + fast, "undone")) == [(1, 3.5, 0, 10.5), (1, 6.5, 0, 10.5)]
    # Negative controls: one after the other, and a way of writing that can undo nothing.
    assert meetings(updates(0, (0, 2, 3)) + updates(1, (4, 5, 6)), "undone") == []
    assert meetings(slow + fast, None) == []


def test_what_a_third_process_still_held_comes_back() -> None:
    first, second, third = updates(0, (0, 2, 3)), updates(1, (1, 6, 7)), updates(2, (5, 8, 9))
    assert where(meetings(first + second, "undone")) == [(0, 2.5, 1, 6.5)]
    assert where(meetings(first + second + third, "undone")) == [(1, 6.5, 2, 8.5)]


def test_the_marks_are_what_the_audit_counts_on_the_same_schedule() -> None:
    """Random schedules of whole reads and writes, done to a real master with copy-back."""
    generator = random.Random(3)
    seen = set()
    for _ in range(20):
        workers = generator.randint(2, 4)
        master = SharedMaster(np.zeros(3, dtype=np.float32), workers)
        writers = [MasterWriter(master, worker, "copy-back") for worker in range(workers)]
        vectors = np.zeros((workers, 3), dtype=np.float32)
        done: list[Update] = []
        read_at: dict[int, float] = {}
        for time in range(40):
            worker = generator.randrange(workers)
            if worker in read_at:
                writers[worker].apply(vectors[worker] + 1)
                done.append(Update(worker, read_at.pop(worker), time, time + 0.5))
            else:
                writers[worker].read_into(vectors[worker])
                read_at[worker] = time
        report = AuditReader(master).report()
        assert len(meetings(done, "undone")) == report["writes_lost"] / 3
        seen.add(report["writes_lost"])
    assert len(seen) > 3


def test_additions_at_the_same_time_are_marked_once() -> None:
    one, two = updates(0, (1, 5, 8)), updates(1, (1, 7, 9), (9, 11, 12))
    assert where(meetings(one + two, "overlap")) == [(0, 7, 1, 7)]
    assert meetings(one + updates(1, (1, 8, 9)), "overlap") == []
    assert meetings(updates(0, (1, 5, 8), (1, 7, 9)), "overlap") == []  # one process cannot


def test_a_write_is_paired_with_the_read_before_it_also_if_that_is_before_the_window() -> None:
    spans = ring(
        (1, 3, "pull"), (4, 6, "pull"), (6, 9, "update"), (9, 11, "publish"), (12, 13, "publish")
    )
    assert module.updates_of(2, spans, 10 * MS) == [Update(2, 5 * MS, 9 * MS, 11 * MS)]
    assert module.updates_of(2, spans) == module.updates_of(2, spans, 10 * MS)
    assert module.updates_of(2, spans)[0].write == 10 * MS
    assert module.updates_of(2, ring()) == module.updates_of(2, spans[4:]) == []


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (hogwild.Config(), "overlap"),
        (hogwild.Config(write="copy-back"), "undone"),
        (hogwild.Config(write="copy-back", lock=True), None),
        (hogwild.Config(workers=1), None),
        (a3c.Config(), "overlap"),
    ],
)
def test_what_a_meeting_means_depends_on_how_is_written(config: Any, kind: str | None) -> None:
    undone = [(0, 1, "pull"), (1, 8, "update"), (8, 12, "publish"), (12, 13, "act")]
    other = [(1, 2, "pull"), (2, 3, "update"), (3, 9, "publish"), (9, 13, "act")]
    inner = [(1, 2, "pull"), (2, 3, "update"), (3, 4, "publish"), (4, 13, "act")]
    rings = [ring(*undone), ring(*(inner if kind == "undone" else other))]
    timeline = make_timeline("x", config, result_of(*rings)) or {}
    assert {mark["kind"] for mark in timeline["meetings"]} == ({kind} if kind else set())
    assert timeline["window_us"] == 12_000


# --- The files ---


def test_the_trace_holds_the_same_spans_in_the_format_that_perfetto_reads(tmp_path: Path) -> None:
    rings = [
        ring((1, 2, "pull"), (2, 9, "update"), (9, 10, "publish")),
        ring((2, 3, "pull"), (3, 4, "update"), (4, 5, "publish"), (5, 10, "wait")),
    ]
    write_timeline(tmp_path, "hogwild", hogwild.Config(write="copy-back"), result_of(*rings))
    timeline = json.loads((tmp_path / "timeline.json").read_text())
    trace = json.loads((tmp_path / "timeline.trace.json").read_text())
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "i"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {100: "actor_learner-0", 101: "actor_learner-1"}
    drawn = sorted((e["pid"], e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["ph"] == "X")
    kept = sorted(
        (100 + i, *span) for i, role in enumerate(timeline["roles"]) for span in role["spans"]
    )
    assert [d[3] for d in drawn] == [k[3] for k in kept]
    assert np.allclose([d[:3] for d in drawn], [k[:3] for k in kept])
    assert all(set(e) >= {"name", "ph", "ts", "dur", "pid", "tid"} for e in events if e["ph"] == "X")
    assert [(e["name"], e["pid"], e["ts"]) for e in events if e["ph"] == "i"] == [("undone", 101, 2500)]


def test_full_rings_of_many_processes_make_bounded_files(tmp_path: Path) -> None:
    begins = np.arange(SPANS_KEPT) * 25_000 + MS
    full = np.column_stack([begins, begins + 25_000, np.tile([0, 1], SPANS_KEPT // 2)])
    write_timeline(tmp_path, "apex", hogwild.Config(), result_of(*itertools.repeat(full, 16)))
    sizes = [(tmp_path / name).stat().st_size for name in (module.TIMELINE, module.TRACE)]
    assert max(sizes) < 1_000_000
    assert min(sizes) > 10_000


def test_a_run_without_spans_leaves_no_file(tmp_path: Path) -> None:
    write_timeline(tmp_path, "apex", hogwild.Config(), result_of(ring(), ring()))
    assert list(tmp_path.iterdir()) == []
    assert make_timeline("apex", hogwild.Config(), result_of()) is None
