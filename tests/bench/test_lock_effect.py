"""The arithmetic of ``bench.lock_effect`` and ``bench.cost``, and tiny real measurements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench import cost, lock_effect


def summary(final: float, solved_at: int | None, lost: float) -> dict[str, Any]:
    returns = {"eval_mean": final, "solved_at_env_steps": solved_at}
    return {"returns": returns, "audit": {"lost_fraction": lost}, "env_steps_per_second": 1_500.0}


def test_the_interval_of_a_median_holds_the_median_and_tightens() -> None:
    generator = np.random.default_rng(0)
    few, many = generator.normal(100, 10, 10), generator.normal(100, 10, 400)
    for values in (few, many):
        low, high = lock_effect.interval(lock_effect.resampled_medians(values))
        assert low <= np.median(values) <= high and low <= 100 <= high
    # The standard error of the median of n normal values is 1.2533 sigma / sqrt(n).
    assert high - low == pytest.approx(2 * 1.96 * 1.2533 * 10 / math.sqrt(400), rel=0.25)


def test_a_row_counts_runs_that_never_solved() -> None:
    runs = [summary(500.0, 12_000, 0.1), summary(480.0, 20_000, 0.2), summary(90.0, None, 0.3)]
    row = lock_effect.table_row("copy-back", False, runs)
    assert row.startswith("| copy-back | no | 3 | 0.2 (0.1 to 0.3) | 480.0 (90.0 to 500.0) | 2 |")
    assert "| 20,000 (12,000 to not solved) | 1,500 |" in row


@pytest.mark.parametrize("gap, shown", [(0.0, "no difference shown"), (200.0, "a difference is shown")])
def test_a_difference_is_shown_where_there_is_one(gap: float, shown: str) -> None:
    finals = np.random.default_rng(1).normal(250, 10, 8)
    unlocked = [summary(value, None, 0.5) for value in finals]
    locked = [summary(value + gap, None, 0.0) for value in finals]
    text = lock_effect.verdict("copy-back", unlocked, locked)
    assert text.startswith("copy-back: median final return with the lock minus without")
    assert text.endswith(shown)


def test_the_cost_is_the_median_of_the_pairs_ratios() -> None:
    # The machine slows down to half meanwhile: the medians of the columns would say 0.6.
    row = cost.table_row("apex", [(900.0, 1000.0), (480.0, 500.0), (450.0, 500.0)])
    assert row == "| `apex` | 480 | 500 | 0.900 | 0.900 | 0.960 |"
    assert cost.workers_of("single") == {}
    assert cost.workers_of("hogwild")["workers"] >= cost.workers_of("apex")["workers"] >= 1


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_the_cost_is_measured() -> None:
    choices = ["--strategy", "single", "--strategy", "hogwild", "--rounds", "1", "--seconds", "2"]
    result = CliRunner().invoke(cost.main, choices)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.split("\n") if line.startswith("| `")]
    assert [row.split("|")[1].strip() for row in rows] == ["`single`", "`hogwild`"]
    assert all(0.2 < float(row.split("|")[4]) < 5 for row in rows)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_the_effect_is_measured() -> None:
    choices = ["--seeds", "1", "--copy-back-seeds", "1", "--steps", "2500"]
    result = CliRunner().invoke(lock_effect.main, choices)
    assert result.exit_code == 0, result.output
    rows = [line.split("|")[1:-1] for line in result.output.split("\n") if line.startswith("| ")][1:]
    assert [(row[0].strip(), row[1].strip()) for row in rows] == [
        (write, "yes" if lock else "no") for write, lock in lock_effect.WAYS
    ]
    shares = [float(row[3].split()[0]) for row in rows]
    assert shares[1] == shares[3] == 0 and shares[2] > 0.05
