"""What the tests have measured in processes apart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any


def limits(name: str) -> Callable[[], dict[str, Any]]:
    """Return what limits a process finds before and after the numeric libraries are loaded."""
    import numpy as np

    from common.processes import thread_limits

    variable = os.environ.get(name)
    np.ones((64, 64)) @ np.ones((64, 64))
    began = time.perf_counter()
    return lambda: {"variable": variable, "threads": max(thread_limits().values()), "began": began}


def when(pause: float) -> Callable[[], dict[str, float]]:
    """Return when a process was ready and when it began, on a clock that all share."""
    time.sleep(pause * (os.getpid() % 2))
    ready = time.monotonic()
    return lambda: {"ready": ready, "began": time.monotonic()}


def raises(where: str) -> Callable[[], None]:
    """Fail while preparing, or while measuring."""

    def fail() -> None:
        raise ValueError(f"it went wrong in {where}")

    if where == "preparing":
        fail()
    return fail


def raises_in_one(folder: str) -> Callable[[], int]:
    """Fail in the process that comes first, while the others are ready and print a lot."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        print("nothing wrong here")
        return lambda: 1
    raise ValueError("it went wrong in one")


def prints() -> Callable[[], int]:
    """Write to standard output, in Python and below it."""
    print("said while preparing")
    os.write(1, b"said in C\n")
    print("so much that no pipe holds it" * 10_000)
    return lambda: 7


def sleeps() -> Callable[[], None]:
    """Measure for ever."""
    return lambda: time.sleep(600)
