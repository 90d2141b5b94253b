"""Named numpy arrays in one piece of memory that processes share.

The memory is a spawn-context ``RawArray``: its file is unlinked when it is made, and the kernel frees
it with the last process that holds it, also after ``kill -9``. There is no name to leak and no lock
inside that a killed process could keep. It reaches a child only as an argument of its ``Process``.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

from common.config import ConfigError
from common.state_files import State, fill

ALIGNMENT_BYTES = 64  # one cache line: two writers' arrays never share a line

# What an actor takes that has loaded numpy and gymnasium only, and what one takes that loads torch.
PROCESS_MIB, LEARNING_PROCESS_MIB = 40, 200

_fence_lock = threading.Lock()


def memory_fence() -> None:
    """Order all stores before this call ahead of all stores after it, as seen by other processes.

    x86 keeps stores in order by itself; other processors (ARM) need to be told. Python has no fence,
    but a lock's release and the next acquire make one. The lock belongs to this process alone and
    nobody ever waits for it.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


class SharedArrays:
    """Named arrays in one shared block, all zero at the start.

    Who writes and who reads each array, and in what order, is said where it is created.
    """

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> None:
        self._layout: dict[str, tuple[tuple[int, ...], np.dtype[Any], int]] = {}
        offset = 0
        for name, (shape, dtype_like) in fields.items():
            dtype = np.dtype(dtype_like)
            self._layout[name] = (shape, dtype, offset)
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.num_bytes = offset + ALIGNMENT_BYTES
        _require_room(self.num_bytes)
        self._raw: Any = multiprocessing.get_context("spawn").RawArray("b", self.num_bytes)
        self._make_views()

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._views[name]

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self._layout, "num_bytes": self.num_bytes, "raw": self._raw}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._layout, self.num_bytes = state["layout"], state["num_bytes"]
        self._raw = state["raw"]
        self._make_views()

    def state(self) -> State:
        """Return every array; whole only while nobody writes."""
        return dict(self._views)

    def load_state(self, state: State) -> None:
        """Fill the arrays with what ``state`` returned.

        Raises:
            StateError: it is of other arrays.
        """
        for name, view in self._views.items():
            fill(view, state.get(name), name)

    def _make_views(self) -> None:
        base = np.frombuffer(self._raw, dtype=np.uint8)
        start = -base.ctypes.data % ALIGNMENT_BYTES
        self._views = {}
        for name, (shape, dtype, offset) in self._layout.items():
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            block = base[start + offset : start + offset + size]
            self._views[name] = block.view(dtype).reshape(shape)


def free_bytes() -> int:
    """Return how much can still be shared: free memory, and room for the file that holds it."""
    free: int = psutil.virtual_memory().available
    if sys.platform == "win32":
        return free
    # Where multiprocessing makes it: in /dev/shm on Linux if there is one, else among temporary files.
    has_shm = sys.platform.startswith("linux") and Path("/dev/shm").is_dir()
    folder = "/dev/shm" if has_shm else tempfile.gettempdir()
    return min(free, shutil.disk_usage(folder).free)


def _require_room(num_bytes: int) -> None:
    # Writing past a full /dev/shm is a bus error in the middle of a run, so it is asked first.
    free = free_bytes()
    if num_bytes > free:
        raise ConfigError(
            f"the run needs {num_bytes / 2**20:.0f} MiB of shared memory and {free / 2**20:.0f} MiB "
            "are free (memory, and /dev/shm in a container); ask for a smaller replay capacity: "
            f"{0.9 * free / num_bytes:.0%} of this one would fit"
        )


def require_room_for_processes(number: int, learns: bool = False) -> None:
    """Refuse more processes than memory can hold, before any memory is shared among them.

    Args:
        number: of processes that step environments.
        learns: whether each of them computes gradients, too, and so loads torch.

    Raises:
        ConfigError: even the smallest processes would not fit.
    """
    each = LEARNING_PROCESS_MIB if learns else PROCESS_MIB
    room = int(psutil.virtual_memory().available / 2**20 / each)
    if number > room:
        raise ConfigError(
            f"{number} workers are more than the free memory holds: at {each} MiB each at the least "
            f"there is room for {room}"
        )
