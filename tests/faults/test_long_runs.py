"""Long runs: counters far beyond 2^31, files and lists that stay small. Nothing here runs for long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_rig import Rig
from test_cut import MortalRig

from common import distributions
from common.acting import network_spec
from common.audit import FINISHED, STARTED, AuditReader, MasterWriter, SharedMaster
from common.barrier import RoundBarrier
from common.config import Config
from common.consumption import UpdateClock
from common.envs import inspect_env
from common.evaluate import MAX_KEPT, EvaluationRecord
from common.events import ROWS_PER_DOUBLING, EventLog
from common.experience import PUBLISHED, WRITING
from common.policy import linear_decay
from common.probe import Moment, Probe
from common.telemetry import Telemetry
from common.types import Evaluation
from common.weights import SharedWeights

FAR = (2**31 - 20, 2**32 - 20, 2**40 - 20)
far = pytest.mark.parametrize("start", FAR)


@far
def test_counters_and_clocks_go_on_beyond(start: int) -> None:
    config = Config(steps=2**50, warmup_env_steps=0, evaluate_every_env_steps=1_000)
    telemetry = Telemetry(2)
    probes = [Probe(telemetry, role, config) for role in range(2)]
    for probe in probes:
        probe.set("ready_ns", 1)
        probe.count("env_steps", start)
        probe.set("updates", start)
    for _ in range(40):
        probes[0].count("env_steps")
        probes[0].count_update()
    assert probes[1].env_steps == telemetry.total("env_steps") == 2 * start + 40
    assert probes[1].updates == 2 * start + 40 and probes[0].updates_ahead() == 40
    assert config.owed_updates(2 * start + 40) == 0.25 * (2 * start + 40)
    assert not probes[0].should_stop() and probes[0].evaluation_is_due()
    assert linear_decay(2 * start, 1.0, 0.1, 10_000) == pytest.approx(0.1)
    probes[0].record_values("policy_lag", np.array([start, 2 * start]))
    assert telemetry.histogram("policy_lag")[distributions.LARGEST] == 2 * start
    clock = UpdateClock()
    clock.note(Moment(start, 2 * start, 3 * start))
    clock.note(Moment(start + 50, 2 * start + 50, 3 * start + 50))
    assert clock.when(np.array([start + 25])).tolist() == [[start + 50, 2 * start + 50, 3 * start + 50]]


@far
@pytest.mark.parametrize("prioritized", [False, True])
def test_rows_are_right_beyond(start: int, prioritized: bool) -> None:
    rig = MortalRig(n_step=3, envs_per_worker=2, prioritized=prioritized)
    # As if that many rows had been written: whole rounds, so that the rig's log can start anew.
    offset = start - start % rig.buffer.num_rows
    header = rig.buffer["header"][0]
    header[WRITING] = header[PUBLISHED] = offset
    rig.buffer["env_steps_before"][0] = start
    rig.telemetry.set_word(0, "env_steps", start)
    rig.replay._reader.taken_rows[0] = offset  # type: ignore[attr-defined]
    rig.replay._reader.taken_env_steps[0] = start  # type: ignore[attr-defined]
    if prioritized:
        rig.replay._first_kept[0] = offset  # type: ignore[attr-defined]
    rig.log[0] = _After(offset)  # type: ignore[assignment]
    rig.die(0)
    rig.run(0, 3 * rig.buffer.num_rows)
    rig.replay.take_in()
    found = rig.sample_all(60)
    assert found == rig.stored() and len(found) > 20
    assert rig.buffer.writing(0) == offset + 3 * rig.buffer.num_rows > start
    assert rig.telemetry.total("env_steps") > start + rig.buffer.num_rows


class _After(list[Any]):
    """A log whose first entry has the number ``offset``."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            first, until = (place.start or 0) - self.offset, place.stop - self.offset
            return super().__getitem__(slice(max(0, first), max(0, until)))
        return super().__getitem__(place - self.offset)

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place - self.offset, value)

    def __len__(self) -> int:
        return super().__len__() + self.offset


@far
def test_versions_and_rounds_go_on_beyond(start: int) -> None:
    spec = network_spec(Config(hidden_size=8), inspect_env("CartPole-v1"))
    weights = SharedWeights(spec, np.zeros(spec.num_parameters, dtype=np.float32))
    weights._arrays["version"][:] = start
    vector = np.ones(spec.num_parameters, dtype=np.float32)
    assert [weights.publish(vector * i) for i in range(40)] == [start + i + 1 for i in range(40)]
    latest, version = weights.latest()
    assert version == start + 40 and (latest == 39).all()
    barrier = RoundBarrier(2)
    barrier._words["arrived"][:, 0] = start
    for worker in range(2):
        barrier.arrive(worker, barrier.next_round(worker), 3)
    assert barrier.all_arrived(start + 1) and not barrier.all_arrived(start)


@far
def test_the_audit_counts_on_beyond(start: int) -> None:
    master = SharedMaster(np.zeros(5, dtype=np.float32))
    master.words[0, STARTED] = master.words[0, FINISHED] = start
    reader = AuditReader(master)
    reader._issued_at_sample = start
    reader._landed[:] = start  # what it has counted of so many updates, none lost
    master.weights[:] += (start % 2**24) * 2.0**-48
    reader._last_count[:] = start % 2**24
    writer, vector = MasterWriter(master), np.empty(5, dtype=np.float32)
    for _ in range(40):
        writer.read_into(vector)
        writer.apply(vector + np.float32(2.0**-20))
    report = reader.report()
    assert report["auditable"] and report["writes_lost"] == 0
    assert report["updates_issued"] == start + 40
    assert report["survivors_by_worker"] == [start + 40]


def test_events_are_thinned_by_the_stated_rule(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    number = 10 * ROWS_PER_DOUBLING
    for i in range(number):
        log.write("progress", i=i)
        if i % 1000 == 0:
            log.write("alarm", i=i)
    log.close()
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    kept = [row["i"] for row in rows if row["kind"] == "progress"]
    # Every one of the first, then every second, every fourth: 1 + 2 + 4 doublings hold 7 x the limit.
    assert kept[:ROWS_PER_DOUBLING] == list(range(ROWS_PER_DOUBLING))
    second, third = kept[ROWS_PER_DOUBLING : 2 * ROWS_PER_DOUBLING], kept[2 * ROWS_PER_DOUBLING :]
    assert set(np.diff(second)) == {2} and set(np.diff(third)) == {4, 8}
    assert len(kept) < 4 * ROWS_PER_DOUBLING and number - kept[-1] <= 8
    assert [row["i"] for row in rows if row["kind"] == "alarm"] == list(range(0, number, 1000))


def test_the_record_of_evaluations_stays_small_and_even() -> None:
    record = EvaluationRecord(475.0)
    number = 5 * MAX_KEPT + 7
    for i in range(number):
        assert record.num_evaluations == i  # what its start states are drawn by: never one twice
        record.add(Evaluation(i, i, 0.0, 0.0, (float(i == 100),)), np.zeros(1, dtype=np.float32))
    kept = [evaluation.env_steps for evaluation in record.evaluations]
    assert MAX_KEPT // 2 <= len(kept) <= MAX_KEPT + 1
    assert kept[0] == 0 and kept[-1] == number - 1, "the first and the last are there"
    assert set(np.diff(kept[:-1])) == {8}
    assert record.best_mean == 1.0


def test_short_runs_keep_everything() -> None:
    record = EvaluationRecord(None)
    for i in range(50):
        record.add(Evaluation(i, i, 0.0, 0.0, (1.0,)), np.zeros(1, dtype=np.float32))
    assert [evaluation.env_steps for evaluation in record.evaluations] == list(range(50))
    assert isinstance(Rig(), Rig) and record.solved_at is None
