from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import racing
from racing import make_probe

from common import probe as module
from common.config import Config
from common.events import EventLog, NullObserver
from common.probe import Probe
from common.telemetry import EPISODES_KEPT, WORD, WORDS_PER_ROLE, Telemetry


def config(**choices: Any) -> Config:
    fixed: dict[str, Any] = {"steps": 1_000_000, "warmup_env_steps": 0}
    return Config(**{**fixed, **choices})


def test_every_word_has_its_own_place() -> None:
    telemetry = Telemetry(3)
    assert len(set(WORD.values())) == len(WORD)
    words = telemetry.arrays["words"]
    probe = Probe(telemetry, 1, config())
    for i, name in enumerate(WORD):
        probe.set(name, 100 + i)
    for i, name in enumerate(WORD):
        assert telemetry.word(1, name) == telemetry.total(name) == 100 + i
    # No word of another process changed, and no two processes share a cache line.
    assert not words[0].any()
    assert not words[2].any()
    assert words[0].ctypes.data % 64 == words[1].ctypes.data % 64 == 0


def test_counters_add_up() -> None:
    telemetry = Telemetry(3)
    probes = [Probe(telemetry, role, config()) for role in range(3)]
    for role, probe in enumerate(probes):
        for _ in range(role + 1):
            probe.count("env_steps", 10)
            probe.count("stored")
        probe.count_update()
    assert probes[0].env_steps == telemetry.total("env_steps") == 60
    assert [telemetry.word(role, "stored") for role in range(3)] == [1, 2, 3]
    assert probes[1].updates == telemetry.total("updates") == 3
    probes[2].count("env_steps", -5)
    assert probes[0].env_steps == 55


@pytest.mark.multiprocess
def test_eight_processes_count_exactly() -> None:
    telemetry, flags = Telemetry(8), racing.make_flags()
    targets = [
        (racing.count_up, flags, Probe(telemetry, role, config()), role, 10_000) for role in range(8)
    ]
    with racing.children(*targets) as processes:
        pass
    assert [process.exitcode for process in processes] == [0] * 8
    assert telemetry.total("env_steps") == 80_000
    assert telemetry.total("stored") == 160_000
    assert [telemetry.word(role, "env_steps") for role in range(8)] == [10_000] * 8


def test_the_first_update_opens_the_steady_window() -> None:
    telemetry, probe = make_probe(config())
    probe.count("env_steps", 500)
    probe.set("held_ns", 70)
    before = time.perf_counter_ns()
    probe.count_update()
    opened = telemetry.word(0, "first_update_ns")
    assert before <= opened <= time.perf_counter_ns()
    probe.count("env_steps", 500)
    probe.count_update()
    assert telemetry.word(0, "env_steps_at_first_update") == 500
    assert telemetry.word(0, "held_ns_at_first_update") == 70
    assert telemetry.word(0, "first_update_ns") == opened
    assert telemetry.word(0, "updates") == 2


class FakeTime:
    """A clock that moves only when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 5_000_000_000
        self.sleeps = 0
        self.after_sleep: Callable[[int], None] = lambda sleeps: None
        monkeypatch.setattr(module, "time", self)

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def process_time(self) -> float:
        return 1.5

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.sleeps += 1
        self.after_sleep(self.sleeps)


def test_time_is_booked_to_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch)
    telemetry, probe = make_probe(config())
    clock.now_ns += 1_000
    probe.spent("env_step")  # before the common start: start-up, booked to nothing
    assert not probe.should_stop()
    for _ in range(3):
        clock.now_ns += 40
        probe.spent("env_step")
        clock.now_ns += 7
        probe.spent("update")
    probe.wait()
    assert telemetry.word(0, "env_step") == 120
    assert telemetry.word(0, "update") == 21
    assert telemetry.word(0, "wait") == 200_000
    assert telemetry.word(0, "act") == 0


def test_the_last_episodes_are_kept() -> None:
    telemetry, probe = make_probe(config())
    assert telemetry.last_returns(5) == []
    number = EPISODES_KEPT + 40
    episodes = [(float(i), i) for i in range(number)]
    for start in range(0, number, 7):
        chunk = episodes[start : start + 7]
        probe.record_episodes(chunk)
        assert chunk == []
    assert telemetry.word(0, "episodes") == number
    assert telemetry.last_returns(5) == [295.0, 294.0, 293.0, 292.0, 291.0]
    assert telemetry.last_returns(10_000) == [float(i) for i in range(number - 1, 39, -1)]
    assert telemetry.arrays["episodes"][0, 10].tolist() == [266.0, 266.0]


def test_processes_share_the_last_returns_by_their_episodes() -> None:
    telemetry = Telemetry(3)
    for role, number in enumerate((30, 0, 90)):
        episodes = [(role * 1000.0 + i, 1) for i in range(number)]
        Probe(telemetry, role, config()).record_episodes(episodes)
    returns = telemetry.last_returns(40)
    assert sorted(returns) == [*map(float, range(20, 30)), *map(float, range(2060, 2090))]
    assert len(telemetry.last_returns(100_000)) == 120
    assert len(telemetry.last_returns(7)) == 7


def test_a_probe_can_be_pickled_with_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry, probe = make_probe(config(evaluate_every_env_steps=10), roles=2, role=1)
    # The shared memory itself travels only with a process; here the same object comes back.
    monkeypatch.setattr(Telemetry, "__reduce__", lambda self: (lambda_of(telemetry), ()))
    probe.count("env_steps", 3)
    again = pickle.loads(pickle.dumps(probe))
    again.count("env_steps", 4)
    assert telemetry.word(1, "env_steps") == probe.env_steps == 7
    assert not again.evaluation_is_due()
    again.count("env_steps", 3)
    again.count("updates", 100)
    assert again.evaluation_is_due()


KEPT: dict[str, Telemetry] = {}


def kept() -> Telemetry:
    return KEPT["telemetry"]


def lambda_of(telemetry: Telemetry) -> Any:
    KEPT["telemetry"] = telemetry
    return kept


def test_it_stops_at_the_steps_or_at_the_flag() -> None:
    telemetry, probe = make_probe(config(steps=100))
    other = Probe(telemetry, 0, config(steps=100))
    assert not probe.should_stop()
    other.count("env_steps", 60)
    assert not probe.should_stop(39)
    assert probe.should_stop(40)  # its own steps that are not published count too
    assert not probe.should_stop()
    other.count("env_steps", 40)
    assert probe.should_stop()

    telemetry, probe = make_probe(config())
    assert not probe.should_stop()
    telemetry.set_control("stop", 1)
    assert probe.should_stop()
    assert telemetry.word(0, "heartbeat_ns") <= time.perf_counter_ns()


def test_nobody_starts_before_everybody_is_ready() -> None:
    telemetry = Telemetry(2)
    first, second = (Probe(telemetry, role, config()) for role in range(2))
    thread = threading.Thread(target=first.should_stop, daemon=True)
    thread.start()
    racing.wait_until(lambda: telemetry.word(0, "ready_ns") > 0)
    time.sleep(0.02)
    assert thread.is_alive()
    assert telemetry.word(0, "started_ns") == 0
    assert not second.should_stop()
    thread.join(5)
    assert not thread.is_alive()
    assert telemetry.word(0, "started_ns") >= telemetry.word(1, "ready_ns") > 0

    telemetry = Telemetry(2)  # the other one never comes: stopping ends the wait
    thread = threading.Thread(target=Probe(telemetry, 0, config()).should_stop, daemon=True)
    thread.start()
    telemetry.set_control("stop", 1)
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.multiprocess
def test_the_supervisor_holds_a_process_and_lets_it_go() -> None:
    telemetry, probe = make_probe(config())
    flags = racing.make_flags()
    words = flags["flags"]
    with racing.children((racing.beat, flags, probe)) as (process,):
        racing.wait_until(lambda: words[racing.READY] > 10)
        assert telemetry.word(0, "is_held") == 0
        telemetry.set_control("pause", 1)
        racing.wait_until(lambda: telemetry.word(0, "is_held") == 1)
        stands_at, heartbeat = int(words[racing.READY]), telemetry.word(0, "heartbeat_ns")
        time.sleep(0.1)
        racing.wait_until(lambda: telemetry.word(0, "heartbeat_ns") > heartbeat)  # not hung
        assert words[racing.READY] == stands_at
        telemetry.set_control("pause", 0)
        racing.wait_until(lambda: words[racing.READY] > stands_at + 10)
        assert telemetry.word(0, "is_held") == 0
        assert telemetry.word(0, "held_ns") >= 0.1e9
        assert telemetry.word(0, "evaluation") == telemetry.word(0, "held_ns")
        telemetry.set_control("stop", 1)
        process.join(10)
    assert words[racing.DONE] == 1
    assert process.exitcode == 0


def test_time_on_hold_is_booked_to_no_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch)
    telemetry, probe = make_probe(config())
    assert not probe.should_stop()
    telemetry.set_control("pause", 1)
    clock.after_sleep = lambda sleeps: telemetry.set_control("pause", int(sleeps < 30))
    clock.now_ns += 11
    assert not probe.should_stop()
    clock.now_ns += 5
    probe.spent("act")
    assert telemetry.word(0, "act") == 16
    assert telemetry.word(0, "held_ns") == telemetry.word(0, "evaluation") == 30_000_000
    assert telemetry.word(0, "is_held") == 0


def evaluate(telemetry: Telemetry, probe: Probe) -> int:
    """Have an evaluation done at once and return the request's number."""
    done = telemetry.word(0, "evaluations_requested") + 1
    telemetry.set_control("evaluations_done", done)
    probe.evaluate()
    return telemetry.word(0, "evaluations_requested")


def test_evaluations_are_due_by_env_steps_and_updates_apart() -> None:
    choices = config(evaluate_every_env_steps=1000, evaluation_min_updates=50)
    telemetry, probe = make_probe(choices)
    probe.count("updates", 500)
    probe.count("env_steps", 999)
    assert not probe.evaluation_is_due()
    probe.count("env_steps")
    assert probe.evaluation_is_due()
    assert evaluate(telemetry, probe) == 1
    assert not probe.evaluation_is_due()
    probe.count("env_steps", 1000)  # env steps are enough, updates are not
    probe.count("updates", 49)
    assert not probe.evaluation_is_due()
    probe.count("updates")
    assert probe.evaluation_is_due()
    # One that came late, past several due moments, counts for all of them.
    probe.count("env_steps", 3700)
    assert probe.evaluation_is_due()
    assert evaluate(telemetry, probe) == 2
    probe.count("updates", 500)
    assert not probe.evaluation_is_due()  # 5,700; the next is at 6,000
    probe.count("env_steps", 299)
    assert not probe.evaluation_is_due()
    probe.count("env_steps", 1)
    assert probe.evaluation_is_due()


def test_the_first_evaluation_waits_for_enough_updates_too() -> None:
    _, probe = make_probe(config(evaluate_every_env_steps=10, evaluation_min_updates=50))
    probe.count("env_steps", 100)
    assert not probe.evaluation_is_due()
    probe.count("updates", 50)
    assert probe.evaluation_is_due()


def test_who_asks_for_an_evaluation_waits_until_it_is_done() -> None:
    for ends_by in ("evaluations_done", "stop"):
        telemetry, probe = make_probe(config())
        thread = threading.Thread(target=probe.evaluate, daemon=True)
        thread.start()
        racing.wait_until(lambda telemetry=telemetry: telemetry.word(0, "is_held") == 1)
        assert telemetry.word(0, "evaluations_requested") == 1
        time.sleep(0.02)
        assert thread.is_alive()
        telemetry.set_control(ends_by, 1)
        thread.join(5)
        assert not thread.is_alive()
        assert telemetry.word(0, "is_held") == 0
        assert telemetry.word(0, "held_ns") > 0.015e9


def test_it_also_waits_for_the_end_of_the_pause() -> None:
    telemetry, probe = make_probe(config())
    telemetry.set_control("pause", 1)
    telemetry.set_control("evaluations_done", 1)
    thread = threading.Thread(target=probe.evaluate, daemon=True)
    thread.start()
    time.sleep(0.02)
    assert thread.is_alive()
    telemetry.set_control("pause", 0)
    thread.join(5)
    assert not thread.is_alive()


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("tick", env_steps=3, returns=[1.0, 2.5])
    lines = (tmp_path / "events.jsonl").read_text().splitlines()  # before it is closed
    assert [json.loads(line) for line in lines] == [
        {"kind": "tick", "env_steps": 3, "returns": [1.0, 2.5]}
    ]
    log.write("evaluation", text="zwölf\nlines")
    log.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1])["text"] == "zwölf\nlines"


def test_a_null_observer_hears_nothing() -> None:
    observer = NullObserver()
    assert observer.on_tick(1, 2, 3.0, []) is None  # type: ignore[func-returns-value]
    assert observer.on_evaluation(None, True) is None  # type: ignore[arg-type, func-returns-value]
    assert np.int64(WORDS_PER_ROLE) % 8 == 0
