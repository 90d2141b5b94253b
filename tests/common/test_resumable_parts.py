"""What is loaded goes on like what was saved: parts that runs compare only through their results."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resume_rig import differences

from common.acting import NetworkSpec, initial_weights
from common.alarms import RULES
from common.audit import COUNT_MODULUS, AuditReader, MasterWriter, SharedMaster
from common.config import Config
from common.consumption import UpdateClock
from common.envs import inspect_env
from common.evaluate import MAX_KEPT, EvaluationRecord
from common.events import EventLog, NullObserver
from common.experience import ROW_FIELDS, ExperienceBuffer, SegmentWriter
from common.health_watch import HealthWatch
from common.learner import Learner
from common.network import QNetwork
from common.on_policy import radam
from common.optimizer import load_optimizer_state, make_optimizer, optimizer_state
from common.probe import Moment, Probe
from common.processes import random_stream, worker_stream
from common.state_files import State, StateError, read_state, write_state
from common.telemetry import HEALTH, Telemetry
from common.types import Batch, Before, CheckpointReport, Evaluation, LaneStep

SPEC = NetworkSpec((4,), "<f4", 2, 8, False)


@pytest.fixture
def through_a_file(tmp_path: Path) -> Any:
    """Return a function that gives a state as it is after having been on disk."""

    def through(state: State) -> State:
        write_state(tmp_path / "state.npz", state)
        return read_state((tmp_path / "state.npz").read_bytes())

    return through


def evaluation(mean: float, at: int) -> Evaluation:
    return Evaluation(at, at // 4, at / 100, at / 50, (mean - 1, mean + 1))


def test_a_streak_goes_on(through_a_file: Any) -> None:
    record = EvaluationRecord(100.0)
    weights = initial_weights(SPEC, 1)
    for i, mean in enumerate((50.0, 120.0, 110.0)):
        record.add(evaluation(mean, i), weights + np.float32(i))
    again = EvaluationRecord(100.0)
    again.load_state(through_a_file(record.state()))
    assert not again.wants_confirmation and again.solved_at is None
    assert again.best_mean == 120.0 and again.best_weights is not None
    assert again.best_weights.tobytes() == (weights + np.float32(1)).tobytes()
    assert again.evaluations == record.evaluations
    assert not again.add(evaluation(115.0, 3), weights)  # not the best, but the third in a row
    assert again.wants_confirmation and again.confirm((101.0, 103.0))
    later = EvaluationRecord(100.0)
    later.load_state(through_a_file(again.state()))
    assert later.solved_at == again.evaluations[3] and not later.wants_confirmation


def test_a_solved_evaluation_is_kept_when_the_list_is_thinned(through_a_file: Any) -> None:
    record, weights = EvaluationRecord(100.0), initial_weights(SPEC, 1)
    for i in range(4):
        record.add(evaluation(150.0, i), weights)
    assert record.confirm((150.0,))
    solved = record.solved_at
    for i in range(4, MAX_KEPT + 10):
        record.add(evaluation(50.0, i), weights)
    assert solved not in record.evaluations and len(record.evaluations) < MAX_KEPT
    again = EvaluationRecord(100.0)
    again.load_state(through_a_file(record.state()))
    assert again.solved_at == solved and again.evaluations == record.evaluations
    for i in range(MAX_KEPT + 10, MAX_KEPT + 100):
        for each in (record, again):
            each.add(evaluation(50.0, i), weights)
    assert again.evaluations == record.evaluations


def sample(**values: float) -> dict[str, float]:
    return {**dict.fromkeys(HEALTH, math.nan), **values}


def test_an_alarm_is_raised_once_and_what_led_to_it_is_remembered(through_a_file: Any) -> None:
    telemetry, config = Telemetry(1), Config()
    probe = Probe(telemetry, 0, config)
    watch = HealthWatch(telemetry, NullObserver(), [], 100.0)

    def broken(watch: HealthWatch, at: float) -> None:
        probe.record_health(sample(env_steps=at, updates=at, grad_norm=1e6))
        watch.look(0.0)

    broken(watch, 10.0)
    broken(watch, 20.0)
    assert watch.judge.alarms == [] and len(RULES) > 3
    again = HealthWatch(telemetry, NullObserver(), [], 100.0)
    again.load_state(through_a_file(watch.state()))
    again.look(0.0)
    assert again.samples == watch.samples or math.isnan(again.samples[0]["churn"])
    assert again.judge.alarms == []  # the old samples are not judged once more
    broken(again, 30.0)
    (alarm,) = again.judge.alarms
    assert (alarm.name, alarm.at_env_steps) == ("exploding gradient", 10)
    third = HealthWatch(telemetry, NullObserver(), [], 100.0)
    third.load_state(through_a_file(again.state()))
    broken(third, 40.0)
    assert third.judge.alarms == again.judge.alarms


def test_a_checkpoint_that_could_not_be_saved_is_an_alarm() -> None:
    watch = HealthWatch(Telemetry(1), NullObserver(), [], None)
    watch.not_saved(CheckpointReport(error="actor-1 died"), 5)
    assert watch.judge.alarms == []  # nobody has to look at the disk for that
    watch.not_saved(CheckpointReport(write_error="No space left on device", saves=1), 7)
    watch.not_saved(CheckpointReport(write_error="No space left on device", saves=1), 9)
    (alarm,) = watch.judge.alarms
    assert alarm.at_env_steps == 7 and "No space left" in alarm.meaning
    assert "the one before it is still whole" in alarm.meaning
    first = HealthWatch(Telemetry(1), NullObserver(), [], None)
    first.not_saved(CheckpointReport(write_error="No space left on device"), 7)
    assert "there is none yet" in first.judge.alarms[0].meaning


def test_the_time_between_two_parts_is_no_age(
    through_a_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = UpdateClock()
    now = time.perf_counter_ns()
    for i in range(20):
        clock.note(Moment(i, 10 * i, now - (20 - i) * 1_000_000))
    state = through_a_file(clock.state())
    # Another machine's clock, or this one's after it was started anew.
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 5_000_000_000)
    again = UpdateClock()
    again.load_state(state)
    updates = np.array([3, 10, 19])
    assert (again.when(updates)[:, :2] == clock.when(updates)[:, :2]).all()
    ages = 5_000_000_000 - again.when(updates)[:, 2]
    assert np.allclose(ages, (20 - updates) * 1_000_000, atol=state["now_ns"] - now + 1)


@pytest.mark.parametrize("kind", ["adam", "rmsprop", "radam"])
def test_an_optimizer_goes_on_with_its_moments(kind: str, through_a_file: Any) -> None:
    def made(vector: np.ndarray) -> tuple[QNetwork, torch.optim.Optimizer]:
        network = QNetwork(SPEC, vector)
        if kind == "radam":
            return network, radam(Config(), list(network.parameters()))
        return network, make_optimizer(Config(), network, kind)

    def step(network: QNetwork, optimizer: torch.optim.Optimizer, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        optimizer.zero_grad()
        network(torch.randn(16, 4, generator=generator)).square().sum().backward()
        optimizer.step()

    network, optimizer = made(initial_weights(SPEC, 0))
    assert optimizer_state(optimizer) == [{}] * len(list(network.parameters()))
    for number in range(7):
        step(network, optimizer, number)
    again, cold = made(network.vector.copy()), made(network.vector.copy())
    load_optimizer_state(again[1], through_a_file({"saved": optimizer_state(optimizer)})["saved"])
    for number in range(7, 12):
        for each in ((network, optimizer), again, cold):
            step(*each, number)
    assert again[0].vector.tobytes() == network.vector.tobytes()
    assert cold[0].vector.tobytes() != network.vector.tobytes()  # moments matter


def batch_of(number: int) -> Batch:
    rng = np.random.default_rng(number)
    observation, following = rng.normal(size=(2, 16, 4)).astype(np.float32)
    zeros = np.zeros(16, dtype=np.int64)
    return Batch(
        observation=observation,
        action=rng.integers(2, size=16),
        n_step_return=rng.normal(size=16).astype(np.float32),
        bootstrap_discount=np.full(16, 0.9, dtype=np.float32),
        bootstrap_observation=following,
        importance_weight=np.ones(16, dtype=np.float32),
        weights_version=zeros,
        place=zeros,
        row=zeros,
    )


@pytest.mark.parametrize("forgotten", ["nothing", "target", "left", "optimizer", "num_updates"])
def test_a_learner_needs_all_of_its_state(forgotten: str, through_a_file: Any) -> None:
    config = Config(batch_size=16, target_update=4.0, learning_rate=1e-2)
    master = SharedMaster(initial_weights(SPEC, 0))
    learner = Learner(config, SPEC, master.vector(), MasterWriter(master))
    for number in range(6):
        learner.update(batch_of(number))
    other = SharedMaster(initial_weights(SPEC, 0))
    other._arrays.load_state(through_a_file(master._arrays.state()))
    again = Learner(config, SPEC, other.vector(), MasterWriter(other))
    state, fresh = through_a_file(learner.state()), again.state()
    if forgotten == "left":
        state["writer"] = fresh["writer"]
    elif forgotten != "nothing":
        state[forgotten] = fresh[forgotten]
    again.load_state(state)
    for number in range(6, 30):
        for each in (learner, again):
            each.update(batch_of(number))
    same = other.weights.tobytes() == master.weights.tobytes()
    assert same == (forgotten == "nothing")
    assert differences(again.state(), learner.state()) == [] or not same


def test_counts_of_the_audit_go_on_through_their_rounds(through_a_file: Any) -> None:
    """More than 2^24 writes in two parts: the element's own counter has come round."""
    master = SharedMaster(np.zeros(3, dtype=np.float32))
    reader, many = AuditReader(master), COUNT_MODULUS // 5

    def write(times: int) -> None:
        master.weights[:] += times * 2.0**-48  # as so many updates of nothing would
        master.words[0, :2] += times

    for _ in range(4):
        write(many)
        reader.sample()
    again = AuditReader(master)
    again.load_state(through_a_file(reader.state()))
    for _ in range(4):
        write(many)
        again.sample()
    report = again.report()
    assert report["auditable"] and report["writes_lost"] == 0
    assert report["updates_issued"] == 8 * many > COUNT_MODULUS
    forgetful = AuditReader(master)
    assert forgetful.report()["writes_lost"] != 0


def rows_written(writer: SegmentWriter, number: int, probe: Probe) -> SegmentWriter:
    lanes = np.ones(2, dtype=bool)
    for i in range(number):
        step = LaneStep(np.full((2, 4), i + 1.0), np.ones(2, dtype=np.float32), ~lanes, ~lanes, lanes)
        observation, q_values = np.full((2, 4), float(i)), np.ones((2, 2), dtype=np.float32)
        action, chance = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.float32)
        writer.write(observation, q_values, action, chance, step, 7)
        writer.publish_when_full(probe)
    return writer


@pytest.mark.parametrize("is_saved_between", [False, True])
def test_who_resumes_keeps_the_rows_that_who_takes_over_cuts(
    is_saved_between: bool, through_a_file: Any
) -> None:
    config = Config(envs_per_worker=2, n_step=3, chunk_steps=4, batch_size=2)
    buffer = ExperienceBuffer(config, inspect_env("CartPole-v1"))
    probe = Probe(Telemetry(1), 0, config)
    state = through_a_file(rows_written(SegmentWriter(buffer, 0, config), 10, probe).state())
    rows = {name: buffer[name].copy() for name in ROW_FIELDS}
    assert (buffer.published(0), buffer.writing(0)) == (4, 10)
    resumed = SegmentWriter(buffer, 0, config)
    resumed.load_state(state)
    assert resumed.unpublished_env_steps == 12
    assert all((buffer[name] == rows[name]).all() for name in ROW_FIELDS)
    taking_over = SegmentWriter(buffer, 0, config)
    assert taking_over.unpublished_env_steps == 0
    if is_saved_between:  # a checkpoint, and a resumed run, before it has written anything
        state = through_a_file(taking_over.state())
        taking_over = SegmentWriter(buffer, 0, config)
        taking_over.load_state(state)
    assert buffer["valid"][0, 4:10].all()
    rows_written(taking_over, 1, probe)
    assert not buffer["valid"][0, 4:10].any() and buffer["truncated"][0, 9].all()
    assert buffer["valid"][0, 10].all() and buffer["valid"][0, :4].all()


def test_a_worker_that_takes_over_repeats_no_stream_of_an_earlier_part() -> None:
    telemetry, seen = Telemetry(1), set()
    for before in (Before(), Before(env_steps=100), Before(env_steps=200)):
        telemetry.before = before
        for restarts in range(3):
            probe = Probe(telemetry, 0, Config(), None, restarts)
            stream = worker_stream(Config(), probe, "environment", 4)
            seen.add(tuple(stream.generate_state(4)))
            first = random_stream(0, "environment", 4)
            assert restarts or stream.entropy == first.entropy  # as if nothing had been before
    assert len(seen) == 1 + 3 * 2


def test_telemetry_of_other_processes_is_refused(through_a_file: Any) -> None:
    telemetry = Telemetry(2, 1)
    Probe(telemetry, 1, Config()).count("env_steps", 2**40)  # past 2^31
    state = through_a_file(telemetry.state())
    again = Telemetry(2, 1)
    again.load_state(state, 3.5)
    assert again.total("env_steps") == 2**40 and again.before == (2**40, 0, 3.5)
    assert again.word(1, "started_ns") == again.word(1, "finished_ns") == 0
    with pytest.raises(StateError, match="counters"):
        Telemetry(3, 1).load_state(state, 0.0)


def test_the_event_log_keeps_what_belongs_to_the_run(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("one")
    kept = path.stat().st_size
    log.write("two")
    log.close()
    with path.open("a") as file:
        file.write('{"kind": "hal')  # killed in the middle of a row
    untouched = EventLog(path, kept)
    untouched.close()
    assert path.read_text().count("\n") == 2  # nothing is dropped before something is written
    log = EventLog(path, kept)
    log.write("three")
    log.write("four")
    log.close()
    assert path.read_text() == '{"kind": "one"}\n{"kind": "three"}\n{"kind": "four"}\n'
    fresh = EventLog(path)
    fresh.write("five")
    fresh.close()
    assert path.read_text() == '{"kind": "five"}\n'
