"""The child's side of a run: seeds, thread limits, and what wraps a role function in its process.

``spawn`` everywhere: a forked child would inherit locks and thread pools in whatever state they were.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from common.config import Config
from common.health import NotFiniteError
from common.probe import Probe

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)

# With 4 bytes each and what pickle adds it stays below the 16 KiB that are sent at once.
MAX_TRACEBACK_CHARACTERS = 3_900

# One purpose, one stream: no two processes or vector envs may draw the same numbers.
STREAM_PURPOSES = ("weights", "environment", "exploration", "replay", "evaluation")


def limit_threads() -> None:
    """Limit numeric libraries to one thread in this process and in those it starts.

    Must run before numpy or torch is loaded to count for them; what is loaded already is limited
    through threadpoolctl. A small network's matrix products are far too small to share: with the
    libraries' defaults every worker starts a thread per core and they all wait for each other.
    """
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    threadpoolctl.threadpool_limits(1)


def limit_torch_threads() -> None:
    """Limit torch's own pool to one thread in this process."""
    import torch

    torch.set_num_threads(1)


def thread_limits() -> dict[str, int]:
    """Return the limit that each numeric library loaded here reports."""
    limits = {
        f"{pool['internal_api']}:{pool['prefix']}": int(pool["num_threads"])
        for pool in threadpoolctl.threadpool_info()
    }
    if "torch" in sys.modules:
        limits["torch"] = int(sys.modules["torch"].get_num_threads())
    return limits


def require_one_thread(role_name: str) -> None:
    """Refuse to train beside threads that somebody asked for after the limits were set.

    Raises:
        RuntimeError: a library has more than one.
    """
    limits = thread_limits()
    if any(number > 1 for number in limits.values()):
        raise RuntimeError(
            f"more than one thread per library in {role_name}: {limits}; every process has one core to "
            "itself, so have the environment leave the number of threads alone"
        )


def device_used() -> str | None:
    """Return what the learner of this process computes on; None if there is none here."""
    module = sys.modules.get("common.device")
    device: str | None = getattr(module, "used", None)
    return device


def random_stream(seed: int, purpose: str, worker: int = 0, number: int = 0) -> np.random.SeedSequence:
    """Return the seed of one stream of random numbers; different arguments, different streams."""
    return np.random.SeedSequence([seed, STREAM_PURPOSES.index(purpose), worker, number])


def worker_stream(config: Config, probe: Probe, purpose: str, worker: int) -> np.random.SeedSequence:
    """Return the seed of a worker's stream. One that takes another's place has streams of its own.

    They are others in each part of a resumed run, whose count of restarts begins anew.
    """
    number = probe.restarts and probe.restarts + probe.env_steps_before
    return random_stream(config.seed, purpose, worker, number)


# What asks a run to end: Ctrl-C, kill, a terminal that is closed.
END_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def heeded_signals() -> list[int]:
    """Return which of them a run heeds: not a closed terminal that ``nohup`` has it ignore."""
    hangup = getattr(signal, "SIGHUP", None)
    is_ignored = hangup is not None and signal.getsignal(hangup) == signal.SIG_IGN
    return [number for number in END_SIGNALS if not (is_ignored and number == hangup)]


@dataclass(frozen=True)
class Role:
    """A process to start: ``function(config, probe, *arguments)``.

    Attributes:
        name: of the role.
        worker: its number among its kind.
        function: at module level, since ``spawn`` finds it by its name.
        arguments: shared structures and the like.
        can_restart: whether another process can take its place when it dies. It must then find all that
            it needs in shared memory.
    """

    name: str
    worker: int
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    can_restart: bool = False


def run_child(
    role: Role, config: Config, probe: Probe, connection: Connection, spawned_at: float
) -> None:
    """Run a role in its own process and report how it went. The target of ``Process``."""
    start_seconds = time.perf_counter() - spawned_at
    try:
        prepare_child()
        connection.send(("started", {"start_seconds": start_seconds}))
        probe.at_start(functools.partial(require_one_thread, role.name))
        role.function(config, probe, *role.arguments)
        probe.finish()
        cpu_seconds = time.process_time() - probe.cpu_seconds_at_start
        require_one_thread(role.name)
        connection.send(
            (
                "finished",
                {
                    "threads": thread_limits(),
                    "imports_torch": "torch" in sys.modules,
                    "device": device_used(),
                    "cpu_seconds": cpu_seconds,
                },
            )
        )
    except NotFiniteError as error:
        connection.send(("failed", {"traceback": str(error), "not_finite": True}))
        sys.exit(1)
    except BaseException:
        connection.send(("failed", {"traceback": short(traceback.format_exc())}))
        sys.exit(1)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start a process inside: it inherits a blocked SIGINT until it ignores it by itself.

    A Ctrl-C reaches the whole group, and the supervisor alone decides.
    """
    mask: Callable[..., Any] = getattr(signal, "pthread_sigmask", lambda *_: None)
    mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})
    try:
        yield
    finally:
        mask(getattr(signal, "SIG_UNBLOCK", 0), {signal.SIGINT})


def has_ended(process: BaseProcess, seconds: float) -> bool:
    """Return whether a process ends in time. Never waits longer, as ``join`` with a timeout can.

    ``join`` takes the end of a pipe for the end of the process, and then waits for that without a
    limit; an environment that closes all files ends the pipe and lives on.
    """
    deadline = time.perf_counter() + seconds
    while process.is_alive():
        if time.perf_counter() > deadline:
            return False
        time.sleep(0.002)
    return True


def prepare_child() -> None:
    """Do what every child process does before anything else."""
    # An environment may print; standard output belongs to the supervisor (and to --json).
    os.dup2(2, 1)
    # Ctrl-C, a SIGTERM to the group and a closed terminal reach all; the supervisor decides.
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    leave_with_parent()
    with contextlib.suppress(OSError):  # top and ps then tell the roles apart, where there is a /proc
        Path("/proc/self/comm").write_text(multiprocessing.current_process().name, encoding="ascii")
    limit_threads()


def short(text: str) -> str:
    """Return a traceback that one write can send: its beginning and its end.

    Longer messages are written in pieces, and whoever reads waits for a writer stopped between two.
    """
    if len(text) <= MAX_TRACEBACK_CHARACTERS:
        return text
    half = MAX_TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n  ...\n{text[-half:]}"


def leave_with_parent() -> None:
    """End this process as soon as its parent is gone, however that happened."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="leave-with-parent", daemon=True).start()
