"""The benchmarks can be run, and what is made of their results is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import ROOT

from bench.suite import growth, histogram, keep
from bench.suite.ratios import AIMS, ratio_rows, run_rows, whole_runs
from bench.suite.rig import TrainingClock, paired_ratio
from bench.suite.saved import duration, read
from common.config import ConfigError


def session(folder: Path, rounds: int = 50) -> Path:
    """Write a session as pytest-benchmark does: times that grow with the square root of a batch."""
    benchmarks = []
    for batch in (64, 4, 16):
        seconds = [1e-3 * batch**0.5 * (1 + 0.01 * (i % 5)) for i in range(rounds)]
        stats = {"median": 1e-3 * batch**0.5, "iqr": 1e-5, "rounds": rounds, "data": seconds}
        extra = {"series": "jump", "axis": "batch", "at": batch}
        name, group = f"test_jump[{batch}]", f"jump: batch {batch}"
        benchmarks.append({"name": name, "group": group, "stats": stats, "extra_info": extra})
    content = {"machine_info": {"machine": "x"}, "commit_info": {"id": "abc"}, "datetime": "2026-01-01"}
    path = folder / "suite.json"
    path.write_text(json.dumps({**content, "benchmarks": benchmarks}))
    return path


def pytest_suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_the_suite_is_found_when_asked_for_and_only_then() -> None:
    found = pytest_suite("bench/suite", "--collect-only", "-q").stdout
    assert found.count("::test_") > 60
    for name in ("test_act[numpy-1]", "test_sample[prioritized-1000000]", "test_run[apex]"):
        assert name in found
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'testpaths = ["tests"]' in settings


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_every_benchmark_runs_once() -> None:
    done = pytest_suite("bench/suite", "--benchmark-disable", "-q", "-rs")
    assert done.returncode == 0, done.stdout
    assert "is not installed" in done.stdout or "skipped" not in done.stdout.split("\n")[-2]


@pytest.mark.slow
def test_a_saved_session_says_where_it_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    chosen = ("bench/suite/test_sharing.py", "-k", "lock or pull", "--benchmark-max-time=0.01")
    done = pytest_suite(*chosen, "--benchmark-only", "-q", f"--benchmark-json={path}")
    assert done.returncode == 0, done.stdout
    saved = read(path)
    toolkit = saved.machine["toolkit"]
    assert {"cpu", "usable_cores", "versions", "threads"} <= set(toolkit)
    assert set(toolkit["threads"].values()) == {1} and saved.cpu_in_use_before is not None
    assert {"lock: take and give back", "weights: width 32"} <= set(saved.groups)
    assert all(each.median_seconds > 0 and each.seconds for each in saved.results)


def test_the_slope_is_that_of_the_power(tmp_path: Path) -> None:
    saved = read(session(tmp_path))
    (line,) = growth.lines_of(saved.results)
    assert [at for at, _ in line.points] == [4, 16, 64]
    assert growth.slope(line.points) == pytest.approx(0.5)
    assert growth.slope([(1, 3.0), (2, 3.0), (8, 3.0)]) == pytest.approx(0.0)
    assert growth.slope([(1, 4.0), (2, 2.0), (4, 1.0)]) == pytest.approx(-1.0)
    done = CliRunner().invoke(growth.main, [str(tmp_path / "suite.json")])
    assert "jump" in done.output and "+0.50" in done.output and "2 ms to 8 ms" in done.output


def test_tables_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    saved = read(session(tmp_path))
    assert list(saved.groups) == ["jump: batch 4", "jump: batch 16", "jump: batch 64"]
    assert [duration(each) for each in (2.5, 0.0025, 2.5e-6, 2.5e-9)] == [
        "2.5 s",
        "2.5 ms",
        "2.5 us",
        "2.5 ns",
    ]


def test_what_is_kept_can_be_read_and_has_no_rounds(tmp_path: Path) -> None:
    path, small = session(tmp_path), tmp_path / "data" / "small.json"
    done = CliRunner().invoke(keep.main, [str(path), str(small)])
    assert done.exit_code == 0 and small.stat().st_size < path.stat().st_size / 2
    old, new = read(path), read(small)
    assert [(r.name, r.median_seconds, r.extra) for r in new.results] == [
        (r.name, r.median_seconds, r.extra) for r in old.results
    ]
    assert all(each.seconds == [] for each in new.results) and old.results[0].seconds


def test_rounds_are_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "jump.png"
    arguments = [str(session(tmp_path)), "--group", "jump", "--output", str(picture)]
    done = CliRunner().invoke(histogram.main, arguments)
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    "command, arguments, words",
    [
        (growth.main, ["nowhere.json"], "cannot be read"),
        (growth.main, ["{bad}"], "no file of pytest-benchmark"),
        (keep.main, ["{bad}", "out.json"], "no file of pytest-benchmark"),
        (histogram.main, ["{good}", "--output", "a.doc"], "must end in one of"),
        (histogram.main, ["{good}", "--group", "nothing"], "no table whose name begins"),
    ],
)
def test_bad_files_get_one_sentence(
    command: Any, arguments: list[str], words: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("[1, 2]")
    good = session(tmp_path)
    done = CliRunner().invoke(command, [each.format(bad=bad, good=good) for each in arguments])
    assert done.exit_code == 2 and words in done.output
    assert not (tmp_path / "out.json").exists()


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"benchmarks": [{"name": "a"}]}')
    with pytest.raises(ConfigError, match="no file of pytest-benchmark"):
        read(tmp_path / "half.json")


def test_promised_ratios_and_runs_become_lines() -> None:
    extras = [{"audit_ratio": 0.974, "other": 1}, {}, {"collection_efficiency": 1.05}]
    assert [row[:2] for row in ratio_rows(extras)] == [("1.05", ">= 0.85"), ("0.97", ">= 0.90")]
    assert all(len(aim) == 2 for aim in AIMS.values())
    extra = {"strategy": "apex", "env_steps_per_second": 12345.6, "audit_writes_lost": 0}
    (row,) = run_rows(whole_runs([("test_run[apex]", 0.5, extra), ("test_act", 0.1, {})]))
    assert row == ("apex", "0.50", "12,346", "", "", "0", "", "")


def test_a_clock_of_its_own_and_pairs() -> None:
    clock = TrainingClock()
    began = clock.read()
    clock.advance(2.5)
    assert clock.read() - began == 2.5
    calls = []
    ratios = paired_ratio(lambda: calls.append("a"), lambda: calls.append("b"), pairs=4, calls=2)
    assert "".join(calls) == "bbaa" + "aabb" + "bbaa" + "aabb" and len(ratios) == 4
