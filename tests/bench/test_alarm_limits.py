"""How near runs came to the alarms' limits: the arithmetic, tiny real runs, and the kept rows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import strategies
from bench import alarm_limits
from bench.alarm_limits import DIVERGING, held_strain, label, make_row, tables
from common.alarms import RULES, AlarmJudge
from common.telemetry import HEALTH
from docs.generate.measured import kept

HEALTHY = {**dict.fromkeys(HEALTH, 1.0), "q_bound": 100.0, "dormant_fraction": 0.2}
DIVERGENCE, AT_ONCE = RULES[0], RULES[1]


def samples(largest: list[float], mean: float = 200.0) -> list[dict[str, float]]:
    return [
        {**HEALTHY, "q_max": value, "q_mean": mean, "env_steps": float(i)}
        for i, value in enumerate(largest)
    ]


def test_a_strain_counts_as_long_as_it_is_held() -> None:
    # By hand: the lowest of each three running are 30, 60, 60 and 135; the limit is 150.
    run = samples([30.0, 300.0, 60.0, 240.0, 135.0, 150.0])
    assert held_strain(DIVERGENCE, run) == pytest.approx(0.9)
    assert held_strain(AT_ONCE, run) == pytest.approx(300 / 1_000)
    assert held_strain(DIVERGENCE, run[:2]) == 0.0  # too short to be held
    assert held_strain(DIVERGENCE, samples([300.0] * 3, mean=70.0)) == pytest.approx(0.7)


@pytest.mark.parametrize("largest", [149.0, 151.0])
def test_a_run_strained_above_one_is_one_that_raises_the_alarm(largest: float) -> None:
    run = samples([largest] * 3)
    judge = AlarmJudge(None)
    for sample in run:
        judge.judge(sample)
    assert (held_strain(DIVERGENCE, run) > 1) == bool(judge.alarms)


def row(group: str, seed: int, solved: bool, largest: float, *alarms: str) -> dict[str, Any]:
    summary = {
        "status": "completed",
        "returns": {"solved_at_seconds": 1.0 if solved else None},
        "health": {"alarms": [{"name": name} for name in alarms]},
    }
    events = [{**each, "kind": "health", "churn": None} for each in samples([largest] * 3)]
    return make_row(group, seed, summary, events)


def test_the_tables_keep_the_halves_apart_and_leave_out_what_was_not_solved() -> None:
    rows = [
        row("single", 0, True, 90.0),
        row("single", 1, False, 140.0),
        row("single", 2, True, 120.0),
        row("single", 3, True, 160.0, "divergence"),
        *(row(DIVERGING, seed, False, 165.0 + seed, "divergence") for seed in range(4)),
    ]
    text = tables(rows)
    assert "seeds 0-1: solved" in text and "seeds 2-3: with an alarm" in text
    assert "| `single` | 1 of 2 | 0 of 2 | 2 of 2 | 1 of 2 (divergence) |" in text
    assert "| divergence | 0.60 (`single`, seed 0) | 1.07 (`single`, seed 3) |" in text
    assert text.endswith("The diverging learner's divergence was at 1.10 or more in every seed.")


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_tiny_measurement_of_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "STRATEGIES", ("single",))
    monkeypatch.setattr(alarm_limits, "SECONDS", "1")
    monkeypatch.setattr(alarm_limits, "DIVERGES", (*alarm_limits.DIVERGES, "--steps", "1100"))
    for _ in range(2):  # the second finds the rows that are there
        done = CliRunner().invoke(
            alarm_limits.main, ["--seeds", "2", "--output", str(tmp_path)], catch_exceptions=False
        )
        assert done.exit_code == 0
    assert "seed 0" not in done.output.splitlines()[0]
    rows = json.loads((tmp_path / "alarm-limits.json").read_text())
    assert [each["group"] for each in rows] == ["single", DIVERGING] * 2
    assert all(0 < each["strains"]["divergence, at once"] < 1 for each in rows)


def test_what_the_kept_rows_say_of_the_limits() -> None:
    rows = kept("alarm-limits")
    seeds = sorted({each["seed"] for each in rows})
    assert len(seeds) == 20 and all(b - a == 1 for a, b in pairwise(seeds))
    assert {each["group"] for each in rows} == {*strategies.STRATEGIES, DIVERGING}
    assert len(rows) == 20 * (1 + len(strategies.STRATEGIES))
    for each in rows:
        strained = [label(rule) for rule in RULES if each["strains"][label(rule)] > 1]
        assert bool(strained) == bool(each["alarms"]), each
        if each["group"] == DIVERGING:
            assert each["alarms"] == ["divergence"]
        elif each["solved"]:
            assert each["alarms"] == []
