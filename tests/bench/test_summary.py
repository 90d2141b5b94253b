"""The summary's arithmetic, from hand-made reports."""

from pathlib import Path

import pytest

from bench.runner import Recorder
from bench.summary import RunFacts, _activities, _processes
from common.config import Config
from common.telemetry import ACTIVITIES
from common.types import Before, RoleReport


def test_waiting_at_the_barrier_is_told_apart_by_process():
    none = dict.fromkeys(ACTIVITIES, 0.0)
    fast = RoleReport(
        "actor", 0, wall_seconds=4.0, activities={**none, "env_step": 1.0, "barrier": 3.0}
    )
    slow = RoleReport("actor", 1, wall_seconds=4.0, activities={**none, "env_step": 3.0})
    by_process = _activities([fast, slow], lambda role: f"{role.name}-{role.worker}")
    by_role = _activities([fast, slow], lambda role: role.name)
    assert by_process["actor-0"]["barrier"] == pytest.approx(0.75)
    assert by_process["actor-1"] == pytest.approx({"env_step": 0.75, "other": 0.25})
    assert by_role["actor"] == pytest.approx({"env_step": 4 / 8, "barrier": 3 / 8, "other": 1 / 8})


def facts_of_a_machine(usable_cores: int) -> RunFacts:
    return RunFacts(
        run_id="r",
        folder=Path("r"),
        started_at="now",
        wall_seconds=9.0,
        threshold=None,
        supervisor_rss_mib=0.0,
        machine={"usable_cores": usable_cores},
        versions={},
        commit=None,
    )


def test_cpu_utilisation_is_of_the_cores_that_the_processes_can_use():
    roles = [
        RoleReport("learner", 0, cpu_seconds=4.0),
        RoleReport("actor", 0, cpu_seconds=1.0),
        RoleReport("actor", 1, cpu_seconds=3.0),
    ]
    result = Recorder(None, []).failed_result("")  # type: ignore[arg-type]
    result.training_seconds, result.roles = 5.0, roles
    config = Config(workers=2)
    two_cores = _processes(config, result, facts_of_a_machine(2))
    assert two_cores["cpu_seconds"] == {"learner": 4.0, "actor": 4.0}
    assert two_cores["cpu_utilisation"] == pytest.approx(8 / (5 * 2))
    many_cores = _processes(config, result, facts_of_a_machine(64))
    assert many_cores["cpu_utilisation"] == pytest.approx(8 / (5 * 3))
    # The earlier parts of a resumed run had processes of their own.
    result.training_seconds, result.before = 50.0, Before(training_seconds=45.0)
    assert _processes(config, result, facts_of_a_machine(2))["cpu_utilisation"] == pytest.approx(0.8)
    roles[2].restarts = 1  # what the first one used is not known
    restarted = _processes(config, result, facts_of_a_machine(2))
    assert restarted["cpu_seconds"] == {"learner": 4.0, "actor": None}
    assert restarted["cpu_utilisation"] is None
    roles[2].restarts = 0
    roles[1].cpu_seconds = None  # killed: unknown, not zero
    one_killed = _processes(config, result, facts_of_a_machine(2))
    assert one_killed["cpu_seconds"] == {"learner": 4.0, "actor": None}
    assert one_killed["cpu_utilisation"] is None
