"""What a result was measured on: the machine, the versions, the commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from common.config import spell

PROJECT = "parallel-dqn-bench"
PACKAGES = ("torch", "numpy", "gymnasium", "numba")
SETS_THE_SPEED = ("cpu", "usable_cores")
BUSY = 0.2  # of the machine in other hands
ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the memory, the system and the Python version."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_mib": round(psutil.virtual_memory().total / 2**20),
        "os": platform.platform(),
        "python": platform.python_version(),
    }


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return in words what sets two machines apart in speed; None if nothing is known to."""
    apart = [
        f"{spell(name)} {there[name]} there, {here[name]} here"
        for name in SETS_THE_SPEED
        if there.get(name) != here.get(name) and there.get(name) is not None
    ]
    return "; ".join(apart) or None


def usable_cores() -> int:
    """Return the cores that this process may run on; a container may be given fewer than there are."""
    if sys.platform.startswith("linux"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_in_use(seconds: float = 0.3) -> float:
    """Return the fraction of all cores that is at work now, looked at for a moment."""
    return float(psutil.cpu_percent(seconds)) / 100


def too_busy(cpu_in_use: float) -> bool:
    """Return whether other programs take so much of the machine that figures mean little."""
    return cpu_in_use > BUSY


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    """Return the versions that matter, read without importing the packages."""
    found = {name: _version(name) for name in PACKAGES}
    return {**found, PROJECT: _version(PROJECT) or _version_in_checkout()}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_in_checkout() -> str | None:
    try:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return str(project["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return None


def commit() -> str | None:
    """Return the commit of the project's own checkout, if it runs from one."""
    if not (ROOT / ".git").exists():  # installed: the repository around it would be another one
        return None
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def process_started_at() -> float:
    """Return when this process was created, on the ``perf_counter`` clock."""
    age = max(0.0, time.time() - float(psutil.Process().create_time()))
    return time.perf_counter() - age
