"""One worker of a many-writer strategy is its parent, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategy_runs import InProcess, run_here

# Several target copies and enough updates for any difference in order to show in every bit.
CHOICES: dict[str, Any] = {
    "seed": 5,
    "steps": 900,
    "warmup_env_steps": 200,
    "target_update": 25,
    # hogwild has another preset than its parent for these.
    "learning_rate": 1e-3,
    "learning_rate_end": 1e-4,
    "batch_size": 32,
    "hidden_size": 128,
    "evaluate_every_env_steps": 10**9,
}


def run(name: str, **choices: Any) -> InProcess:
    return run_here(name, **CHOICES, **choices)


@pytest.fixture(scope="module")
def baseline() -> InProcess:
    return run("single")


@pytest.mark.parametrize(
    "choices",
    [
        {"write": "in-place"},
        {"write": "copy-back"},
        {"write": "in-place", "lock": True},
        {"write": "in-place", "shared_optimizer": True},
    ],
    ids=["in-place", "copy-back", "lock", "shared-optimizer"],
)
def test_hogwild_with_one_worker_is_single(baseline: InProcess, choices: dict[str, Any]) -> None:
    left = run("hogwild", workers=1, **choices)
    updates = [each.telemetry.total("updates") for each in (left, baseline)]
    assert updates[0] == updates[1] > 150
    assert np.array_equal(left.weights, baseline.weights)
    assert left.telemetry.last_returns(100) == baseline.telemetry.last_returns(100) != []
    assert left.audit["writes_lost"] == 0 and left.audit["updates_issued"] == updates[0]


def test_the_audit_off_changes_weights_by_rounding_only(baseline: InProcess) -> None:
    without = run("single", audit=False)
    with_one_worker = run("hogwild", workers=1, audit=False)
    assert np.array_equal(without.weights, with_one_worker.weights)
    assert without.audit["enabled"] is False
    assert without.audit["writes_lost"] is None
    # Rounding is a disturbance of 1e-7 that training enlarges; the weights stay recognisably the same.
    assert np.corrcoef(without.weights, baseline.weights)[0, 1] > 0.99
