"""The summary's arithmetic, from hand-made reports."""

import pytest

from bench.summary import _activities
from common.telemetry import ACTIVITIES
from common.types import RoleReport


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
