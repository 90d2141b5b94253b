"""What the machine allows, asked before anything is started: open files and processes."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from common.config import ConfigError

if sys.platform != "win32":
    import resource

# What the supervisor holds of a process: its end of a pipe, the process's sentinel, and for a moment
# what the start needs. The rest is for logs, models and what an environment opens.
FILES_PER_PROCESS = 3
FILES_BESIDES = 24
# A process, the thread that watches for its parent's end, and one of a library's.
TASKS_PER_PROCESS = 3


def require_open_files(num_processes: int) -> None:
    """Raise this process's limit of open files if it is too low for a run.

    Raises:
        ConfigError: the limit cannot be raised as far.
    """
    if sys.platform == "win32":
        return
    needed = _open_files() + FILES_PER_PROCESS * num_processes + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        raise ConfigError(
            f"{num_processes} processes need about {needed} open files and {allowed} are allowed; "
            "raise the limit (ulimit -n) or ask for fewer workers"
        )


def require_processes(num_processes: int) -> None:
    """Check that so many processes may be started.

    Raises:
        ConfigError: the limit of the user, or of the container, is lower.
    """
    needed, allowed = TASKS_PER_PROCESS * num_processes, processes_allowed()
    if allowed is not None and needed > allowed:
        raise ConfigError(
            f"{num_processes} processes need about {needed} tasks and {allowed} may be started (ulimit "
            "-u, or pids.max of the container); ask for fewer workers"
        )


def processes_allowed() -> int | None:
    """Return how many tasks may be started; None where nothing says so."""
    found: list[int] = []
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        if soft != resource.RLIM_INFINITY:
            found.append(soft)
    with contextlib.suppress(OSError, ValueError):
        # A container sees its own group as the root of the hierarchy.
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text().strip() for name in ("pids.max", "pids.current"))
        found.append(max(0, int(limit) - int(used)))  # "max" is no number: no limit
    return min(found, default=None)


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return FILES_BESIDES
