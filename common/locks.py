"""A lock that a killed process cannot keep: a file that the kernel unlocks when its holder is gone.

A lock of ``multiprocessing`` stays locked for ever when its holder is killed, and with it everybody who
waits. This one is a lock on a small temporary file that each process opens for itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from common.config import ConfigError
from common.owners import LOCK_PREFIX, dead_lock_files, owner
from common.probe import Probe

LOCK_TIMEOUT_SECONDS = 10.0
STOPPING_TIMEOUT_SECONDS = 0.5
RETRY_SECONDS = 0.00005


class LockFile:
    """The file behind a lock, made by the parent and removed with it. Picklable: it is a path.

    Raises:
        ConfigError: there is no folder for temporary files that can be written.
    """

    def __init__(self) -> None:
        for left in dead_lock_files():
            left.unlink(missing_ok=True)
        # The file says whose it is, so that one left by a killed parent can be found.
        try:
            descriptor, name = tempfile.mkstemp(prefix=f"{LOCK_PREFIX}-{os.getpid()}-")
        except OSError as error:
            raise ConfigError(
                f"the lock's file cannot be made ({error.strerror}); name a folder for temporary files "
                "that can be written in TMPDIR"
            ) from None
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(owner(), file)
        self.path = Path(name)
        weakref.finalize(self, self.path.unlink, missing_ok=True)

    def __getstate__(self) -> dict[str, Path]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.path = state["path"]


class FileLock(contextlib.AbstractContextManager["FileLock"]):
    """One process's handle on the lock, for ``with``.

    Args:
        file: the lock's file, or None for a lock that guards nothing.
        probe: where waits are counted and timed, and where a stop is seen: then the lock is waited for
            only a moment longer, else until a holder that hangs would have been killed.
    """

    def __init__(self, file: LockFile | None, probe: Probe | None = None) -> None:
        self._file: IO[bytes] | None = None if file is None else file.path.open("r+b")
        self._probe = probe
        self.num_waits = 0

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            TimeoutError: another process kept it until the deadline.
        """
        if self._file is None or _try_lock(self._file):
            return self
        self.num_waits += 1
        began_ns = time.perf_counter_ns()
        while not _try_lock(self._file):
            limit = self._limit_seconds()
            if time.perf_counter_ns() - began_ns > limit * 1e9:
                raise TimeoutError(f"the lock was not free for {limit} seconds")
            time.sleep(RETRY_SECONDS)
        if self._probe is not None:
            self._probe.count("lock_waits")
            self._probe.waited_since(began_ns)
        return self

    def _limit_seconds(self) -> float:
        if self._probe is None:
            return LOCK_TIMEOUT_SECONDS
        self._probe.beat()
        if self._probe.is_stopping:
            return STOPPING_TIMEOUT_SECONDS
        return LOCK_TIMEOUT_SECONDS + self._probe.worker_timeout_seconds

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back."""
        if self._file is not None:
            _unlock(self._file)

    def close(self) -> None:
        """Close the file, which also gives the lock back."""
        if self._file is not None:
            self._file.close()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
