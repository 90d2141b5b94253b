"""Environments that misbehave: each has its stated outcome (docs/explanation/faults.md lists them)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from common import children
from common.experience import ExperienceBuffer
from common.processes import Role
from common.supervisor import RunProbe, Shared, run_roles
from common.types import RunResult
from strategies import apex, single

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]
WORKERS = 2


class Outcome(NamedTuple):
    """What is stated.

    Attributes:
        status: of the run.
        deaths: of the workers.
        says: words in the run's error, or in the only death of a run that completes.
    """

    status: str
    deaths: int
    says: str = ""


# With one restart per worker. A fault that every life repeats kills one worker twice and, on the way,
# the other one once or twice; an exception then ends the run, anything else when no worker is left.
REPEATED = "repeated exception"
LOST = "all workers lost"
OUTCOMES: dict[str, tuple[str, str]] = {
    "StepRaises": (REPEATED, "RuntimeError: the step went wrong"),
    "ResetRaises": (REPEATED, "RuntimeError: the reset went wrong"),
    "NanObservation": (REPEATED, "an observation that is not finite"),
    "InfiniteObservation": (REPEATED, "an observation that is not finite"),
    "NanReward": (REPEATED, "a reward that is not finite"),
    "InfiniteReward": (REPEATED, "a reward that is not finite"),
    "WrongShape": (REPEATED, "shape"),
    "TextObservation": (REPEATED, "Cannot cast array data"),
    "TextReward": (REPEATED, "could not convert string"),
    "RaisesSystemExit": (REPEATED, "SystemExit: the environment has had enough"),
    "ExitsProcess": (LOST, "left with exit code 3"),
    "Segfaults": (LOST, "was ended by signal SIGSEGV"),
    "BlocksInStep": (LOST, "gave no sign of life for 1 s"),
    "BlocksInReset": (LOST, "while it started"),
    "ClosesFiles": (LOST, "its line to the supervisor"),
}
HARMLESS = ("Prints", "DoubleObservation", "HugeReward", "NegativeReward", "Leaks", "LeavesThreads")


def act(env: str, seconds: float = 2.0, **choices: Any) -> tuple[RunResult, float]:
    """Let the actors of apex act, without a learner: what becomes of them is what matters."""
    fixed = {"workers": WORKERS, "envs_per_worker": 1, "hidden_size": 8, "warmup_env_steps": 0}
    fixed |= {"max_restarts": 1, "worker_timeout": 1.0, "replay_ratio": "free", "steps": 10**12}
    config = apex.Config.for_env(f"badenvs:{env}-v0", **{**fixed, "seconds": seconds, **choices})
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    roles = [
        Role("actor", worker, apex.actor, (buffer, shared.weights, worker), can_restart=True)
        for worker in range(WORKERS)
    ]
    started = time.perf_counter()
    return run_roles(config, RunProbe(), roles, shared, buffer), time.perf_counter() - started


@pytest.mark.parametrize("env", OUTCOMES)
def test_what_every_life_repeats_ends_the_run(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "START_SECONDS", 4.0)
    result, seconds = act(env, seconds=30.0)
    kind, says = OUTCOMES[env]
    assert result.status == "failed" and result.error is not None and seconds < 25
    assert says in result.error and all(says in death.reason for death in result.deaths)
    assert result.error.startswith("no worker is left: ") == (kind == LOST)
    assert result.error.count("Traceback (most") == (kind == REPEATED)
    most = (
        2 * WORKERS if env != "BlocksInReset" else WORKERS
    )  # who hangs at the start is not tried again
    assert 2 <= len(result.deaths) <= most
    assert result.env_steps == result.total("dropped") + result.in_flight_at_end


@pytest.mark.parametrize("env", HARMLESS)
def test_what_is_odd_and_harms_nobody_goes_on(env: str, capfd: pytest.CaptureFixture[str]) -> None:
    result, seconds = act(env)
    assert (result.status, result.error, result.deaths) == ("completed", None, [])
    assert result.env_steps > 500 and result.final_evaluation is not None
    assert seconds < 20, "threads that were left hold nobody up"
    out, _ = capfd.readouterr()
    assert "environment" not in out.replace("made an environment", ""), "children print elsewhere"
    peak = max(role.peak_rss_mib for role in result.roles)
    assert (peak > 100) == (env == "Leaks"), "the summary shows who grows"


@pytest.mark.parametrize("env, status", [("NegativeReward", "completed"), ("HugeReward", "failed")])
def test_learning_from_odd_rewards(env: str, status: str) -> None:
    choices = {"steps": 1_500, "hidden_size": 8, "evaluation_episodes": 2, "n_step": 3}
    config = single.Config.for_env(f"badenvs:{env}-v0", **choices)
    result = single.train(config, RunProbe())
    assert result.status == status and result.deaths == []
    assert np.isfinite(result.final_weights).all()
    if status == "failed":
        assert result.error is not None and "became NaN or infinite" in result.error
        assert [alarm.name for alarm in result.alarms] == ["not finite"]
    else:
        assert result.updates > 100


def test_what_happens_once_costs_one_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAISED_ONCE", str(tmp_path / "raised"))
    result, _ = act("RaisesOnce", seconds=3.0)
    assert (result.status, result.restarts, len(result.deaths)) == ("completed", 1, 1)
    assert "RuntimeError: the step went wrong, once" in result.deaths[0].reason
    assert result.env_steps > 500 and result.final_evaluation is not None


@pytest.mark.parametrize(
    "env, says", [("EvaluationRaises", "step went wrong"), ("EvaluationWaits", "no sign")]
)
def test_what_goes_wrong_in_an_evaluation_is_tried_again_and_then_ends_the_run(
    env: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from common import evaluator

    monkeypatch.setattr(evaluator, "START_SECONDS", 20.0)
    result, seconds = act(env, seconds=0.5)
    assert result.status == "failed" and result.error is not None and seconds < 60
    assert result.error.startswith("the evaluation failed:") and says in result.error
    assert [(death.role, says in death.reason) for death in result.deaths] == [("evaluator", True)] * 2
    assert result.env_steps > 100 and result.final_evaluation is None
