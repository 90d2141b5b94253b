"""Comparisons for tests: planned ones with hand-made results, and real ones of instant strategies."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import instant
from commands import HERE, ROOT, Finished, finish, start

from bench.comparison import Budget, Comparison, PlannedRun
from bench.runner import Recorder
from bench.summary import RunFacts, finite, make_summary, write_json

STEPS = Budget("steps", steps=5_000)
SECONDS = Budget("seconds", seconds=2.0)


def planned(folder: Path, **given: Any) -> Comparison:
    """Return a small comparison; nothing is written."""
    plan: dict[str, Any] = {
        "kind": "compare",
        "env_id": "CartPole-v1",
        "budgets": [STEPS],
        "strategies": ["single", "apex"],
        "seeds": [0, 1, 2, 3, 4],
    }
    return Comparison(folder=folder, **{**plan, **given})


def summary_of(comparison: Comparison, run: PlannedRun, **values: Any) -> dict[str, Any]:
    """Return the summary of a run in which nothing was measured, with some sections replaced."""
    facts = RunFacts(
        run_id="r",
        folder=comparison.folder / run.path,
        started_at="2026-01-01T00:00:00+00:00",
        wall_seconds=4.0,
        threshold=475.0,
        supervisor_rss_mib=40.0,
        machine={"usable_cores": 2},
        versions={},
        commit=None,
    )
    result = Recorder(None, []).failed_result("")  # type: ignore[arg-type]
    result.status, result.error = "completed", None
    summary = make_summary("single", comparison.config_of(run), result, facts)
    for name, value in {"strategy": run.strategy, **values}.items():
        known = summary[name]
        summary[name] = {**known, **value} if isinstance(known, dict) else value
    return summary


def leave(comparison: Comparison, run: PlannedRun, **values: Any) -> None:
    """Leave a run's folder behind as if it had run, and note that it is complete."""
    folder = comparison.folder / run.path
    folder.mkdir(parents=True, exist_ok=True)
    config = dataclasses.asdict(comparison.config_of(run))
    write_json(
        folder / "config.json", finite({"schema": 1, "strategy": run.strategy, "config": config})
    )
    write_json(folder / "summary.json", finite(summary_of(comparison, run, **values)))
    run.status = "completed"


def leave_all(comparison: Comparison, values: Callable[[PlannedRun], dict[str, Any]]) -> None:
    """Leave every run's folder behind."""
    for run in comparison.runs:
        leave(comparison, run, **values(run))


def start_instantly(arguments: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
    """Start ``bench`` where the strategies ``instant`` and ``instant-too`` are installed."""
    package = cwd / "package"
    if not package.exists():
        package.mkdir()
        instant.install(package)
    path = os.pathsep.join(map(str, (ROOT, HERE, package)))
    return start(arguments, cwd, {"PYTHONPATH": path})


def run_instantly(arguments: Sequence[str], cwd: Path) -> Finished:
    """Run ``bench`` to its end; the folder is ``cwd/out``."""
    return finish(start_instantly(arguments, cwd), cwd / "out")


def state(folder: Path) -> dict[str, str]:
    """Return the status of every run by its folder, as ``comparison.json`` says."""
    contents = json.loads((folder / "comparison.json").read_text())
    return {row["run"]: row["status"] for row in contents["runs"]}
