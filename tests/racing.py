"""What child processes of the concurrency tests run. Light: a spawned child imports only this."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np

from common.config import Config
from common.probe import Probe
from common.shared_memory import SharedArrays
from common.telemetry import Telemetry
from common.types import LaneStep

if TYPE_CHECKING:
    from common.acting import NetworkSpec
    from common.weights import SharedWeights

NUM_ACTIONS = 3
STOP, READY, VIOLATIONS, DONE = range(4)  # words of a test's own flags, one writer each


def make_flags() -> SharedArrays:
    return SharedArrays({"flags": ((8,), np.int64)})


@contextmanager
def children(*targets: tuple[Any, ...]) -> Iterator[list[Any]]:
    """Start (function, *arguments) in processes of their own; none outlives the block."""
    context = get_context("spawn")
    processes = [context.Process(target=t[0], args=t[1:], daemon=True) for t in targets]
    try:
        for process in processes:
            process.start()
        yield processes
        for process in processes:
            process.join(30)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < deadline, "waited too long"
        time.sleep(0.001)


# --- Rows of which every field follows from the row's number and the lane ---


def row_number(row: int) -> tuple[int, bool, bool, bool]:
    """Return (position in its episode, valid, terminated, truncated): episodes of 4 rows and 1."""
    at = row % 5
    episode = row // 5
    return at, at != 4, at == 3 and episode % 3 != 1, at == 3 and episode % 3 != 0


def row_step(row: int, num_lanes: int, width: int) -> tuple[np.ndarray, np.ndarray, LaneStep]:
    """Return observation, action and step of a row."""
    _, valid, terminated, truncated = row_number(row)
    lanes = np.arange(num_lanes)
    code = row * num_lanes + lanes
    observation = np.repeat(code[:, None], width, axis=1).astype(np.int32)
    step = LaneStep(
        observation=observation,  # not used by the writer
        reward=(code % 1024).astype(np.float32) * valid,
        terminated=np.full(num_lanes, terminated),
        truncated=np.full(num_lanes, truncated),
        valid=np.full(num_lanes, valid),
    )
    return observation, code % NUM_ACTIONS, step


def write_rows(flags: SharedArrays, buffer: Any, config: Config, probe: Probe, width: int) -> None:
    """Write rows at full speed until told to stop."""
    from common.experience import SegmentWriter

    writer = SegmentWriter(buffer, 0, config)
    q_values = np.zeros((config.envs_per_worker, NUM_ACTIONS), dtype=np.float32)
    probability = np.ones(config.envs_per_worker, dtype=np.float32)
    row = 0
    while not flags["flags"][STOP]:
        observation, action, step = row_step(row, config.envs_per_worker, width)
        writer.write(observation, q_values, action, probability, step, row)
        writer.publish_when_full(probe)
        row += 1
    observation, _, _ = row_step(row, config.envs_per_worker, width)
    writer.flush(observation, probe)


# --- Weights of which every element is the version ---


def constant(spec: NetworkSpec, version: int) -> np.ndarray:
    return np.full(spec.num_parameters, version, dtype=np.float32)


def publish(flags: SharedArrays, weights: SharedWeights) -> None:
    """Publish at full speed until told to stop."""
    vector = constant(weights.spec, 0)
    flags["flags"][READY] = 1
    while not flags["flags"][STOP]:
        vector.fill(weights.version + 1)
        weights.publish(vector)


def is_torn(vector: np.ndarray, version: int) -> bool:
    """The check of every reader: one value everywhere, and it is the version."""
    return bool((vector != version).any())


def pull_and_check(flags: SharedArrays, weights: SharedWeights) -> None:
    """Pull at full speed, count what is wrong."""
    vector, version = weights.latest()
    while not flags["flags"][STOP]:
        newer = weights.pull(vector, version)
        wrong = is_torn(vector, newer) or newer < version
        flags["flags"][VIOLATIONS] += int(wrong)
        flags["flags"][DONE] += int(newer > version)
        version = newer


def publish_half(flags: SharedArrays, weights: SharedWeights, versions: int) -> None:
    """Publish some whole versions, then one of which only half is copied; then hang."""
    import common.weights

    for version in range(1, versions + 1):
        weights.publish(constant(weights.spec, version))

    class HalfCopy:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def copyto(self, target: np.ndarray, source: np.ndarray) -> None:
            target[: len(target) // 2] = source[: len(source) // 2]
            flags["flags"][READY] = 1
            time.sleep(60)

    common.weights.np = HalfCopy()  # type: ignore[assignment]
    weights.publish(constant(weights.spec, versions + 1))


# --- Counters, flags, memory ---


def count_up(flags: SharedArrays, probe: Probe, role: int, number: int) -> None:
    """Count ``number`` times, while the others do."""
    flags["flags"][role] = 1
    while not flags["flags"].all():
        time.sleep(0.001)
    for _ in range(number):
        probe.count("env_steps")
        probe.count("stored", 2)


def beat(flags: SharedArrays, probe: Probe) -> None:
    """Look at the stop check for as long as it says to go on."""
    while not probe.should_stop():
        flags["flags"][READY] += 1
        time.sleep(0.0002)
    flags["flags"][DONE] = 1


def make_probe(config: Config, roles: int = 1, role: int = 0) -> tuple[Telemetry, Probe]:
    telemetry = Telemetry(roles)
    return telemetry, Probe(telemetry, role, config)


def fill(arrays: SharedArrays, value: int) -> None:
    arrays["numbers"][...] = value
    arrays["pid"][...] = os.getpid()


def hold_memory(arrays: SharedArrays) -> None:
    """Use the shared memory, make some of its own, and hang."""
    own = SharedArrays({"mine": ((1 << 20,), np.int64)})
    own["mine"][...] = 1
    fill(arrays, 3)
    time.sleep(60)
