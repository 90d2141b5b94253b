"""How a process takes the place of a dead one: its words, its clock, its round, its duties."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.audit import ABANDONED, FINISHED, STARTED, MasterWriter
from common.barrier import RoundBarrier
from common.children import Child, how_it_ended, settle
from common.config import Config
from common.probe import Probe
from common.processes import MAX_TRACEBACK_CHARACTERS, Role, random_stream, short, worker_stream
from common.supervisor import Shared
from common.telemetry import CONTROL, WORD, Telemetry
from common.types import RoleReport

CONFIG = Config(workers=3, steps=10**9, warmup_env_steps=0, evaluate_every_env_steps=100)


def at_work(telemetry: Telemetry, number: int = 3) -> list[Probe]:
    """Return the probes of processes that have started together."""
    probes = [Probe(telemetry, role, CONFIG) for role in range(number)]
    for probe in probes:
        probe.set("ready_ns", 1)
    assert not any(probe.should_stop() for probe in probes)
    for role, probe in enumerate(probes):
        probe.set("started_ns", 1 + role)
    return probes


def die(
    telemetry: Telemetry, row: int, name: str = "actor_learner", can_restart: bool = True
) -> Shared:
    """Do what the supervisor does when a process has died."""
    shared = Shared(CONFIG, num_writers=3)
    role = Role(name, row, lambda: None, (), can_restart)
    settle(telemetry, shared, None, Child(row, role, RoleReport(name, row)))
    return shared


def test_the_dead_hold_nobody_up_and_their_successor_starts_even() -> None:
    telemetry = Telemetry(3, 3)
    probes = at_work(telemetry)
    for probe, updates in zip(probes, (7, 9, 8), strict=True):
        probe.set("updates", updates)
    assert [probe.updates_ahead() for probe in probes] == [0, 2, 1]
    die(telemetry, 0)
    assert [probe.updates_ahead() for probe in probes[1:]] == [1, 0], "off the clock"
    probes[1].set("updates", 1_000)
    probes[2].set("updates", 1_003)
    again = Probe(telemetry, 0, CONFIG, restarts=1)
    assert not again.should_stop()
    assert telemetry.word(0, "updates") == 7, "what was counted stays"
    assert [probe.updates_ahead() for probe in (again, *probes[1:])] == [0, 0, 3]
    again.count_update()
    again.count_update()
    assert [probe.updates_ahead() for probe in (again, *probes[1:])] == [2, 0, 3]


def test_a_successor_evaluates_when_it_is_due_again_and_books_its_absence() -> None:
    telemetry = Telemetry(3, 3)
    probes = at_work(telemetry)
    for probe in probes:
        probe.count("env_steps", 110)
        probe.set("updates", 500)
    telemetry.set_word(0, "heartbeat_ns", time.perf_counter_ns() - 3_000_000_000)
    before = telemetry.word(0, "held_ns")
    die(telemetry, 0)
    again = Probe(telemetry, 0, CONFIG, restarts=1)
    assert again.evaluation_is_due(), "as a first process it would be"
    assert not again.should_stop() and not again.evaluation_is_due()
    assert 2.9 < telemetry.word(0, "restart") / 1e9 < 20
    again.count("env_steps", 70)
    assert not again.evaluation_is_due(), "nothing was learned since it came"
    again.set("updates", 1_000)
    assert again.evaluation_is_due() and telemetry.word(0, "held_ns") == before
    assert telemetry.word(0, "started_ns") == 1, "the training clock began with the first"


def test_who_is_gone_is_waited_for_by_nobody() -> None:
    telemetry = Telemetry(3, 3)
    probes = [Probe(telemetry, role, CONFIG) for role in range(3)]
    probes[1].set("ready_ns", 1)
    telemetry.set_word(0, "gone", 1)
    assert not probes[2].should_stop() and telemetry.word(2, "started_ns") > 0
    assert [probe.is_first for probe in probes] == [True, True, False]
    telemetry.set_word(1, "gone", 1)
    assert probes[2].is_first and probes[2].workers_gone == [True, True, False]


def test_evaluations_are_asked_for_by_all_on_one_count() -> None:
    telemetry = Telemetry(2, 2)
    first, second = (Probe(telemetry, role, CONFIG) for role in range(2))
    telemetry.set_control("evaluations_done", 1)
    first.evaluate()
    assert telemetry.total("evaluations_requested") == 1
    done = threading.Timer(0.2, telemetry.set_control, ("evaluations_done", 2))
    done.start()
    second.evaluate()  # the second of all, not its own first, which would be done already
    assert telemetry.arrays["control"][CONTROL["evaluations_done"]] == 2
    done.join()
    assert telemetry.total("evaluations_requested") == 2
    assert telemetry.word(1, "evaluations_requested") == 1


def test_a_barrier_goes_on_with_the_round_that_was_not_done() -> None:
    barrier = RoundBarrier(3)
    for worker in range(3):
        assert barrier.next_round(worker) == 1
    for worker in (0, 1):
        barrier.arrive(worker, 1, 5)
    assert not barrier.all_arrived(1) and barrier.unpublished_env_steps() == 10
    assert barrier.all_arrived(1, [False, False, True]), "nobody waits for who is gone"
    assert barrier.next_round(2) == 1 and barrier.next_round(1, takes_over=True) == 2
    assert barrier.unpublished_env_steps() == 5, "what a dead worker had not published is gone"
    barrier.arrive(2, 1, 4)
    assert barrier.all_arrived(1) and not barrier.all_arrived(2, [False, True, False])


def test_settling_closes_the_books_of_the_dead() -> None:
    telemetry = Telemetry(3, 3)
    (probe, *_) = at_work(telemetry)
    probe.count("env_steps", 50)
    probe.count("stored", 32)
    probe.set("is_held", 1)
    die(telemetry, 0)
    words = {name: telemetry.word(0, name) for name in ("ready_ns", "is_held", "stored", "dropped")}
    assert words == {"ready_ns": 0, "is_held": 0, "stored": 32, "dropped": 18}
    die(telemetry, 0)
    assert telemetry.word(0, "dropped") == 18 and len(WORD) == len(set(WORD.values()))


@pytest.mark.parametrize(
    "name, can_restart, settled",
    [("actor_learner", True, True), ("actor", True, False), ("learner", False, False)],
)
def test_only_a_writer_that_is_replaced_is_taken_for_done(
    name: str, can_restart: bool, settled: bool
) -> None:
    shared = Shared(CONFIG, num_writers=3)
    shared.master.words[1, STARTED] = 5
    shared.master.words[1, FINISHED] = 4
    role = Role(name, 1, lambda: None, (), can_restart)
    assert shared.master.is_torn
    settle(Telemetry(3, 3), shared, None, Child(1, role, RoleReport(name, 1)))
    assert shared.master.is_torn != settled and shared.master.words[1, ABANDONED] == settled
    reader, vector = MasterWriter(shared.master, 0), np.empty(shared.master.num_parameters, np.float32)
    reader.read_into(vector)
    assert reader._words[2] == (not settled), "a read that may be torn"
    shared.master.words[1, STARTED] = 6  # the successor is in an update of its own
    reader.read_into(vector)
    assert reader._words[2] == 1 + (not settled) and shared.master.is_torn


def test_weights_of_a_torn_master_are_those_last_published() -> None:
    shared = Shared(CONFIG)
    writer, vector = MasterWriter(shared.master), shared.latest()
    writer.read_into(vector)
    writer.apply(vector + np.float32(2.0**-10))
    assert (shared.latest() == shared.master.vector()).all() and not shared.master.is_torn
    published = shared.latest() * np.float32(0.5)
    shared.weights.publish(published)
    shared.master.words[0, STARTED] += 1  # killed in the middle of the next
    shared.master.weights[:10] += 1.0
    assert (shared.latest() == published).all() and shared.master.is_torn


def test_streams_of_all_lives_differ() -> None:
    purposes = ("environment", "exploration", "replay")
    draws = {
        np.random.default_rng(worker_stream(CONFIG, probe, purpose, worker)).random()
        for purpose in purposes
        for worker in range(3)
        for probe in [_probe(restarts) for restarts in range(4)]
    }
    assert len(draws) == len(purposes) * 3 * 4
    first = worker_stream(CONFIG, _probe(0), "replay", 2).generate_state(4)
    assert (first == random_stream(CONFIG.seed, "replay", 2).generate_state(4)).all()


def _probe(restarts: int) -> Any:
    return SimpleNamespace(restarts=restarts, env_steps_before=0)


def test_a_long_traceback_is_sent_at_once_with_both_its_ends() -> None:
    assert short("a\nb") == "a\nb"
    text = short("begin " + "\U0001f600" * 50_000 + " end")
    assert text.startswith("begin ") and text.endswith(" end") and "..." in text
    assert len(text) < MAX_TRACEBACK_CHARACTERS + 20 and len(text.encode()) < 16_000


@pytest.mark.parametrize(
    "code, words",
    [(-9, "signal SIGKILL"), (-42, "signal 42"), (3, "exit code 3"), (None, "its line")],
)
def test_an_exit_code_is_said_in_words(code: int | None, words: str) -> None:
    assert words in how_it_ended(code)
    assert "\n" not in how_it_ended(code)
