"""The ways to write shared weights, raced against each other in real processes.

No environment and no network: a worker reads the weights, computes for a while, and writes a small
change, over and over. The writing is that of the strategies (``MasterWriter``), and so is the counting.
A process that runs here loads numpy and no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from common.acting import NetworkSpec
from common.audit import AuditReader, MasterWriter, SharedMaster
from common.locks import FileLock, LockFile
from common.processes import leave_with_parent, limit_threads
from common.shared_memory import SharedArrays
from common.types import FloatArray

# What is raced, and what each path is in the toolkit.
PATHS = {
    "single writer": "one worker writes, the others only read (apex, impala)",
    "in-place": "each adds its change to the shared weights (hogwild)",
    "lock": "the same under a file lock (hogwild --lock)",
    "gradient push": "each steps one shared optimizer and adds the step (a3c)",
    "copy-back": "each writes back all that it read, changed (hogwild --write copy-back)",
}
LOSES_NOTHING = ("single writer", "lock")

STEP = 1e-4  # a change is this large: small enough that no weight comes near the end of the range
ROWS = 4
RMSPROP_DECAY, RMSPROP_EPSILON = 0.99, 1e-4

START_SECONDS = 60.0  # for a process to be ready
STALL_SECONDS = 30.0  # without any update
STOP_SECONDS = 10.0
POLL_SECONDS = 0.002
WAIT_SECONDS = 0.0001

READY, DONE, LOCK_WAITS, WORDS = 0, 1, 2, 8  # words of one worker
GO, STOP = 0, 1  # words of the parent


class RaceError(RuntimeError):
    """A worker did not do what it should."""


@dataclass(frozen=True)
class Cell:
    """One race.

    Attributes:
        path: one of ``PATHS``.
        workers: processes.
        hidden_size: of the network for CartPole whose weights are written.
        work_milliseconds: processor time that a worker computes between reading and writing.
    """

    path: str
    workers: int
    hidden_size: int
    work_milliseconds: float


@dataclass(frozen=True)
class Budget:
    """How long a race goes on: for some seconds, or until each writer has made so many updates."""

    seconds: float | None = None
    updates: int | None = None


def num_elements(hidden_size: int) -> int:
    """Return the weights of the toolkit's network for CartPole with this width."""
    return NetworkSpec((4,), "float32", 2, hidden_size, layer_norm=False).num_parameters


class Race:
    """What the processes of one race share."""

    def __init__(self, cell: Cell, updates: int | None) -> None:
        self.cell, self.updates = cell, updates
        size = num_elements(cell.hidden_size)
        self.master = SharedMaster(np.zeros(size, dtype=np.float32), cell.workers)
        self.lock_file = LockFile() if cell.path == "lock" else None
        # words: row k is written by worker k alone. control: written by the parent alone. square: the
        # shared optimizer's state, read and written by every worker of a gradient push, unguarded.
        self.arrays = SharedArrays(
            {
                "words": ((cell.workers, WORDS), np.int64),
                "control": ((2,), np.int64),
                "square": ((size,), np.float32),
            }
        )

    def writes(self, worker: int) -> bool:
        """Return whether a worker writes at all."""
        return worker == 0 or self.cell.path != "single writer"


# --- The child's side ---


def work(race: Race, worker: int) -> None:
    """Read, compute and write until the race ends. The target of ``Process``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    leave_with_parent()
    limit_threads()
    words, control = race.arrays["words"][worker], race.arrays["control"]
    lock = FileLock(race.lock_file)
    update = make_update(race, worker, lock)
    left = race.updates if race.updates is not None and race.writes(worker) else -1
    words[READY] = 1
    deadline = time.perf_counter() + 2 * START_SECONDS
    while not control[GO] and time.perf_counter() < deadline:
        time.sleep(WAIT_SECONDS)
    while left != 0 and not control[STOP]:
        update()
        left -= 1
    words[LOCK_WAITS] = lock.num_waits
    words[DONE] = 1


def make_update(race: Race, worker: int, lock: FileLock) -> Callable[[], None]:
    """Return what a worker does over and over, on buffers that are made once."""
    cell = race.cell
    write = "copy-back" if cell.path == "copy-back" else "in-place"
    writer = MasterWriter(race.master, worker, write)
    vector = np.empty(race.master.num_parameters, dtype=np.float32)
    generator = np.random.default_rng(worker)
    gradients = generator.normal(size=(ROWS, len(vector))).astype(np.float32)
    rows = iter_forever(gradients)
    compute = make_work(cell.work_milliseconds)
    push = make_push(race.arrays["square"], len(vector)) if cell.path == "gradient push" else None

    def update() -> None:
        writer.read_into(vector)
        compute()
        if not race.writes(worker):
            return
        gradient = next(rows)
        with lock:
            if push is None:
                np.subtract(vector, np.float32(STEP) * gradient, out=vector)
            else:
                push(vector, gradient)
            writer.apply(vector)

    return update


def iter_forever(rows: FloatArray) -> Iterator[FloatArray]:
    """Yield each row and its opposite in turn, without end: in sum nothing moves."""
    while True:
        for row in rows:
            yield row
            yield -row


def make_push(square: FloatArray, size: int) -> Callable[[FloatArray, FloatArray], None]:
    """Return one step of RMSProp whose state all workers share and overwrite (Mnih et al. 2016)."""
    scratch = np.empty(size, dtype=np.float32)

    def push(vector: FloatArray, gradient: FloatArray) -> None:
        np.multiply(gradient, gradient, out=scratch)
        scratch[...] *= np.float32(1 - RMSPROP_DECAY)
        np.multiply(square, np.float32(RMSPROP_DECAY), out=square)
        np.add(square, scratch, out=square)
        np.sqrt(square, out=scratch)
        scratch[...] += np.float32(RMSPROP_EPSILON)
        np.divide(gradient, scratch, out=scratch)
        scratch[...] *= np.float32(STEP)
        np.subtract(vector, scratch, out=vector)

    return push


def make_work(milliseconds: float) -> Callable[[], None]:
    """Return a function that multiplies matrices for so much processor time of its own.

    Processor time, so that a worker that had to wait for a core computes as long as any other.
    """
    matrix = np.full((32, 32), 0.5, dtype=np.float32)
    product = np.empty_like(matrix)
    nanoseconds = milliseconds * 1e6

    def compute() -> None:
        if nanoseconds == 0:
            return
        until = time.thread_time_ns() + nanoseconds
        while time.thread_time_ns() < until:
            np.matmul(matrix, matrix, out=product)

    return compute


# --- The parent's side ---


def run_race(cell: Cell, budget: Budget) -> dict[str, Any]:
    """Run one race and return the cell, what the audit counted, and how fast it went.

    Raises:
        RaceError: a worker ended early, or nothing went on.
        ConfigError: the weights do not fit into memory.
    """
    race = Race(cell, budget.updates)
    reader = AuditReader(race.master)
    with processes_of(race) as processes:
        wait_for(race, processes, READY, START_SECONDS)
        started = time.perf_counter()
        race.arrays["control"][GO] = 1
        watch(race, processes, reader, budget.seconds)
        seconds = time.perf_counter() - started
        race.arrays["control"][STOP] = 1
        wait_for(race, processes, DONE, STOP_SECONDS)
    state = "shared, not audited" if cell.path == "gradient push" else "local"
    report = reader.report(state)
    return {
        **dataclasses.asdict(cell),
        "seconds": seconds,
        "updates_per_second": report["updates_issued"] / seconds,
        "lock_waits": int(race.arrays["words"][:, LOCK_WAITS].sum()),
        "audit": report,
    }


@contextlib.contextmanager
def processes_of(race: Race) -> Iterator[list[BaseProcess]]:
    """Start a race's processes; none outlives the block, however it is left."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    if sys.platform != "win32":
        # It starts with the first process else, and unblocks SIGINT when it has.
        resource_tracker.ensure_running()
    mask: Callable[..., Any] = getattr(signal, "pthread_sigmask", lambda *_: None)
    try:
        for worker in range(race.cell.workers):
            # A child inherits the blocked signal, so that Ctrl-C cannot reach it while it starts.
            mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})
            try:
                process = context.Process(target=work, args=(race, worker), daemon=True)
                process.start()
                processes.append(process)
            finally:
                mask(getattr(signal, "SIG_UNBLOCK", 0), {signal.SIGINT})
        yield processes
        for process in processes:
            process.join(STOP_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.join(STOP_SECONDS)


def watch(race: Race, processes: list[BaseProcess], reader: AuditReader, seconds: float | None) -> None:
    """Wait until the seconds are over, or every writer is done."""
    writers = [worker for worker in range(race.cell.workers) if race.writes(worker)]
    started = moved = time.perf_counter()
    issued = 0
    while not race.arrays["words"][writers, DONE].all():
        now = time.perf_counter()
        if seconds is not None and now - started >= seconds:
            return
        if race.master.updates_issued != issued:
            issued, moved = race.master.updates_issued, now
        if now - moved > STALL_SECONDS:
            raise RaceError(f"no update was made for {STALL_SECONDS:g} seconds")
        reader.sample_if_due()
        require_alive(race, processes)
        time.sleep(POLL_SECONDS)


def wait_for(race: Race, processes: list[BaseProcess], word: int, seconds: float) -> None:
    """Wait until every worker has set a word."""
    deadline = time.perf_counter() + seconds
    while not race.arrays["words"][:, word].all():
        require_alive(race, processes)
        if time.perf_counter() > deadline:
            raise RaceError(f"a worker was not there after {seconds:g} seconds")
        time.sleep(POLL_SECONDS)


def require_alive(race: Race, processes: list[BaseProcess]) -> None:
    """Raise if a worker ended before it was done."""
    for worker, process in enumerate(processes):
        if not process.is_alive() and not race.arrays["words"][worker, DONE]:
            raise RaceError(f"worker {worker} ended early, with exit code {process.exitcode}")
