"""Starts the command line as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Attributes:
        group: its process group, which all its children belong to.
        folder: its ``--output``.
    """

    code: int
    stdout: str
    stderr: str
    group: int
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "summary.json").read_text()))


def start(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start ``bench`` in a process group of its own."""
    path = os.pathsep.join([str(ROOT), str(HERE)])
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_interrupts,
    )


def _hear_interrupts() -> None:
    """Undo what a shell does to what it starts in the background: there SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[str], folder: Path, timeout: float = TIMEOUT_SECONDS) -> Finished:
    """Wait for a command and return what it said."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Finished(process.returncode, stdout, stderr, process.pid, folder)


def alive_in(group: int) -> list[str]:
    """Return what still lives of a process group, given a moment to leave."""
    deadline = time.monotonic() + 5
    while True:
        left = []
        for process in psutil.process_iter():
            try:
                if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.cmdline()))
            except (psutil.Error, ProcessLookupError):
                continue
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
