"""Tiny roles for the tests of processes. Spawned children import this file by its name."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from common.config import Config
from common.probe import Probe
from common.processes import Role
from common.supervisor import RunProbe, Shared, run_roles


def step(config: Config, probe: Probe) -> None:
    """Count env steps until told to stop."""
    while not probe.should_stop():
        probe.count("env_steps")
        probe.set("stored", 0)
        time.sleep(0.0005)


def step_slowly_to_start(config: Config, probe: Probe, seconds: float) -> None:
    """Note, as ``stored``, when this role became ready, and as ``dropped`` when it went on."""
    time.sleep(seconds)
    probe.set("stored", time.perf_counter_ns())
    probe.should_stop()
    probe.set("dropped", time.perf_counter_ns())
    step_on(config, probe)


def step_on(config: Config, probe: Probe) -> None:
    """Step without touching the notes."""
    while not probe.should_stop():
        probe.count("env_steps")
        time.sleep(0.0005)


def wait_for_others(config: Config, probe: Probe) -> None:
    """Give signs of life, and wait at a barrier that nobody else comes to."""
    while not probe.should_stop():
        probe.wait("barrier")


def wait_for_the_gone(config: Config, probe: Probe) -> None:
    """Make all env steps of the run, and then wait for a worker as one waits at a barrier."""
    probe.should_stop()
    probe.count("env_steps", config.steps)
    while not any(probe.workers_gone):
        probe.should_stop_within()
        time.sleep(0.002)


def take_threads(config: Config, probe: Probe) -> None:
    """Ask for threads as an environment might, before the first stop check."""
    import torch

    torch.set_num_threads(2)
    step(config, probe)


def fail(config: Config, probe: Probe) -> None:
    """Raise in the middle of the run."""
    for _ in range(20):
        probe.should_stop()
    raise ValueError("planted fault 4711")


def kill_itself(config: Config, probe: Probe, number: int) -> None:
    """Die in the middle of the run by a signal."""
    for _ in range(20):
        probe.should_stop()
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(config: Config, probe: Probe) -> None:
    """End the process without a word."""
    probe.should_stop()
    os._exit(3)


def ignore_stop(config: Config, probe: Probe) -> None:
    """Give signs of life and do not listen to what is asked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        probe.should_stop()
        probe.count("env_steps")
        time.sleep(0.005)


def print_something(config: Config, probe: Probe) -> None:
    """Write where an environment might write."""
    print("printed by a role")
    sys.stdout.flush()
    os.write(1, b"written by a role\n")
    step(config, probe)


def step_in(config: Config, probe: Probe, folder: Path) -> None:
    """Leave this process's id as a file's name, then step."""
    probe.should_stop()
    (folder / str(os.getpid())).touch()
    step(config, probe)


def run_for_ever(folder: str) -> None:
    """What the parent that is going to be killed does."""
    config = Config(steps=10**12)
    roles = [Role("stepper", worker, step_in, (Path(folder),)) for worker in range(2)]
    run_roles(config, RunProbe(), roles, Shared(config))
