"""Saved runs side by side: the summaries' numbers, and nothing that was not measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from saved_runs import make_summary

from bench.side_by_side import MOST_RUNS, main


def save(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(make_summary(**changes)))
    return folder


def printed(*arguments: object) -> dict[str, list[str]]:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    lines = result.output.rstrip("\n").split("\n")
    assert len({len(line) for line in lines}) == 1, "a row has another width"
    return {title: cells for title, *cells in (re.split(" {2,}", line) for line in lines)}


def test_each_run_is_a_column(tmp_path: Path) -> None:
    speeds = {"env_steps_per_second": 1234.4, "updates_per_second": 7.6}
    one = save(tmp_path / "one", strategy="single", **speeds)
    two = save(tmp_path / "two", strategy="hogwild", env_steps_per_second=999_999.7)
    rows = printed(one, two)
    assert rows[""] == ["one", "two"]
    assert rows["env steps/s"] == ["1,234", "1,000,000"]
    assert rows["updates/s"][0] == "8"
    assert rows["writes lost"][0] == "0" and rows["writes lost"][1] != "0"
    assert "acting lag, updates" not in rows


def test_what_was_not_measured_is_no_zero(tmp_path: Path) -> None:
    lag = {"p50": 1, "p95": 2, "max": 33, "unit": "updates"}
    one = save(tmp_path / "one", gradient_staleness=lag, audit={"lost_fraction": None})
    two = save(tmp_path / "two", gradient_staleness=None, audit={"lost_fraction": 2e-7})
    assert printed(one, two)["gradient staleness, updates"] == ["1 / 2 / 33", "-"]
    assert printed(one, two)["writes lost"] == ["-", "2.0e-07"]


def test_waiting_leaves_evaluations_out(tmp_path: Path) -> None:
    roles = {"learner": {"wait": 0.2, "update": 0.3, "evaluation": 0.5}}
    time = {"roles": roles, "processes": {}, "bottleneck": "collection"}
    rows = printed(save(tmp_path / "one", time=time))
    assert rows["learner waits"] == ["40%"] and rows["bottleneck"] == ["collection"]


def test_any_field_of_the_summary_can_be_asked_for(tmp_path: Path) -> None:
    folder = save(tmp_path / "one", strategy="hogwild")
    audit = json.loads((folder / "summary.json").read_text())["audit"]
    fields = ("audit.elements_affected", "processes.restarts", "time.roles.actor_learner.sample")
    rows = printed(folder, *(each for name in fields for each in ("--field", name)))
    assert 0 < float(rows["time.roles.actor_learner.sample"][0]) < 1
    assert rows["audit.elements_affected"] == [str(audit["elements_affected"])]
    assert "processes.restarts" not in rows


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    save(tmp_path / "a" / "run")
    save(tmp_path / "b" / "run")
    names = printed(tmp_path)[""]
    assert len(set(names)) == 2 and all(name.endswith("/run") for name in names)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["nowhere"], "does not exist"),
        (["one", "--field", "audit.nothing"], "no summary has a field 'audit.nothing'"),
        (["one", "--field", "time.roles"], "no summary has a field 'time.roles'"),
        (["."], f"at most {MOST_RUNS}"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", *map(str, range(MOST_RUNS))):
        save(tmp_path / name)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and says in result.output
    assert "Traceback" not in result.output
