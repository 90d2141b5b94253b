"""One worker of a many-writer strategy is its parent, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.supervisor import RunProbe
from common.types import RunResult
from strategies import hogwild, single

# Several target copies and enough updates for any difference in order to show in every bit.
CHOICES: dict[str, Any] = {
    "seed": 5,
    "steps": 900,
    "warmup_env_steps": 200,
    "target_update": 25,
    "batch_size": 32,
    "evaluation_min_updates": 1_000,
}


def run(strategy: Any, **choices: Any) -> RunResult:
    config = strategy.Config.for_env("CartPole-v1", **CHOICES, **choices)
    result: RunResult = strategy.train(config, RunProbe())
    assert result.error is None, result.error
    return result


@pytest.fixture(scope="module")
def baseline() -> RunResult:
    return run(single)


@pytest.mark.multiprocess
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
def test_hogwild_with_one_worker_is_single(baseline: RunResult, choices: dict[str, Any]) -> None:
    result = run(hogwild, workers=1, **choices)
    assert result.updates == baseline.updates > 150
    assert np.array_equal(result.final_weights, baseline.final_weights)
    assert result.train_returns == baseline.train_returns
    assert result.audit is not None and result.audit["writes_lost"] == 0


@pytest.mark.multiprocess
def test_the_audit_off_changes_weights_by_rounding_only(baseline: RunResult) -> None:
    without = run(single, audit=False)
    with_one_worker = run(hogwild, workers=1, audit=False)
    assert np.array_equal(without.final_weights, with_one_worker.final_weights)
    assert without.audit is not None and without.audit["enabled"] is False
    assert without.audit["writes_lost"] is None
    # Rounding is a disturbance of 1e-7 that training enlarges; the weights stay recognisably the same.
    assert np.corrcoef(without.final_weights, baseline.final_weights)[0, 1] > 0.99
