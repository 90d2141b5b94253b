"""What is said of deaths: in the summary, at the end of a run, and while it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from bench.display import _deaths, death_text, make_display
from bench.recorder import Recorder
from bench.summary import _experience, _processes
from common.config import Config
from common.events import EventLog
from common.types import NOTHING_BEFORE, Death, RoleReport, RunResult

TRACEBACK = 'Traceback (most recent call last):\n  File "env.py", line 3\nValueError: no\n'
DEATHS = [Death("actor", 1, "was ended by signal SIGKILL", 2_000), Death("actor", 0, TRACEBACK, 3_000)]


def make_result(**values: Any) -> RunResult:
    nothing: dict[str, Any] = dict.fromkeys(RunResult.__dataclass_fields__)
    lists = (
        "evaluations",
        "train_returns",
        "health",
        "alarms",
        "deaths",
        "roles",
        "consumed_by_worker",
    )
    fixed = {name: [] for name in lists}
    fixed |= {"histograms": {}, "lengths": {}, "final_weights": np.zeros(1), "shared_mib": 1.0}
    fixed["before"] = NOTHING_BEFORE
    return RunResult(**{**nothing, **fixed, **values})


def actor(worker: int, restarts: int, has_ended: bool) -> RoleReport:
    counters = {"env_steps": 100, "stored": 90, "dropped": 0}
    return RoleReport(
        "actor",
        worker,
        restarts=restarts,
        imports_torch=False if has_ended else None,
        counters=counters,
    )


@pytest.mark.parametrize(
    "roles, lives",
    [([(0, True), (0, True)], 0), ([(2, True), (0, True)], 2), ([(1, False), (0, False)], 3)],
)
def test_every_life_that_did_not_come_to_its_end_may_have_cost_a_chunk(
    roles: list[tuple[int, bool]], lives: int
) -> None:
    config = Config(workers=2, envs_per_worker=4, chunk_steps=8, n_step=3)
    reports = [actor(worker, *each) for worker, each in enumerate(roles)]
    learner = RoleReport("learner", 0, imports_torch=None, counters={})
    experience = _experience(
        config, make_result(roles=[learner, *reports], in_flight_at_end=20), True, True
    )
    assert experience["unpublished_at_most"] == lives * 4 * (8 + 3)
    assert experience["collected"] == experience["stored"] + experience["in_flight_at_end"] == 200


def test_the_summary_lists_the_deaths() -> None:
    result = make_result(
        deaths=DEATHS, restarts=2, evaluator_rss_mib=41.5, training_seconds=1.0, roles=[]
    )

    class Facts:
        supervisor_rss_mib = 40.0
        machine: ClassVar[dict[str, int]] = {"usable_cores": 2}

    processes = _processes(Config(), result, Facts())  # type: ignore[arg-type]
    assert (processes["restarts"], processes["evaluator_rss_mib"]) == (2, 41.5)
    assert processes["deaths"] == [
        {"role": "actor", "worker": 1, "reason": "was ended by signal SIGKILL", "at_env_steps": 2_000},
        {"role": "actor", "worker": 0, "reason": TRACEBACK, "at_env_steps": 3_000},
    ]
    assert json.loads(json.dumps(processes)) == processes
    assert _deaths(processes) == "actor-1, actor-0; restarts: 2"
    processes["deaths"] *= 2
    assert _deaths(processes) == "actor-1 (2 times), actor-0 (2 times); restarts: 2"
    assert _deaths({"deaths": [], "restarts": 0}) == ""


def test_a_death_is_said_with_its_reason_and_what_follows() -> None:
    assert death_text(DEATHS[0], "restarted (1 of at most 3 times)") == (
        "actor-1 was ended by signal SIGKILL at 2,000 env steps: restarted (1 of at most 3 times)"
    )
    text = death_text(DEATHS[1], "the run ends")
    assert text.startswith("actor-0 failed at 3,000 env steps: the run ends\nTraceback")
    assert text.endswith("ValueError: no")


def test_deaths_reach_the_terminal_and_the_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    recorder = Recorder(log, [make_display("apex", Config())])
    for death in DEATHS:
        recorder.on_death(death, "restarted")
    recorder.on_final_evaluation(100)
    log.close()
    out, err = capsys.readouterr()
    assert "playing 100 episodes with the final weights" in err
    assert out == "" and "actor-1 was ended by signal SIGKILL" in err and TRACEBACK.rstrip() in err
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["worker"], row["outcome"]) for row in rows] == [
        ("death", 1, "restarted"),
        ("death", 0, "restarted"),
    ]
