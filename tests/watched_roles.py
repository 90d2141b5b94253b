"""Runs a strategy's own role function with all that it takes in checked, and perhaps a fault planted.

Everything here is run in the role's process. Transitions come from ``counting_env`` and tell where they
come from; published weights are told by a checksum per version, left before they are published.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import counting_env as ce
import numpy as np

from common import audit, barrier, experience, weights
from common.audit import MasterWriter
from common.config import Config
from common.probe import Probe
from common.shared_memory import SharedArrays
from common.trajectories import Trajectory, TrajectoryQueue
from common.weights import SharedWeights

TRANSITIONS, WRONG_TRANSITIONS, PULLS, TORN_PULLS, FAULTS = range(5)
VERSIONS = 1 << 14
LENGTHS = np.array(ce.LENGTHS)
FENCED = {"weights": weights, "audit": audit, "experience": experience, "barrier": barrier}


def make_findings(num_roles: int) -> SharedArrays:
    """counts: row i is written by role i. checksum: by who publishes, before it does."""
    return SharedArrays({"counts": ((num_roles, 8), np.int64), "checksum": ((VERSIONS,), np.int64)})


@dataclass(frozen=True)
class Fault:
    """Where a process ends or stops, in its first life.

    Attributes:
        place: ``before`` or ``after`` the function, in the ``half`` of it, or ``module:n`` for the n-th
            memory fence of that module.
        function: which one, in ``common``.
        call: in which call of it.
        how: a signal's name.
    """

    place: str
    function: str
    call: int
    how: str = "SIGKILL"


def watched(
    config: Config,
    probe: Probe,
    function: Callable[..., None],
    findings: SharedArrays,
    fault: Fault | None,
    *arguments: Any,
) -> None:
    """Run a role."""
    counts = findings["counts"][probe._role]
    if fault is not None and probe.restarts == 0:
        plant(fault, counts)
    _watch_weights(findings["checksum"], counts)
    _watch_experience(config, sys.modules[function.__module__], counts)
    function(config, probe, *arguments)


def _watch_weights(checksum: np.ndarray, counts: np.ndarray) -> None:
    publish, pull = SharedWeights.publish, SharedWeights.pull

    def noted(self: SharedWeights, vector: np.ndarray) -> int:
        checksum[(self.version + 1) % VERSIONS] = zlib.crc32(vector.tobytes())
        return publish(self, vector)

    def checked(self: SharedWeights, into: np.ndarray, have_version: int) -> int:
        version = pull(self, into, have_version)
        if version > max(have_version, 0):
            counts[PULLS] += 1
            counts[TORN_PULLS] += zlib.crc32(into.tobytes()) != checksum[version % VERSIONS]
        return version

    SharedWeights.publish, SharedWeights.pull = noted, checked  # type: ignore[method-assign]


def _watch_experience(config: Config, strategy: Any, counts: np.ndarray) -> None:
    if hasattr(strategy, "make_replay"):
        make = strategy.make_replay

        def make_checked(*values: Any) -> Any:
            replay = make(*values)
            sample = replay.sample

            def checked() -> Any:
                batch = sample()
                note(counts, wrong_in_batch(config, batch))
                return batch

            replay.sample = checked
            return replay

        strategy.make_replay = make_checked
    take = TrajectoryQueue.take

    def take_checked(self: TrajectoryQueue, probe: Probe) -> Trajectory | None:
        trajectory = take(self, probe)
        if trajectory is not None:
            note(counts, wrong_in_trajectory(trajectory))
        return trajectory

    TrajectoryQueue.take = take_checked  # type: ignore[method-assign]
    if hasattr(strategy, "learn_from"):
        learn = strategy.learn_from

        def learn_checked(*values: Any) -> Any:
            (rollout,) = [value for value in values if isinstance(value, Trajectory)]
            note(counts, wrong_in_trajectory(rollout))
            return learn(*values)

        strategy.learn_from = learn_checked


def note(counts: np.ndarray, wrong: np.ndarray) -> None:
    counts[TRANSITIONS] += len(wrong)
    counts[WRONG_TRANSITIONS] += int(wrong.sum())


def wrong_in_batch(config: Config, batch: Any) -> np.ndarray:
    """Return which transitions of a batch no environment can have given, whatever came later."""
    stream, episode, step = batch.observation.astype(np.int64).T
    left = LENGTHS[(stream + episode) % len(LENGTHS)] - step
    horizon = np.minimum(config.n_step, left)
    after = np.stack([stream, episode, step + horizon], axis=1)
    terminated = (horizon == left) & ((stream + episode) % len(ce.ENDINGS) != 1)
    expected = np.zeros(len(step))
    for k in range(config.n_step):
        reward = 1 + episode + (step + k) / 64 + (batch.action / 1024 if k == 0 else 0)
        expected += np.where(k < horizon, config.gamma**k * reward, 0)
    slack = 2 / 1024 * config.n_step + 1e-5 * expected
    paid = batch.n_step_return - expected
    wrong = (left < 1) | (paid < -1e-5 * expected - 1e-4) | (paid > slack)
    wrong |= (after != batch.bootstrap_observation).any(axis=1)
    discount = np.where(terminated, 0.0, config.gamma**horizon)
    return wrong | (np.abs(batch.bootstrap_discount - discount) > 1e-5)


def wrong_in_trajectory(trajectory: Trajectory) -> np.ndarray:
    """Return which transitions of a trajectory no environment can have given."""
    valid = trajectory.valid
    stream, episode, step = trajectory.observation[:-1][valid].astype(np.int64).T
    action = trajectory.action[valid]
    ends = step + 1 == LENGTHS[(stream + episode) % len(LENGTHS)]
    kind = (stream + episode) % len(ce.ENDINGS)
    wrong = np.abs(trajectory.reward[valid] - (1 + episode + step / 64 + action / 1024)) > 1e-3
    wrong |= trajectory.terminated[valid] != (ends & (kind != 1))
    wrong |= trajectory.truncated[valid] != (ends & (kind != 0))
    after = np.stack([stream, episode, step + 1], axis=1)
    return wrong | (trajectory.observation[1:][valid] != after).any(axis=1)


# --- Faults that are planted at an exact place ---


def plant(fault: Fault, counts: np.ndarray) -> None:
    """Make this process end, or stop, exactly there."""
    calls = 0
    owner, name = _owner(fault.function)
    original = getattr(owner, name)
    state = {"inside": False, "fences": 0}

    def end() -> None:
        counts[FAULTS] += 1
        os.kill(os.getpid(), getattr(signal, fault.how))
        time.sleep(60)

    def counted(*values: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        state.update(inside=calls == fault.call, fences=0)
        if state["inside"] and fault.place == "half":
            HALVES[name](values[0], values[1])
            end()
        if state["inside"] and fault.place == "before":
            end()
        try:
            return original(*values, **named)
        finally:
            if state["inside"] and fault.place == "after":
                end()
            state["inside"] = False

    setattr(owner, name, counted)
    module, _, number = fault.place.partition(":")
    if number:
        fence = FENCED[module].memory_fence

        def deadly() -> None:
            state["fences"] += state["inside"]
            if state["inside"] and state["fences"] == int(number):
                end()
            fence()

        FENCED[module].memory_fence = deadly  # type: ignore[attr-defined]


def half_an_update(writer: MasterWriter, vector: np.ndarray) -> None:
    """Do the first half of what ``MasterWriter.apply`` does."""
    writer.make_delta(vector)
    writer._words[audit.STARTED] += 1
    half = writer._num_parameters // 2
    writer._weights[:half] += writer.delta[:half]


def half_a_publish(shared: SharedWeights, vector: np.ndarray) -> None:
    """Do the first half of what ``SharedWeights.publish`` does."""
    new = shared.version + 1
    shared._arrays["version"][weights.WRITING] = new
    half = len(vector) // 2
    shared._arrays["slots"][new % 2][:half] = vector[:half]


HALVES: dict[str, Callable[[Any, np.ndarray], None]] = {
    "apply": half_an_update,
    "publish": half_a_publish,
}


def _owner(path: str) -> tuple[Any, str]:
    module, kind, name = path.split(".")
    return getattr(sys.modules[f"common.{module}"], kind), name
