"""Tiny roles that die as a test planned it. Spawned children import this file by its name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import numpy as np

from common.audit import MasterWriter
from common.config import Config
from common.locks import FileLock
from common.probe import Probe
from common.processes import worker_stream
from common.shared_memory import SharedArrays
from common.supervisor import Shared

CHECKS = 20


def make_notes(workers: int) -> SharedArrays:
    """Row w is written by worker w: what it drew in each life, and when it was last seen, in ns."""
    return SharedArrays({"drawn": ((workers, 8), np.float64), "seen_ns": ((workers,), np.int64)})


def die(how: str) -> None:
    """End, or stop to answer, as a test says."""
    if how == "raise":
        raise ValueError("planted fault 4711")
    if how == "exit":
        os._exit(3)
    if how == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)


def step(config: Config, probe: Probe, notes: SharedArrays, worker: int, deaths: Sequence[str]) -> None:
    """Count env steps; in life number i, end as ``deaths[i]`` says, and after them live on."""
    generator = np.random.default_rng(worker_stream(config, probe, "environment", worker))
    notes["drawn"][worker, probe.restarts] = generator.random()
    checks = 0
    while not probe.should_stop():
        checks += 1
        if checks > CHECKS and probe.restarts < len(deaths):
            die(deaths[probe.restarts])
        probe.count("env_steps")
        probe.count("stored")
        probe.record("acting_lag", probe.restarts)
        notes["seen_ns"][worker] = time.perf_counter_ns()
        time.sleep(0.001)


def die_at_start(config: Config, probe: Probe, how: str) -> None:
    """Never come to a stop check."""
    die(how)


def evaluate(config: Config, probe: Probe) -> None:
    """Ask for an evaluation once a while."""
    while not probe.should_stop():
        probe.count_update()
        if probe.evaluation_is_due():
            probe.evaluate()
        time.sleep(0.001)


def add_up(
    config: Config, probe: Probe, shared: Shared, worker: int, how: str | None, lock: bool
) -> None:
    """Add to the master, alone among the writers if there is a lock; die in the middle of an update."""
    writer = MasterWriter(shared.master, worker)
    guard = FileLock(shared.lock_file if lock else None, probe)
    vector = np.empty(shared.master.num_parameters, dtype=np.float32)
    while not probe.should_stop():
        with guard:
            writer.read_into(vector)
            vector += np.float32(2.0**-20)
            if how and probe.restarts == 0 and probe.own_updates == CHECKS:
                shared.master.words[worker, 0] += 1
                shared.master.weights[: len(vector) // 2] += 2.0**-20 + 2.0**-48
                die(how)
            writer.apply(vector)
        probe.count_update()
        probe.count("env_steps")
        probe.count("stored")
        time.sleep(0.0005)
