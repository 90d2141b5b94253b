"""How a command ends: interrupts, signals to the whole group, a killed parent; what is cleaned up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, alive_in, finish, start

from bench.clean import left_behind
from bench.runner import RunFolder
from common import owners
from common.config import Config
from common.locks import LockFile
from common.owners import dead_lock_files, is_dead, owner

APEX = ("run", "--strategy", "apex", "--envs-per-worker", "4", "--warmup-env-steps", "0")
HOGWILD = ("run", "--strategy", "hogwild", "--lock", "--warmup-env-steps", "0", "--workers", "2")
LONG = ("--steps", "1e9", "--evaluate-every-env-steps", "1000", "--quiet")
BENCH = ROOT / "tests" / "bench"


# --- Whose a file is ---


def dead_owner() -> dict[str, Any]:
    """Return the owner that a process named which has ended."""
    code = "import json; from common.owners import owner; print(json.dumps(owner()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return dict(json.loads(done.stdout))


def test_an_owner_is_dead_when_its_process_is_and_not_when_another_has_its_number() -> None:
    gone, here = dead_owner(), owner()
    assert is_dead(gone) and not is_dead(here)
    assert gone["pid"] != here["pid"] == os.getpid()
    assert is_dead({**here, "started": gone["started"]}), "the number was given to another process"
    assert not is_dead({**gone, "host": "elsewhere"}), "nobody here knows"
    for odd in (
        None,
        3,
        [],
        {},
        {"pid": 1},
        {**gone, "pid": "1"},
        {**gone, "pid": -5},
        {**gone, "started": 1},
    ):
        assert not is_dead(odd)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_lock_files_of_the_dead_are_found_and_no_others(temporary: Path) -> None:
    gone = dead_owner()
    left = temporary / f"{owners.LOCK_PREFIX}-{gone['pid']}-abc"
    left.write_text(json.dumps(gone))
    empty = temporary / f"{owners.LOCK_PREFIX}-{gone['pid']}-empty"  # killed before it could write
    empty.touch()
    for name, text in {
        f"{owners.LOCK_PREFIX}-{os.getpid()}-abc": json.dumps(owner()),
        f"{owners.LOCK_PREFIX}-{os.getpid()}-empty": "",
        f"{owners.LOCK_PREFIX}-{gone['pid']}-text": "of somebody else",
        f"{owners.LOCK_PREFIX}-old": json.dumps(gone),
        "another-file": json.dumps(gone),
    }.items():
        (temporary / name).write_text(text)
    (temporary / f"{owners.LOCK_PREFIX}-{gone['pid']}-folder").mkdir()
    (temporary / f"{owners.LOCK_PREFIX}-{gone['pid']}-link").symlink_to(left)
    assert sorted(dead_lock_files()) == [left, empty]
    live = LockFile()  # the next start removes them
    assert not left.exists() and not empty.exists() and live.path.exists()
    assert len(list(temporary.iterdir())) == 8


def make_runs(runs: Path) -> dict[str, Path]:
    """Make a run folder in each state in which one can be found."""
    gone = json.dumps(dead_owner())
    folders = {}
    for name in ("live", "half", "model", "checkpoint", "foreign", "finished", "unknown", "done"):
        folders[name] = RunFolder("single", Config(), runs / name).path
        (folders[name] / "events.jsonl").touch()
        if name not in ("live", "unknown", "done"):
            (folders[name] / "owner.json").write_text(gone)
    (folders["half"] / "summary.json.tmp").touch()
    (folders["half"] / "tensorboard").mkdir()
    (folders["model"] / "model.pt").touch()
    (folders["checkpoint"] / "checkpoint").mkdir()
    (folders["foreign"] / "notes.txt").touch()
    for name in ("finished", "done"):
        (folders[name] / "summary.json").write_text("{}")
    for name in ("unknown", "done"):
        (folders[name] / "owner.json").unlink()
    return folders


def test_clean_removes_half_written_runs_of_the_dead_and_nothing_else(
    tmp_path: Path, temporary: Path
) -> None:
    from click.testing import CliRunner

    from bench.cli import cli

    folders = make_runs(tmp_path / "runs")
    arguments = ["clean", "--runs", str(tmp_path / "runs")]
    said = CliRunner().invoke(cli, [*arguments, "--dry-run"]).stdout
    assert said.count("would remove") == 2 and said.count("kept") == 3
    assert all(folder.exists() for folder in folders.values())
    before = {name: sorted(os.listdir(folder)) for name, folder in folders.items()}
    said = CliRunner().invoke(cli, arguments).stdout
    assert f"removed half-written run {folders['half']}\n" in said
    assert f"removed mark of a finished run {folders['finished'] / 'owner.json'}\n" in said
    for name in ("model", "checkpoint", "foreign"):
        assert f"kept half-written run {folders[name]}: it holds " in said
    assert not folders.pop("half").exists()
    before["finished"].remove("owner.json")
    assert {name: sorted(os.listdir(folder)) for name, folder in folders.items()} == {
        name: names for name, names in before.items() if name != "half"
    }
    assert [left.kept_because is not None for left in left_behind(tmp_path / "runs")] == [True] * 3
    nothing = CliRunner().invoke(cli, ["clean", "--runs", str(tmp_path / "none")])
    assert (nothing.exit_code, nothing.stdout) == (0, "nothing was left behind\n")


# --- Commands that are ended ---


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def trains(folder: Path) -> bool:
    """Return whether a run has made updates."""
    events = folder / "events.jsonl"
    rows = events.read_text().splitlines()[-1:] if events.is_file() else []
    return any(json.loads(row).get("updates", 0) > 0 for row in rows if row.endswith("}"))


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a command; none outlives the test."""
    processes: list[subprocess.Popen[str]] = []

    def one(*arguments: str, environment: Any = None) -> subprocess.Popen[str]:
        processes.append(start(arguments, tmp_path, environment))
        return processes[-1]

    yield one
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "signals", [[signal.SIGINT] * 2, [signal.SIGTERM], [signal.SIGTERM] * 2, [signal.SIGHUP]]
)
@pytest.mark.parametrize("strategy", [APEX, HOGWILD])
def test_a_signal_to_everybody_ends_a_run_with_all_saved(
    strategy: tuple[str, ...], signals: list[int], tmp_path: Path, begin: Any
) -> None:
    folder = tmp_path / "run"
    process = begin(*strategy, *LONG, "--output", str(folder))
    wait_until(lambda: trains(folder))
    for number in signals:
        os.killpg(process.pid, number)
    began = time.monotonic()
    finished = finish(process, folder)
    assert time.monotonic() - began < 5
    summary = finished.summary
    assert finished.code == 130 and (summary["status"], summary["error"]) == ("interrupted", None)
    assert (folder / "model.pt").is_file() and (folder / "best.pt").is_file()
    assert not (folder / "owner.json").exists() and "Traceback" not in finished.stderr
    assert summary["processes"]["deaths"] == [], "the supervisor alone decides"
    assert len(signals) > 1 or (folder / "checkpoint").is_dir()  # two do not wait for it
    experience = summary["experience"]
    parts = sum(experience[name] for name in ("stored", "dropped", "in_flight_at_end"))
    assert experience["collected"] == summary["env_steps"] == parts
    assert alive_in(finished.group) == []


@pytest.mark.slow
@pytest.mark.multiprocess
def test_after_kill_9_the_workers_leave_and_clean_removes_what_is_left(
    tmp_path: Path, begin: Any
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    process = begin(*HOGWILD, *LONG, environment=environment)
    runs = tmp_path / "runs"
    wait_until(lambda: any(trains(folder) for folder in runs.glob("*")))
    alive = finish(begin("clean", environment=environment), tmp_path)
    assert alive.stdout == "nothing was left behind\n", "a live run is not touched"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert alive_in(process.pid) == []
    assert len(list(temporary.glob("parallel-dqn*"))) == 1 and len(list(runs.iterdir())) == 1
    cleaned = finish(begin("clean", environment=environment), tmp_path)
    assert cleaned.stdout.count("removed") == 2 and cleaned.code == 0
    assert list(runs.iterdir()) == [] == list(temporary.glob("parallel-dqn*"))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_run_goes_on_when_nobody_listens_any_more(tmp_path: Path, begin: Any) -> None:
    folder = tmp_path / "run"
    process = begin(*APEX, "--steps", "30000", "--output", str(folder))
    assert process.stdout is not None and process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert process.stdout.read()  # the result, at the end
    process.wait(90)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("completed", None)
    assert process.returncode in (0, 120), "120: the interpreter itself cannot flush"
