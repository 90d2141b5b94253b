"""Whose a file is: told apart from what a process left that was killed and could not tidy up.

A process id alone is used again, so an owner is named by it and by when it started.
"""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

LOCK_PREFIX = "parallel-dqn-bench-lock"


def owner() -> dict[str, Any]:
    """Return what names this process, as JSON has it."""
    return {"host": platform.node(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def is_dead(named: Any) -> bool:
    """Return whether the process that ``owner`` named is gone. In doubt, or elsewhere, it lives."""
    try:
        host, pid, started = named["host"], named["pid"], named["started"]
    except (KeyError, TypeError, IndexError):
        return False
    if host != platform.node() or type(pid) is not int or not isinstance(started, str) or pid < 1:
        return False
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE or _start_of(pid) != started
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OverflowError):
        return False


def _start_of(pid: int) -> str:
    """Return when a process started, in words that hold still when the clock is set.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    if not sys.platform.startswith("linux"):
        return f"{psutil.Process(pid).create_time():.2f}"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # After the name in parentheses, which may hold anything: the 20th word is the start in ticks.
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    return f"{boot} {words[19]}"


def dead_lock_files() -> Iterator[Path]:
    """Yield the lock files in the temporary folder whose owner was killed: our own user's alone."""
    pattern = re.compile(re.escape(LOCK_PREFIX) + r"-(\d{1,10})-\w+")
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{LOCK_PREFIX}-*")):
        named = pattern.fullmatch(path.name)
        try:
            found = path.lstat()
            is_ours = found.st_uid == os.getuid() if hasattr(os, "getuid") else True
            if named is None or not stat.S_ISREG(found.st_mode) or not is_ours:
                continue
            text = path.read_text(encoding="utf-8")
            # Killed before it could say more than the name does.
            is_left = is_dead(json.loads(text)) if text else not psutil.pid_exists(int(named[1]))
        except (OSError, ValueError):
            continue  # its owner was quicker, or it is something else
        if is_left:
            yield path
