"""A process is killed, or stopped, at one exact place: in the lock, at the barrier, half-way through a
publish or an update. Real strategies, real processes.
"""

from __future__ import annotations

import zlib
from typing import Any

import kill_harness
import numpy as np
import pytest
from kill_harness import Ended
from watched_roles import FAULTS, TORN_PULLS, TRANSITIONS, VERSIONS, WRONG_TRANSITIONS, Fault

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.timeout(300)]

ROW = "experience.SegmentWriter.write"
CHUNK = "experience.SegmentWriter._publish"
COUNT = "probe.Probe.count"  # of env steps: the next store shows the rows
ARRIVE, BEGIN = "barrier.RoundBarrier.arrive", "barrier.RoundBarrier.begin"
PUBLISH = "weights.SharedWeights.publish"
UPDATE = "audit.MasterWriter.apply"
HOLD = "probe.Probe._hold_while"
EVALUATE = "probe.Probe.evaluate"
LOCK = {"lock": True}

# (strategy, role, fault, choices)
OF_WORKERS: list[tuple[str, str, Fault, dict[str, Any]]] = [
    ("apex", "actor-0", Fault("experience:1", ROW, 30), {}),
    ("apex", "actor-0", Fault("experience:1", CHUNK, 3), {}),
    ("apex", "actor-1", Fault("after", COUNT, 3), {}),
    ("apex", "actor-1", Fault("before", HOLD, 1), {}),
    ("impala", "actor-0", Fault("after", COUNT, 3), {}),
    ("impala", "actor-1", Fault("experience:1", ROW, 25), {}),
    ("sync", "actor-0", Fault("before", ARRIVE, 5), {}),
    ("sync", "actor-0", Fault("barrier:1", ARRIVE, 5), {}),
    ("sync", "actor-1", Fault("after", ARRIVE, 5), {}),
    ("hogwild", "actor_learner-0", Fault("half", UPDATE, 10), LOCK),
    ("hogwild", "actor_learner-1", Fault("audit:1", UPDATE, 10), {}),
    ("hogwild", "actor_learner-1", Fault("audit:2", UPDATE, 10), {"write": "copy-back"}),
    ("hogwild", "actor_learner-0", Fault("before", EVALUATE, 1), {"evaluate_every_env_steps": 200}),
    ("hogwild", "actor_learner-0", Fault("before", HOLD, 1), {}),
    ("a3c", "actor_learner-0", Fault("half", UPDATE, 10), LOCK),
    ("a3c", "actor_learner-0", Fault("weights:1", PUBLISH, 1), {"target_update": 10.0}),
    ("a3c", "actor_learner-0", Fault("half", PUBLISH, 2), {"target_update": 10.0}),
    ("a3c", "actor_learner-0", Fault("weights:2", PUBLISH, 1), {"target_update": 10.0}),
    ("a3c", "actor_learner-1", Fault("after", COUNT, 4), {}),
]
OF_LEARNERS: list[tuple[str, str, Fault]] = [
    ("apex", "learner-0", Fault("weights:1", PUBLISH, 30)),
    ("apex", "learner-0", Fault("half", PUBLISH, 30)),
    ("impala", "learner-0", Fault("weights:2", PUBLISH, 30)),
    ("apex", "learner-0", Fault("half", UPDATE, 30)),
    ("sync", "learner-0", Fault("barrier:1", BEGIN, 9)),
    ("sync", "learner-0", Fault("half", UPDATE, 9)),
    ("single", "actor_learner-0", Fault("half", UPDATE, 200)),
]
HANGS: list[tuple[str, str, Fault, dict[str, Any]]] = [
    ("hogwild", "actor_learner-1", Fault("half", UPDATE, 10, "SIGSTOP"), LOCK),
    ("a3c", "actor_learner-1", Fault("half", UPDATE, 10, "SIGSTOP"), LOCK),
    ("sync", "actor-0", Fault("barrier:1", ARRIVE, 5, "SIGSTOP"), {}),
    ("apex", "actor-0", Fault("experience:1", CHUNK, 3, "SIGSTOP"), {}),
    ("apex", "actor-1", Fault("before", HOLD, 1, "SIGSTOP"), {}),
]


def named(case: Any) -> str:
    return f"{case[0]}-{case[1]}-{case[2].function.split('.')[-1]}-{case[2].place}-{case[2].how}"


def check(ended: Ended) -> None:
    """What holds wherever the fault was."""
    result, counts = ended.result, ended.counts
    assert counts[FAULTS] == 1, "the place was reached"
    assert counts[TRANSITIONS] > 100 and counts[WRONG_TRANSITIONS] == 0 == counts[TORN_PULLS]
    assert result.env_steps == ended.accounted and np.isfinite(result.final_weights).all()
    assert ended.left == [] and len(result.deaths) == 1


@pytest.mark.parametrize("case", OF_WORKERS, ids=named)
def test_a_worker_killed_there_is_replaced(case: tuple[str, str, Fault, dict[str, Any]]) -> None:
    name, role, fault, choices = case
    ended = kill_harness.train(name, faults={role: fault}, **choices)
    result = ended.result
    assert (result.status, result.error, result.restarts) == ("completed", None, 1)
    check(ended)
    died = next(each for each in result.roles if f"{each.name}-{each.worker}" == role)
    assert died.restarts == 1 and result.env_steps > result.deaths[0].at_env_steps
    assert result.audit is not None and result.audit["auditable"]
    in_update = fault.function == UPDATE
    assert result.audit["writes_uncertain"] == in_update * result.audit["elements"]
    if choices.get("lock"):
        assert result.audit["writes_lost"] == 0
    assert len(result.evaluations) >= (fault.function in (HOLD, EVALUATE))


@pytest.mark.parametrize("case", OF_LEARNERS, ids=named)
def test_a_learner_killed_there_ends_the_run_with_whole_weights(case: tuple[str, str, Fault]) -> None:
    name, role, fault = case
    ended = kill_harness.train(name, faults={role: fault})
    result, weights = ended.result, ended.shared.weights
    assert result.status == "failed" and result.error == f"{role} was ended by signal SIGKILL"
    check(ended)
    # The weights that are kept are those of one version: published, or about to be.
    versions = [weights.version, weights.version + 1]
    known = [ended.checksum[version % VERSIONS] for version in versions]
    first = np.array_equal(result.final_weights, result.best_weights) and weights.version == 0
    assert zlib.crc32(result.final_weights.tobytes()) in known or first
    assert ended.shared.master.is_torn == (fault.place == "half" and fault.function == UPDATE)


@pytest.mark.parametrize("case", HANGS, ids=named)
def test_a_worker_that_stops_there_holds_nobody_up_for_longer_than_the_timeout(
    case: tuple[str, str, Fault, dict[str, Any]],
) -> None:
    name, role, fault, choices = case
    ended = kill_harness.train(name, faults={role: fault}, worker_timeout=3.0, **choices)
    result = ended.result
    assert (result.status, result.error, result.restarts) == ("completed", None, 1)
    check(ended)
    assert result.deaths[0].reason == "gave no sign of life for 3 s and was killed"
    assert result.audit is not None and not (choices and result.audit["writes_lost"])
    # Nobody else died of waiting, and all worked on after it.
    assert result.env_steps > result.deaths[0].at_env_steps
