"""Sweeps: what can be swept, and what its table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compare_rig import leave_all, planned, run_instantly, state

from bench.sweep import parse_values, swept
from bench.table import result
from bench.tabulate import as_csv, as_markdown, as_text
from common.config import ConfigError

APEX = ("--strategy", "apex")
BAD_SWEEPS = {
    "no strategy": (("--param", "n_step", "--values", "1"), ("single, vector", "--strategy")),
    "no param": (APEX, ("0 --param and 0 --values",)),
    "values missing": ((*APEX, "--param", "n_step"), ("1 --param and 0 --values",)),
    "three": (
        (*APEX, *("--param", "n_step", "--values", "1") * 3),
        ("3 --param and 3 --values", "one or 2"),
    ),
    "unknown": ((*APEX, "--param", "n_stop", "--values", "1"), ("no option 'n_stop'",)),
    "budget": ((*APEX, "--param", "steps", "--values", "1"), ("steps cannot be swept", "--steps")),
    "seed": ((*APEX, "--param", "seed", "--values", "1"), ("seed cannot be swept", "--seeds")),
    "word": ((*APEX, "--param", "replay_ratio", "--values", "0.5,free"), ("'free'", "numbers")),
    "text": ((*APEX, "--param", "straggler", "--values", "0:5"), ("'0:5'", "numbers")),
    "flag": (
        ("--strategy", "hogwild", "--param", "lock", "--values", "on"),
        ("'on'", "true, yes, false, no"),
    ),
    "half": ((*APEX, "--param", "n_step", "--values", "1.5"), ("'1.5' is no value of n step",)),
    "twice": ((*APEX, "--param", "n_step", "--values", "3,3"), ("3 is given twice",)),
    "not allowed": ((*APEX, "--param", "workers", "--values", "0,1"), ("workers 0", "at least 1")),
    "no use": (
        ("--strategy", "single", "--param", "workers", "--values", "1,2"),
        ("workers 2", "single is one process"),
    ),
    "also fixed": (
        (*APEX, "--param", "n_step", "--values", "1,2", "--n-step", "3"),
        ("n step is swept",),
    ),
}


@pytest.mark.parametrize("case", BAD_SWEEPS)
def test_bad_input_is_one_sentence_before_anything_starts(
    case: str, invoke: Any, tmp_path: Path
) -> None:
    arguments, expected = BAD_SWEEPS[case]
    found = invoke("sweep", *arguments)
    assert found.exit_code == 2 and found.stdout == ""
    assert found.stderr.count("\n") == 1 and "Traceback" not in found.stderr
    for words in expected:
        assert words in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_values_are_read_as_the_command_line_of_a_run_does() -> None:
    assert parse_values("replay_ratio", "0.03, 2") == [0.03, 2.0]
    assert parse_values("replay_capacity", "1e4,50_000") == [10_000, 50_000]
    assert parse_values("lock", "no,yes") == [False, True]
    assert all(type(value) is int for value in parse_values("workers", "1,2,4"))
    assert swept(("n-step",), ("1,3",), {}) == {"names": ["n_step"], "values": [[1, 3]]}
    with pytest.raises(ConfigError, match="twice"):
        swept(("n_step", "n-step"), ("1", "3"), {})


def test_two_options_make_a_grid_interleaved_by_seed(tmp_path: Path) -> None:
    param = {"names": ["n_step", "double"], "values": [[1, 3], [False, True]]}
    sweep = planned(tmp_path, kind="sweep", strategies=["apex"], seeds=[0, 1], param=param)
    assert [run.param for run in sweep.runs[:4]] == [
        {"n_step": 1, "double": False},
        {"n_step": 1, "double": True},
        {"n_step": 3, "double": False},
        {"n_step": 3, "double": True},
    ]
    assert [run.seed for run in sweep.runs] == [0] * 4 + [1] * 4
    assert sweep.runs[1].path == Path("runs/steps/apex-n_step=1-double=true/seed0")
    configs = [sweep.config_of(run) for run in sweep.runs]
    assert [(config.n_step, config.double) for config in configs[:3]] == [
        (1, False),
        (1, True),
        (3, False),
    ]


def test_rows_are_compared_with_the_first_and_alarms_are_shown(tmp_path: Path) -> None:
    param = {"names": ["replay_ratio"], "values": [[0.03, 2.0]]}
    sweep = planned(tmp_path, kind="sweep", strategies=["apex"], param=param)

    def measured(run: Any) -> dict[str, Any]:
        high = run.param["replay_ratio"] > 1
        alarm = {"name": "q_above_bound"}
        return {
            "env_steps_per_second": (500.0 if high else 9_000.0) + run.seed,
            "health": {"q_max": 120.0, "alarms": [alarm] if high else []},
        }

    leave_all(sweep, measured)
    table = result(sweep)
    low, high = table["budgets"][0]["rows"]
    assert table["baseline"] == "replay_ratio=0.03" and low["is_baseline"]
    versus = high["metrics"]["env_steps_per_second"]["versus_baseline"]
    assert versus["ratio"] == pytest.approx(502 / 9_002) and versus["difference_shown"]
    assert sum(high["metrics"]["alarms"]["values"]) == 5
    assert sum(low["metrics"]["alarms"]["values"]) == 0
    text = as_text(table, 80)
    assert "0.056x" in text and max(map(len, text.splitlines())) <= 80
    assert "| replay ratio |" in as_markdown(table) and "| 2.0 |" in as_markdown(table)
    assert "strategy,replay_ratio,runs" in as_csv(table)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_sweep_over_workers_says_how_many_pay_off(tmp_path: Path) -> None:
    sweep = ("sweep", "--strategy", "instant", "--param", "workers", "--values", "1,2,3,4")
    done = run_instantly(
        (*sweep, "--seeds", "1", "--seconds", "1", "--output", "out", "--quiet"), tmp_path
    )
    assert done.code == 0 and done.stderr == ""
    assert list(state(done.folder)) == [
        f"runs/seconds/instant-workers={workers}/seed0" for workers in (1, 2, 3, 4)
    ]
    table = json.loads((done.folder / "table.json").read_text())
    (found,) = table["scalability"]
    # Each worker of this strategy gives 1,000 env steps/s.
    assert found["fit"]["coefficients"]["one_worker"] == pytest.approx(1_000)
    assert found["fit"]["best_workers"] is None
    assert [each["env_steps_per_second"] for each in found["predictions"]] == pytest.approx([8e3, 16e3])
    assert "Prediction, not a measurement" in " ".join(done.stdout.split())
    again = run_instantly(("compare", "--resume", "out"), tmp_path)
    assert again.code == 2 and "bench sweep --resume out" in again.stderr
