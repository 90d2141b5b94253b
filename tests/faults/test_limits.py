"""What the machine does not give: disk, shared memory, open files, processes, permissions."""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import mortal_roles
import numpy as np
import pytest
from commands import ROOT, Finished, finish, start
from mortal_roles import make_notes

import strategies
from bench.recorder import Recorder
from bench.runner import RunFolder, load_config, run
from common import limits
from common.config import Config, ConfigError
from common.events import EventLog, NullObserver
from common.limits import FILES_BESIDES, require_open_files, require_processes
from common.locks import LockFile
from common.optimizer import LAST_STEP, SharedOptimizerState
from common.processes import Role
from common.supervisor import RunProbe, Shared, run_roles
from common.types import Death

FOR_EVER = 10**12


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    """Lower one limit of this process for a while."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_that_find_no_room_are_counted_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    with limited(resource.RLIMIT_FSIZE, 1_000):
        for i in range(100):
            log.write("progress", i=i)
    kept = len(rows_of(path))  # whole rows only
    assert 10 < kept < 60 and path.stat().st_size <= 1_000
    for i in range(100, 103):
        log.write("progress", i=i)
    log.close()
    rows = rows_of(path)
    assert rows[kept] == {"kind": "lost", "rows": 100 - kept}
    assert [row["i"] for row in rows[kept + 1 :]] == [100, 101, 102]
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and str(path) in err and "the run goes on" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_ends_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(Path("/dev/full"))
    for i in range(20):
        log.write("alarm", i=i)
    log.close()
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert log._lost == 20


def test_a_summary_that_cannot_be_written_says_so_itself(tmp_path: Path) -> None:
    config = strategies.load("single").Config.for_env("CartPole-v1")
    folder = RunFolder("single", config, tmp_path / "run")
    assert {path.name for path in folder.path.iterdir()} == {"config.json", "owner.json"}
    whole = {"status": "completed", "error": None, "text": "x" * 10_000}
    summary = dict(whole)
    with limited(resource.RLIMIT_FSIZE, 1_000):
        folder.finish(summary)
    assert summary["status"] == "failed" and "summary.json could not be written" in summary["error"]
    # Nothing half-written is left, and what was there stays.
    assert {path.name for path in folder.path.iterdir()} == {"config.json", "owner.json"}
    assert load_config(folder.path)[0] == "single"
    folder.finish(whole)
    assert json.loads((folder.path / "summary.json").read_text()) == whole
    assert not (folder.path / "owner.json").exists()


def run_tiny(folder: Path | None = None, observer: Any = None, **choices: Any) -> Any:
    notes = make_notes(1)
    fixed = {"hidden_size": 8, "steps": 60, "warmup_env_steps": 0, "evaluation_episodes": 1}
    config = Config(**{**fixed, **choices})
    role = Role("stepper", 0, mortal_roles.step, (notes, 0, ()), can_restart=True)
    return run_roles(
        config, RunProbe(folder=folder, observer=observer or NullObserver()), [role], Shared(config)
    )


@pytest.mark.slow
@pytest.mark.multiprocess
def test_models_that_cannot_be_written_fail_the_run_and_lose_nothing_else() -> None:
    result = run_tiny(folder=Path("/nonexistent/run"))
    assert result.status == "failed" and not result.models_saved
    assert result.error is not None and result.error.count("could not be written") == 2
    assert result.env_steps >= 60 and np.isfinite(result.final_weights).all()
    assert result.final_evaluation is not None


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_process_that_cannot_be_started_is_tried_again_and_then_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, fails = BaseProcess.start, [True]

    def refuse(self: BaseProcess) -> None:
        if fails[0] and self.name.startswith("stepper"):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begin(self)

    heard: list[str] = []

    class Hears(NullObserver):
        def on_death(self, death: Death, outcome: str) -> None:
            heard.append(outcome)
            fails[0] = len(heard) < 2 or not recovers

    monkeypatch.setattr(BaseProcess, "start", refuse)
    recovers = True
    result = run_tiny(observer=Hears())
    assert result.status == "completed" and result.restarts == 2
    assert result.deaths[0].reason == "could not be started: Resource temporarily unavailable"
    heard.clear()
    recovers, fails[0] = False, True
    result = run_tiny(observer=Hears())
    assert result.status == "failed" and len(result.deaths) == 4
    assert result.error is not None and "no worker is left" in result.error


def test_too_few_open_files_are_raised_or_refused() -> None:
    opened = len(os.listdir("/dev/fd"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with limited(resource.RLIMIT_NOFILE, opened + FILES_BESIDES):
        require_open_files(8)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert opened + FILES_BESIDES < raised[0] <= before[1] and raised[1] == before[1]
    with pytest.raises(ConfigError, match=r"10000000 processes need about .* open files and \d+ are"):
        require_open_files(10_000_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_few_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "processes_allowed", lambda: 29)
    require_processes(9)
    with pytest.raises(ConfigError, match="10 processes need about 30 tasks and 29 may be started"):
        require_processes(10)
    monkeypatch.undo()
    assert limits.processes_allowed() is None or limits.processes_allowed() > 0  # type: ignore[operator]


def test_no_place_for_a_lock_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"the lock's file cannot be made .* TMPDIR"):
        LockFile()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert LockFile().path.parent == tmp_path


def test_an_observer_that_fails_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(NullObserver):
        heard = 0

        def on_tick(self, *values: Any) -> None:
            self.heard += 1
            raise BrokenPipeError(32, "Broken pipe")

    class Whole(NullObserver):
        heard = 0

        def on_tick(self, *values: Any) -> None:
            self.heard += 1

    broken, whole = Broken(), Whole()
    log = EventLog(tmp_path / "events.jsonl")
    recorder = Recorder(log, [broken, whole])
    for i in range(5):
        recorder.on_tick(i, i, 1.0, [1.0])
    log.close()
    assert (broken.heard, whole.heard) == (1, 5)
    assert capsys.readouterr().err.count("Broken failed and is left out") == 1


def test_a_step_count_that_stands_still_is_not_compared() -> None:
    shared = Shared(Config(hidden_size=8))
    state = SharedOptimizerState(shared.spec, "adam")
    state._arrays["steps"][:] = 7
    assert "says 7 of 9 updates" in state.describe(9)
    assert "stands still" in state.describe(LAST_STEP + 1)
    assert np.float32(LAST_STEP) + np.float32(1) == LAST_STEP, "that is why"


# --- Whole commands under real limits ---

SMALL = ["run", "--strategy", "single", "--steps", "400", "--replay-capacity", "1000"]
SMALL += ["--warmup-env-steps", "100"]


def can_mount() -> bool:
    """Return whether a file system of its own can be mounted where nobody else sees it."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def bench_with_small(folder: str, size: str, *arguments: str, cwd: Path) -> Any:
    """Run a command with a small file system mounted at a folder, for it alone."""
    code = f'mount -t tmpfs -o size={size} tmpfs {folder} && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", code, "sh", sys.executable, "-m", "bench", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own")
def test_too_little_shared_memory_is_found_before_the_start(tmp_path: Path) -> None:
    small = functools.partial(bench_with_small, "/dev/shm", "12m", cwd=tmp_path)
    refused = small(*SMALL, "--replay-capacity", "1000000", "--quiet")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "MiB of shared memory and" in refused.stderr and "replay capacity" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    done = small(*SMALL, "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "completed"


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own")
def test_a_disk_that_fills_up_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    out = str(tmp_path / "out")
    done = bench_with_small(out, "100k", *SMALL, "--json", "--output", f"{out}/run", cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    summary = json.loads(done.stdout)  # it was said, whatever could be written
    assert summary["status"] == "failed" and summary["env_steps"] >= 400
    assert "best.pt could not be written: No space left on device" in summary["error"]
    assert summary["returns"]["eval_mean"] is not None


@pytest.mark.slow
@pytest.mark.multiprocess
def test_an_output_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    done = run_command(tmp_path, *SMALL, "--output", "/proc/1/run")
    assert done.code == 2 and done.stderr.count("\n") == 1
    assert "the output folder /proc/1/run cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def run_command(folder: Path, *arguments: str) -> Finished:
    return finish(start(arguments, folder), folder)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("hard, code", [(24, 2), (4_096, 0)])
def test_a_run_with_few_open_files_works_or_says_why(hard: int, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", *SMALL, "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, hard))

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110,
        check=False, preexec_fn=lower,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("open files" in done.stderr) == (code == 2) and "Traceback" not in done.stderr
    assert (list(tmp_path.iterdir()) == []) == (code == 2)


def test_more_workers_than_memory_holds_are_refused(tmp_path: Path) -> None:
    module = strategies.load("apex")
    config = module.Config.for_env("CartPole-v1", workers=10**6)
    with pytest.raises(ConfigError, match="1000000 workers are more than the free memory holds"):
        run("apex", config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
