"""What becomes of a run when its workers raise, are killed, exit or hang."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mortal_roles
import psutil
import pytest
from mortal_roles import make_notes

from common import children
from common.config import Config
from common.events import NullObserver
from common.processes import Role
from common.supervisor import RunProbe, Shared, run_roles
from common.types import Death, RunResult

pytestmark = pytest.mark.multiprocess
FOR_EVER = 10**12


@dataclass
class Hears(NullObserver):
    """Notes who died and what was said to follow."""

    outcomes: list[tuple[str, str]] = field(default_factory=list)

    def on_death(self, death: Death, outcome: str) -> None:
        self.outcomes.append((f"{death.role}-{death.worker}", outcome))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process and no descriptor outlives a run."""
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    yield
    left = [p.cmdline() for p in psutil.Process().children(recursive=True) if p.status() != "zombie"]
    assert [line for line in left if "resource_tracker" not in " ".join(line)] == []
    if before:
        # The tracker's pipe stays for the whole session, and shared memory until it is collected.
        assert len(os.listdir("/proc/self/fd")) <= before + 12


def worker(number: int, notes: Any, *deaths: str) -> Role:
    return Role("stepper", number, mortal_roles.step, (notes, number, deaths), can_restart=True)


def run(*roles: Role, workers: int = 0, **choices: Any) -> tuple[RunResult, Hears, float]:
    """Run roles; return the result, what was heard and the seconds it took."""
    fixed = {"hidden_size": 8, "steps": FOR_EVER, "workers": workers or len(roles)}
    config = Config(**{**fixed, **choices})
    hears = Hears()
    started = time.perf_counter()
    result = run_roles(config, RunProbe(observer=hears), roles, Shared(config))
    return result, hears, time.perf_counter() - started


@pytest.mark.slow  # by default a few processes of test_random_kills.py die
@pytest.mark.usefixtures("nothing_left")
def test_whoever_dies_is_replaced_and_the_run_goes_on() -> None:
    notes = make_notes(3)
    result, hears, _ = run(
        worker(0, notes, "raise", "SIGKILL"),
        worker(1, notes, "hang"),
        worker(2, notes),
        seconds=4.5,
        worker_timeout=1.0,
    )
    assert (result.status, result.error) == ("completed", None)
    reasons = {(death.worker, death.reason.strip().split("\n")[-1]) for death in result.deaths}
    assert reasons == {
        (0, "ValueError: planted fault 4711"),
        (0, "was ended by signal SIGKILL"),
        (1, "gave no sign of life for 1 s and was killed"),
    }
    (raised,) = [death.reason for death in result.deaths if "4711" in death.reason]
    assert raised.startswith("Traceback") and "in die" in raised
    assert result.restarts == 3 and [role.restarts for role in result.roles] == [2, 1, 0]
    assert sorted(hears.outcomes) == [
        ("stepper-0", "restarted (1 of at most 3 times)"),
        ("stepper-0", "restarted (2 of at most 3 times)"),
        ("stepper-1", "restarted (1 of at most 3 times)"),
    ]
    at = [death.at_env_steps for death in result.deaths]
    assert at == sorted(at) and at[0] > 0 and at[-1] < result.env_steps
    # Every life draws from a stream of its own, and what a dead one had counted goes on counting.
    drawn = [notes["drawn"][w, life] for w, lives in enumerate((3, 2, 1)) for life in range(lives)]
    assert len(set(drawn)) == 6 and all(0 < each < 1 for each in drawn)
    for role in result.roles:
        assert role.counters["env_steps"] == role.counters["stored"] > mortal_roles.CHECKS
        assert role.imports_torch is False, "the last life came to its end by itself"
        booked = sum(role.activities.values())
        assert (role.activities["restart"] > 0) == (role.restarts > 0) and booked <= role.wall_seconds


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("limit", [0, 2])
def test_an_exception_that_every_restart_repeats_ends_the_run_with_it(limit: int) -> None:
    notes = make_notes(2)
    faulty = worker(1, notes, *["raise"] * 9)
    result, hears, seconds = run(worker(0, notes), faulty, max_restarts=limit)
    assert result.status == "failed" and result.error is not None
    assert result.error.startswith("stepper-1 failed:\nTraceback")
    assert result.error.count("ValueError: planted fault 4711") == 1
    assert (f"after {limit} restarts" in result.error) == (limit > 0)
    assert (len(result.deaths), result.restarts) == (limit + 1, limit)
    assert hears.outcomes[-1] == ("stepper-1", "the run ends") and seconds < 8 + 3 * limit


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how, reason", [("SIGSEGV", "signal SIGSEGV"), ("exit", "exit code 3")])
def test_a_worker_that_keeps_dying_is_given_up_while_others_live(how: str, reason: str) -> None:
    notes = make_notes(2)
    result, hears, _ = run(worker(0, notes), worker(1, notes, *[how] * 9), max_restarts=1, seconds=4.0)
    assert (result.status, result.error) == ("completed", None)
    assert hears.outcomes == [
        ("stepper-1", "restarted (1 of at most 1 times)"),
        ("stepper-1", "given up: 1 of 2 workers are left"),
    ]
    assert all(reason in death.reason for death in result.deaths) and len(result.deaths) == 2
    assert result.roles[0].counters["env_steps"] > result.roles[1].counters["env_steps"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_when_no_worker_is_left_the_run_ends_with_the_reason() -> None:
    notes = make_notes(2)
    dying = [worker(number, notes, *["SIGKILL"] * 9) for number in range(2)]
    listener = Role("learner", 0, mortal_roles.evaluate, ())
    choices = {"workers": 2, "max_restarts": 1, "evaluate_every_env_steps": FOR_EVER}
    result, hears, seconds = run(listener, *dying, **choices)
    assert result.status == "failed" and result.error is not None and seconds < 15
    assert result.error.startswith("no worker is left: stepper-")
    assert "was ended by signal SIGKILL" in result.error and result.restarts == 2
    assert [outcome for _, outcome in hears.outcomes[-2:]] == [
        "given up: 1 of 2 workers are left",
        "the run ends",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_who_hangs_before_it_was_ready_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "START_SECONDS", 3.0)
    notes = make_notes(2)
    hanging = Role("stepper", 1, mortal_roles.die_at_start, ("hang",), can_restart=True)
    result, hears, _ = run(worker(0, notes), hanging, worker_timeout=1.0, seconds=1.0)
    assert result.status == "completed" and result.restarts == 0
    assert hears.outcomes == [("stepper-1", "given up: 1 of 2 workers are left")]
    assert "while it started" in result.deaths[0].reason
    assert result.env_steps > 0 and result.training_seconds < 3, "the clock began when the others did"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_dies_before_it_was_ready_is_started_again() -> None:
    notes = make_notes(2)
    mortal = Role("stepper", 1, mortal_roles.die_at_start, ("SIGKILL",), can_restart=True)
    result, hears, _ = run(worker(0, notes), mortal, seconds=0.5, max_restarts=2)
    assert result.status == "completed" and result.restarts == 2
    assert [outcome for _, outcome in hears.outcomes][-1] == "given up: 1 of 2 workers are left"
    assert result.roles[1].counters["env_steps"] == 0 < result.roles[0].counters["env_steps"]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", ["raise", "SIGKILL", "hang"])
def test_a_process_that_cannot_be_replaced_ends_the_run(how: str) -> None:
    notes = make_notes(1)
    learner = Role("learner", 0, mortal_roles.step, (notes, 0, [how]))
    other = Role("stepper", 0, mortal_roles.evaluate, (), can_restart=True)
    choices = {"workers": 1, "worker_timeout": 1.0, "evaluate_every_env_steps": FOR_EVER}
    result, hears, seconds = run(learner, other, **choices)
    assert result.status == "failed" and result.restarts == 0 and seconds < 10
    assert result.error is not None and result.error.startswith("learner-0 ")
    assert hears.outcomes == [("learner-0", "the run ends")] and len(result.deaths) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_an_evaluation_waits_for_nobody_who_hangs_longer_than_the_timeout() -> None:
    notes = make_notes(2)
    asks = Role("learner", 0, mortal_roles.evaluate, ())
    steppers = [worker(0, notes), worker(1, notes, "hang", "hang")]
    result, _, seconds = run(
        asks, *steppers, workers=2, worker_timeout=1.5, seconds=8.0,
        evaluate_every_env_steps=100, evaluation_min_updates=50, evaluation_episodes=2,
    )  # fmt: skip
    assert result.status == "completed" and result.restarts == 2
    assert len(result.evaluations) >= 2 and seconds < 40
    assert all("no sign of life" in death.reason for death in result.deaths)


@pytest.mark.slow
def test_a_stopped_supervisor_does_not_take_the_others_for_dead() -> None:
    """Ctrl-Z stops all of them for longer than the timeout; nobody hung."""
    looked, notes = children.Children.look, make_notes(2)
    times = itertools.count()

    def sleepy(self: Any) -> None:
        if notes["seen_ns"].all() and next(times) == 20:  # both are at work
            stopped = psutil.Process().children()
            for process in stopped:
                process.suspend()
            time.sleep(2.5)
            for process in stopped:
                process.resume()
        looked(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children.Children, "look", sleepy)
        result, _, _ = run(worker(0, notes), worker(1, notes), worker_timeout=1.5, seconds=4.0)
    assert next(times) > 21, "it came to the stop"
    assert (result.status, result.deaths) == ("completed", [])


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("lock", [True, False])
@pytest.mark.parametrize("how", ["SIGKILL", "hang"])
def test_a_writer_that_dies_in_an_update_holds_nobody_up(how: str, lock: bool) -> None:
    config = Config(hidden_size=8, workers=2, steps=FOR_EVER, seconds=5.0, worker_timeout=1.5)
    shared = Shared(config, num_writers=2, lock=lock)
    roles = [
        Role("actor_learner", w, mortal_roles.add_up, (shared, w, how if w else None, lock), True)
        for w in range(2)
    ]
    result = run_roles(config, RunProbe(), roles, shared)
    assert (result.status, result.restarts) == ("completed", 1)
    assert result.audit is not None and result.audit["auditable"]
    # The update that was cut in half is uncertain; nothing else is, and under the lock nothing is lost.
    assert result.audit["writes_uncertain"] == result.audit["elements"]
    assert not lock or result.audit["writes_lost"] == 0
    assert all(role.counters["updates"] > 5 * mortal_roles.CHECKS for role in result.roles)
    # A reader that came later does not take the dead one's mark for a write that is going on.
    assert result.audit["torn_reads_at_most"] < result.updates / 2
    share = math.fsum(role.activities["restart"] for role in result.roles)
    assert 0 < share < result.training_seconds
