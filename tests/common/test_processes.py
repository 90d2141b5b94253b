"""Processes: how a run ends when a child fails, dies or does not listen, and what is left behind."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import role_functions

from common import supervisor
from common.acting import initial_weights
from common.audit import round_to_lattice
from common.config import Config
from common.processes import STREAM_PURPOSES, THREAD_VARIABLES, Role, limit_threads, random_stream
from common.supervisor import RunProbe, Shared, run_roles
from common.types import RunResult

FOR_EVER = 10**12


def test_no_two_streams_are_the_same() -> None:
    arguments = list(itertools.product((0, 1, 12345), STREAM_PURPOSES, range(6), range(6)))
    states = {tuple(random_stream(*each).generate_state(4)) for each in arguments}
    assert len(states) == len(arguments) == 3 * len(STREAM_PURPOSES) * 36
    draws = {np.random.default_rng(random_stream(*each)).random() for each in arguments}
    assert len(draws) == len(arguments)


def test_a_stream_is_the_same_every_time() -> None:
    first, again = (random_stream(3, "replay", 1, 2).generate_state(8) for _ in range(2))
    assert (first == again).all() and len(set(first)) == 8
    with pytest.raises(ValueError):
        random_stream(3, "unknown purpose")


def test_first_weights_draw_from_the_stream_of_weights() -> None:
    shared = Shared(Config(seed=5, hidden_size=8))
    generator = np.random.default_rng(random_stream(5, "weights"))
    first = generator.uniform(-0.5, 0.5, (8, 4))  # fan-in 4
    first = round_to_lattice(first.astype(np.float32)).reshape(-1)
    assert (shared.weights.latest()[0][:32] == first).all()
    assert (initial_weights(shared.spec, 5) == shared.weights.latest()[0]).all()


def test_thread_variables_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "7")
    limit_threads()
    assert {os.environ[name] for name in THREAD_VARIABLES} == {"1"}
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"} <= set(THREAD_VARIABLES)


def our_children() -> list[psutil.Process]:
    """Child processes other than the interpreter's own resource tracker."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if not _is_tracker(child)]


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline()) or is_gone(process.pid)
    except psutil.NoSuchProcess:
        return True


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def shared_memory_files() -> set[str]:
    folder = Path("/dev/shm")
    return {each.name for each in folder.iterdir()} if folder.is_dir() else set()


def left_over(before: set[str]) -> set[str]:
    """Return new files that stay. (Another run on this machine has one for a moment as it starts.)"""
    new = shared_memory_files() - before
    deadline = time.perf_counter() + 3
    while new and time.perf_counter() < deadline:
        time.sleep(0.05)
        new &= shared_memory_files()
    return new


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No child process, and no file of shared memory, outlives a run."""
    before = shared_memory_files()
    yield
    assert multiprocessing.active_children() == [] and our_children() == []
    assert left_over(before) == set()


def run(*roles: Role, **choices: object) -> tuple[RunResult, float]:
    """Run roles and return the result with the seconds from start to end."""
    config = Config(**{"hidden_size": 8, "steps": FOR_EVER, **choices})
    started = time.perf_counter()
    result = run_roles(config, RunProbe(), roles, Shared(config))
    return result, time.perf_counter() - started


STEPPER = Role("stepper", 0, role_functions.step, ())


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_a_run_stops_at_its_env_steps(capfd: pytest.CaptureFixture[str]) -> None:
    printer = Role("printer", 1, role_functions.print_something, ())
    result, _ = run(STEPPER, printer, steps=400, warmup_env_steps=0)
    assert (result.status, result.error) == ("completed", None)
    # Each role looks before each of its steps, so that each can overshoot by no more than one.
    assert 400 <= result.env_steps <= 401
    assert result.env_steps == sum(role.counters["env_steps"] for role in result.roles)
    assert [(role.name, role.worker) for role in result.roles] == [("stepper", 0), ("printer", 1)]
    for role in result.roles:
        assert role.threads and set(role.threads.values()) == {1}
        assert role.imports_torch is False and role.pid != os.getpid()
        assert role.start_seconds is not None and 0 < role.start_seconds < 10
    # Standard output belongs to the supervisor.
    out, err = capfd.readouterr()
    assert "by a role" not in out and err.count("by a role") == 2


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_nobody_steps_before_all_are_ready_and_the_clock_starts_then() -> None:
    early = Role("early", 0, role_functions.step_slowly_to_start, (0.0,))
    late = Role("late", 1, role_functions.step_slowly_to_start, (1.0,))
    result, seconds = run(early, late, seconds=0.3)
    first, second = (role.counters for role in result.roles)
    assert result.status == "completed"
    assert second["stored"] > first["stored"]  # ready at different times
    assert first["dropped"] >= second["stored"]  # yet the early one went on only after the late one
    assert 0.3 <= result.training_seconds <= seconds - 1.0  # the second of waiting is not in it
    assert min(first["env_steps"], second["env_steps"]) > 0
    assert all(5 < role.peak_rss_mib < 80 for role in result.roles)  # MiB, sampled twice a second


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_an_exception_in_a_role_becomes_the_runs_error() -> None:
    result, seconds = run(STEPPER, Role("faulty", 1, role_functions.fail, ()))
    assert result.status == "failed" and result.error is not None
    assert result.error.startswith("faulty-1 failed:") and "Traceback" in result.error
    assert "ValueError: planted fault 4711" in result.error and "in fail" in result.error
    assert seconds < 8 and result.final_evaluation is None


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "function, arguments, text",
    [
        (role_functions.kill_itself, (signal.SIGKILL,), "mortal-1 was ended by signal SIGKILL"),
        (role_functions.leave, (), "mortal-1 left with exit code 3 without finishing"),
    ],
)
def test_a_role_that_dies_ends_the_run(function, arguments, text) -> None:
    result, seconds = run(STEPPER, Role("mortal", 1, function, arguments))
    assert (result.status, result.error) == ("failed", text)
    assert seconds < 8


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_more_threads_than_one_are_refused_before_anything_is_trained() -> None:
    result, _ = run(Role("greedy", 0, role_functions.take_threads, ()), seconds=20.0)
    assert result.status == "failed" and result.env_steps == 0
    assert "more than one thread per library in greedy" in str(result.error)


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_dies_when_the_env_steps_are_done_is_waited_for_by_nobody() -> None:
    waiting = Role("learner", 0, role_functions.wait_for_the_gone, ())
    arguments = (int(signal.SIGKILL),)
    mortal = Role("actor", 0, role_functions.kill_itself, arguments, can_restart=True)
    result, seconds = run(waiting, mortal, steps=10_000, worker_timeout=5.0)
    assert (result.status, result.error) == ("completed", None)
    assert [death.reason for death in result.deaths] == ["was ended by signal SIGKILL"]
    assert seconds < 8


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_a_run_in_which_everybody_waits_is_ended_and_says_who_waits() -> None:
    waiters = [Role("waiter", number, role_functions.wait_for_others, ()) for number in range(2)]
    result, seconds = run(*waiters, worker_timeout=0.3, seconds=60.0)
    assert result.status == "failed" and seconds < 30
    assert "stands still: no process has worked for" in str(result.error)
    assert "waiter-0 in 'barrier', waiter-1 in 'barrier'" in str(result.error)
    # Negative control: one that works beside it.
    result, _ = run(waiters[0], STEPPER, worker_timeout=0.3, seconds=1.5)
    assert result.status == "completed" and result.error is None


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_a_role_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_SECONDS", 0.5)
    deaf = Role("deaf", 1, role_functions.ignore_stop, ())
    result, seconds = run(STEPPER, deaf, seconds=0.2, worker_timeout=0.5)
    assert result.status == "failed" and seconds < 8
    assert result.error == "deaf-1 did not stop in time and was killed"
    assert 0.2 <= result.training_seconds < 5 and is_gone(result.roles[1].pid)
    # Without a worker that could have been replaced, the run ends as it would have.
    deaf = dataclasses.replace(deaf, can_restart=True)
    result, _ = run(STEPPER, deaf, seconds=0.2, worker_timeout=0.5)
    assert (result.status, result.error) == ("completed", None)
    assert [death.reason for death in result.deaths] == ["did not stop in time and was killed"]


@pytest.mark.multiprocess
def test_children_leave_when_their_parent_is_killed(tmp_path: Path) -> None:
    before = shared_memory_files()
    code = f"import role_functions; role_functions.run_for_ever({str(tmp_path)!r})"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.perf_counter() + 30
        while len(list(tmp_path.iterdir())) < 2 and time.perf_counter() < deadline:
            time.sleep(0.02)
        pids = [int(each.name) for each in tmp_path.iterdir()]
        assert len(pids) == 2 and not any(is_gone(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait(10)
    deadline = time.perf_counter() + 3
    while not all(is_gone(pid) for pid in pids) and time.perf_counter() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if not is_gone(pid)] == []
    assert left_over(before) == set()
