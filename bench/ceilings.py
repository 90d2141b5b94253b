"""What the parts of a strategy reach on this machine when each runs alone: the ceilings of a run.

Every part is measured in the processes that would do it, with 1 process up to one per core, under the
same supervisor, thread limits and common start as a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np

import strategies
from common.acting import ActingNetwork, NetworkSpec
from common.config import Config
from common.envs import make_lanes
from common.experience import ExperienceBuffer
from common.policy import epsilon_greedy
from common.probe import Probe
from common.processes import Role, random_stream
from common.replay import make_replay
from common.supervisor import RunProbe, Shared, run_roles
from common.types import RunResult
from common.weights import SharedWeights

NEVER = 10**12
SLICE_NS = 1_000_000  # work between two looks at the stop flag, which cost a microsecond
ACTIONS_KEPT = 256
EPSILON = 0.1
MOST_PROCESSES = 16  # those that load torch take hundreds of MiB each
MOST_ROWS = 20_000  # a larger replay takes longer to fill than to measure

# Part: what is counted, and the counter that holds it.
PARTS = {
    "environment": ("env steps/s", "env_steps"),
    "acting": ("env steps/s", "env_steps"),
    "update": ("updates/s", "updates"),
    "learning": ("updates/s", "updates"),
    "publish": ("publishes/s", "updates"),
}


def process_counts(cores: int) -> list[int]:
    """Return 1, 2, 4 and so on up to the number of cores, 16 at the most."""
    cores = min(cores, MOST_PROCESSES)
    return [2**power for power in range(cores.bit_length()) if 2**power < cores] + [cores]


def parts_of(strategy: str) -> list[str]:
    """Return the parts that a strategy has: no replay, no learning loop; no learner, no publishing."""
    traits = strategies.traits_of(strategy)
    missing = {"learning"} if "replay_capacity" in traits.unused_options else set()
    missing |= set() if "learner" in traits.roles else {"publish"}
    return [part for part in PARTS if part not in missing]


def measure(strategy: str, config: Config, part: str, number: int, seconds: float) -> float:
    """Return how much of one part ``number`` processes together do in a second.

    For ``publish`` it is one process that publishes while the others copy what it publishes.

    Raises:
        click.ClickException: a process failed.
    """
    config = quiet(config, seconds, number)
    shared = Shared(config)
    functions: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
        "environment": (_step, ()),
        "acting": (_act, (shared.spec,)),
        "update": (_update, (strategy, shared.spec)),
        "learning": (_learn, (strategy, shared)),
        "publish": (_publish, (shared.weights,)),
    }
    function, arguments = functions[part]
    roles = [Role(part, worker, function, (*arguments, worker)) for worker in range(number)]
    result = run_roles(config, RunProbe(final_evaluation=False), roles, shared)
    refuse_failure(result, f"{part} alone")
    counter = PARTS[part][1]
    counted = result.roles[0].counters[counter] if part == "publish" else result.total(counter)
    return counted / result.training_seconds


def quiet(config: Config, seconds: float, workers: int | None = None) -> Config:
    """Return a configuration that runs for some seconds, evaluates nothing and slows nobody."""
    changes: dict[str, Any] = {
        "steps": NEVER,
        "seconds": seconds,
        "evaluate_every_env_steps": NEVER,
        "until_solved": False,
        "max_restarts": 0,  # what a dead worker's successor does is another measurement
    }
    if workers is not None:
        changes |= {"workers": workers, "straggler": None}
    return dataclasses.replace(config, **changes)


def refuse_failure(result: RunResult, what: str) -> None:
    """Leave if a measurement did not run to its end.

    Raises:
        click.Abort: it was interrupted.
        click.ClickException: a process failed; the message is the last line of its traceback.
    """
    if result.status == "interrupted":
        raise click.Abort
    if result.status != "completed":
        lines = (result.error or result.status).strip().splitlines()
        raise click.ClickException(f"{what} could not be measured: {lines[-1]}")


# The role functions.


def _repeat(probe: Probe, counter: str, work: Callable[[], int]) -> None:
    """Do some work again and again until told to stop; it returns what it counts."""
    while not probe.should_stop():
        until, number = time.perf_counter_ns() + SLICE_NS, 0
        while time.perf_counter_ns() < until:
            number += work()
        probe.count(counter, number)


def _step(config: Config, probe: Probe, worker: int) -> None:
    """Step a worker's lanes with actions drawn beforehand."""
    lanes = make_lanes(config, worker, random_stream(config.seed, "environment", worker))
    actions = _actions(lanes.info.num_actions, config.envs_per_worker)
    lanes.reset()
    number = 0

    def work() -> int:
        nonlocal number
        number += 1
        step = lanes.step(actions[number % ACTIONS_KEPT])
        lanes.finished_episodes.clear()
        return int(step.valid.sum())

    _repeat(probe, "env_steps", work)
    lanes.close()


def _actions(num_actions: int, lanes: int) -> Sequence[Any]:
    return list(np.random.default_rng(0).integers(num_actions, size=(ACTIONS_KEPT, lanes)))


def _act(config: Config, probe: Probe, spec: NetworkSpec, worker: int) -> None:
    """Choose actions for a worker's lanes with the network's numpy twin."""
    _repeat(probe, "env_steps", make_acting(config, spec))


def make_acting(config: Config, spec: NetworkSpec) -> Callable[[], int]:
    """Return a function that chooses one action per lane, and returns how many that are."""
    from bench.bare_updates import first_weights, random_observation

    network = ActingNetwork(spec, first_weights(spec))
    observation = random_observation(spec, config.envs_per_worker)
    exploration = np.random.default_rng(0)

    def work() -> int:
        epsilon_greedy(network.q_values(observation), EPSILON, exploration)
        return config.envs_per_worker

    return work


def _update(config: Config, probe: Probe, strategy: str, spec: NetworkSpec, worker: int) -> None:
    """Update on one batch that stays the same."""
    from bench.bare_updates import make_update

    _repeat(probe, "updates", make_update(strategy, config, spec))


def _learn(config: Config, probe: Probe, strategy: str, shared: Shared, worker: int) -> None:
    """Draw a batch from a full replay that nobody writes, update, and write priorities back."""
    from bench.bare_updates import make_learner
    from bench.efficiency import fill_buffer

    rows = max(config.batch_size, min(config.replay_capacity, MOST_ROWS))
    own = dataclasses.replace(config, workers=1, replay_capacity=rows)
    buffer = ExperienceBuffer(own, shared.info)
    fill_buffer(own, buffer)
    replay = make_replay(own, buffer, np.random.default_rng(0), probe)
    replay.take_in()
    learner = make_learner(own, shared.spec)

    def work() -> int:
        batch = replay.sample()
        replay.update_priorities(batch, learner.update(batch).td_error)
        return 1

    _repeat(probe, "updates", work)


def _publish(config: Config, probe: Probe, weights: SharedWeights, worker: int) -> None:
    """Publish without a pause (worker 0), or copy what is published."""
    vector, version = weights.latest()

    def publish() -> int:
        weights.publish(vector)
        return 1

    def pull() -> int:
        nonlocal version
        with contextlib.suppress(RuntimeError):  # a writer without a pause may outrun every copy
            version = weights.pull(vector, version)
        return 0

    _repeat(probe, "updates", publish if worker == 0 else pull)
