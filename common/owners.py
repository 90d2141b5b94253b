"""Whose a file is: told apart from those of a process that was killed and could not tidy up."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

LOCK_PREFIX = "parallel-dqn-bench-lock"
# A process's start is known to a hundredth of a second, a file's time is taken a little later.
CLOCK_SLACK_SECONDS = 2.0


def owner_of_this_process() -> dict[str, float]:
    """Return what names this process for ever: a process id alone is used again."""
    return {"pid": os.getpid(), "started_at": float(psutil.Process().create_time())}


def is_alive(pid: int, started_at: float) -> bool:
    """Return whether the process that started then still runs; in doubt, it does."""
    try:
        found = float(psutil.Process(pid).create_time())
        is_zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
    except psutil.Error:
        return True
    return abs(found - started_at) < CLOCK_SLACK_SECONDS and not is_zombie


def dead_lock_files() -> Iterator[Path]:
    """Yield the lock files in the temporary folder whose owner was killed: our own user's alone.

    The owner's process id is in the name. A process with that id that is younger than the file is
    another one.
    """
    pattern = re.compile(re.escape(LOCK_PREFIX) + r"-(\d{1,10})-\w+")
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{LOCK_PREFIX}-*")):
        named = pattern.fullmatch(path.name)
        if named is None:
            continue
        try:
            found = path.lstat()
        except OSError:
            continue  # its owner was quicker
        is_ours = found.st_uid == os.getuid() if hasattr(os, "getuid") else True
        if stat.S_ISREG(found.st_mode) and is_ours and _is_older(found.st_mtime, int(named[1])):
            yield path


def _is_older(file_time: float, pid: int) -> bool:
    """Return whether no process has this id, or only one that began after the file."""
    try:
        return float(psutil.Process(pid).create_time()) > file_time + CLOCK_SLACK_SECONDS
    except (psutil.NoSuchProcess, OverflowError):
        return True
    except psutil.Error:
        return False
