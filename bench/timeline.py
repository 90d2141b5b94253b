"""What every process did in the last moments of a run: ``timeline.json``, and the same for Perfetto.

Each process keeps its last activities in a ring (``Telemetry.spans``). From the rings of all, a short
window is cut in which all were at work. Two files come of it: ``timeline.json``, which ``bench report``
draws, and ``timeline.trace.json`` in the Chrome trace format (``ui.perfetto.dev`` opens it).

The window also shows where updates met. That is derived from when each process read and wrote, and it
says what can have happened there; how many writes were lost in the whole run is counted by the audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.summary import write_json
from common.config import Config
from common.telemetry import ACTIVITIES
from common.types import IntArray, RunResult

TIMELINE, TRACE = "timeline.json", "timeline.trace.json"
SCHEMA = 1
WINDOW_NS = 100_000_000
MIN_SPANS, MAX_SPANS = 10, 5_000
JOIN_NS = 20_000  # one wait is many short sleeps: what is closer than this is one

# A process is held while an evaluation or a checkpoint goes on. No window is cut there: nobody works.
HOLDS = ("evaluation", "checkpoint")
READ, WRITE = "pull", "publish"

UNDONE, OVERLAP = "undone", "overlap"


class Update(NamedTuple):
    """One update of one process: when it read the weights and when it wrote them, in one unit.

    Attributes:
        role: whose it is.
        read: the middle of the read.
        write_began: of the write.
        write_ended: of the write.
    """

    role: int
    read: float
    write_began: float
    write_ended: float

    @property
    def write(self) -> float:
        """The middle of the write."""
        return (self.write_began + self.write_ended) / 2


def write_timeline(folder: Path, strategy: str, config: Config, result: RunResult) -> None:
    """Write both files into a run's folder; none if no process did anything."""
    timeline = make_timeline(strategy, config, result)
    if timeline is not None:
        write_json(folder / TIMELINE, timeline, indent=None)
        write_json(folder / TRACE, chrome_trace(timeline), indent=None)


def make_timeline(strategy: str, config: Config, result: RunResult) -> dict[str, Any] | None:
    """Return the window as plain values, times in microseconds from its start; None if it is empty."""
    window = common_window(result.spans)
    if window is None:
        return None
    begin_ns, end_ns = window
    rings = [joined(ring) for ring in result.spans]
    roles = [
        {"name": role.name, "worker": role.worker, "pid": role.pid, "spans": _cut(ring, window)}
        for role, ring in zip(result.roles, rings, strict=True)
    ]
    updates = [update for i, ring in enumerate(rings) for update in updates_of(i, ring, begin_ns)]
    marks = meetings(updates, _what_meets(config))
    inside = [mark for mark in marks if begin_ns <= mark["at"] <= end_ns]
    return {
        "schema": SCHEMA,
        "strategy": strategy,
        "window_us": (end_ns - begin_ns) / 1e3,
        "all_at_work": all(role["spans"] for role in roles),
        "roles": roles,
        "meetings": [
            {**mark, "at": (mark["at"] - begin_ns) / 1e3, "by_at": (mark["by_at"] - begin_ns) / 1e3}
            for mark in inside
        ],
    }


def common_window(rings: Sequence[IntArray]) -> tuple[int, int] | None:
    """Return begin and end, in ns, of the last moments in which every process was at work.

    It is 100 ms long, and longer if a process did little in it: on a busy machine each has to wait for
    its turn. At most 5,000 spans. Where the rings have no moment in common (a process ended long
    before the others), the last moments of the one that ended last.
    """
    held = [ACTIVITIES.index(name) for name in HOLDS]
    working = [ring[~np.isin(ring[:, 2], held)] for ring in rings]
    working = [ring for ring in working if len(ring)]
    if not working:
        return None
    begin, end = max(ring[0, 0] for ring in working), min(ring[-1, 1] for ring in working)
    if begin >= end:
        last = max(working, key=lambda ring: int(ring[-1, 1]))
        begin, end = last[0, 0], last[-1, 1]
    begin = max(begin, end - _length(working, int(begin), int(end)))
    begins = np.sort(np.concatenate([ring[:, 0] for ring in working]))
    inside = begins[(begins >= begin) & (begins < end)]
    if len(inside) > MAX_SPANS:
        begin = inside[-MAX_SPANS]
    return int(begin), int(end)


def _length(rings: Sequence[IntArray], begin: int, end: int) -> int:
    """Return a length, in ns, in which every process ended some activities, if there is one."""
    length = WINDOW_NS
    while length < end - begin:
        inside = [((ring[:, 1] > end - length) & (ring[:, 1] <= end)).sum() for ring in rings]
        if min(inside) >= MIN_SPANS:
            break
        length *= 2
    return length


def joined(spans: IntArray) -> IntArray:
    """Return the spans ``[n, 3]`` with those of one activity that follow at once made into one."""
    if len(spans) < 2:
        return spans
    follows = (spans[1:, 2] == spans[:-1, 2]) & (spans[1:, 0] - spans[:-1, 1] < JOIN_NS)
    follows &= spans[1:, 0] >= spans[:-1, 1]  # an interrupted activity encloses: it does not follow
    starts = np.flatnonzero(np.concatenate([[True], ~follows]))
    ends = np.concatenate([starts[1:] - 1, [len(spans) - 1]])
    return np.column_stack([spans[starts, 0], spans[ends, 1], spans[starts, 2]])


def _cut(spans: IntArray, window: tuple[int, int]) -> list[list[Any]]:
    """Return [begin us, end us, activity] of what lies in the window."""
    begin, end = (np.clip(spans[:, i], *window) for i in (0, 1))
    return [
        [(a - window[0]) / 1e3, (b - window[0]) / 1e3, ACTIVITIES[activity]]
        for a, b, activity in zip(begin.tolist(), end.tolist(), spans[:, 2].tolist(), strict=True)
        if a < b
    ]


def _what_meets(config: Config) -> str | None:
    """Return what it means when two writes of this run come together; None if they cannot."""
    if getattr(config, "lock", None) is not False or config.workers == 1:
        return None
    return UNDONE if getattr(config, "write", None) == "copy-back" else OVERLAP


def updates_of(role: int, spans: IntArray, since_ns: int = 0) -> list[Update]:
    """Pair each write of a process with the read before it, from the last read before ``since_ns``."""
    is_read = spans[:, 2] == ACTIVITIES.index(READ)
    before = np.flatnonzero(is_read & (spans[:, 1] <= since_ns))
    updates, read = [], None
    for begin, end, activity in spans[before[-1] if len(before) else 0 :].tolist():
        if activity == ACTIVITIES.index(READ):
            read = (begin + end) / 2
        elif activity == ACTIVITIES.index(WRITE) and read is not None:
            updates.append(Update(role, read, begin, end))
            read = None
    return updates


def meetings(updates: Sequence[Update], kind: str | None) -> list[dict[str, Any]]:
    """Return where one process's write met another's update, in the order of time.

    ``undone``: a whole write that was copied over by another process that had read before it.
    ``overlap``: two additions at the same time, which can lose some elements.
    """
    if kind is None:
        return []
    found = _undone(updates) if kind == UNDONE else _overlapping(updates)
    marks = [
        {"kind": kind, "at": at, "role": role, "by": by, "by_at": by_at}
        for role, at, by, by_at in found
    ]
    return sorted(marks, key=lambda mark: (mark["at"], mark["role"]))


def _undone(updates: Sequence[Update]) -> Iterator[tuple[int, float, int, float]]:
    """Yield (role, when it wrote, role that copied over it, when) of what is absent at the end.

    Who reads takes a copy of every update that is in the weights by then, and puts that and its own
    back. So an update that was copied over comes back if a third process still held a copy of it.
    """
    moments = [(update.read, False, update) for update in updates]
    moments += [(update.write, True, update) for update in updates]
    present: set[Update] = set()
    copies: dict[Update, set[Update]] = {}
    gone: dict[Update, Update] = {}
    for _, is_write, update in sorted(moments):
        if not is_write:
            copies[update] = set(present)
            continue
        after = copies.pop(update) | {update}
        gone.update(dict.fromkeys(present - after, update))
        for back in after - present:
            gone.pop(back, None)
        present = after
    for lost, by in gone.items():
        yield lost.role, lost.write, by.role, by.write


def _overlapping(updates: Sequence[Update]) -> Iterator[tuple[int, float, int, float]]:
    """Yield the two roles, and when their writes began to lie over each other."""
    ordered = sorted(updates, key=lambda update: update.write_began)
    for i, one in enumerate(ordered):
        for other in ordered[i + 1 :]:
            if other.write_began >= one.write_ended:
                break
            if other.role != one.role:
                yield one.role, other.write_began, other.role, other.write_began


def chrome_trace(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeline in the Chrome trace format: a track per process, times in microseconds."""
    events: list[dict[str, Any]] = []
    for number, role in enumerate(timeline["roles"]):
        place = {"pid": role["pid"] or number + 1, "tid": role["pid"] or number + 1}
        name = f"{role['name']}-{role['worker']}"
        for kind in ("process_name", "thread_name"):
            events.append({"ph": "M", "name": kind, **place, "args": {"name": name}})
        events.append(
            {"ph": "M", "name": "process_sort_index", **place, "args": {"sort_index": number}}
        )
        for begin, end, activity in role["spans"]:
            events.append(
                {"ph": "X", "name": activity, **place, "ts": begin, "dur": round(end - begin, 3)}
            )
        for mark in timeline["meetings"]:
            if mark["role"] == number:
                events.append({"ph": "i", "name": mark["kind"], **place, "ts": mark["at"], "s": "p"})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
