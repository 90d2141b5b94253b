"""Many processes act on a local copy and push n-step gradients through one shared optimizer.

    +------------- worker 0 -------------+            +------------------+
    |  env -> rollout -> n-step gradient  | --push--> | shared optimizer |
    |   ^---- action <- local copy        |           |        |         |
    |                       ^-------------|-- sync -- | shared weights   |
    +-------------------------------------+           +------------------+
    +------------- worker N -------------+ --push-->          |
    |            the same                 | <- sync ----------+
    +-------------------------------------+

Processes:   N actor-learners.
Weights:     in shared memory; every worker adds its step, unguarded (or under a lock).
Experience:  the last rollout, then forgotten.
Correction:  none; n-step targets with a shared target network.
Can go wrong: gradients are stale by what others pushed meanwhile; writes and moments overwrite each
             other.

Paper: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", Algorithm S2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from common.acting import ActingNetwork
from common.audit import MasterWriter
from common.config import REPLAY_OPTIONS, changed, option
from common.config import Config as CommonConfig
from common.envs import make_lanes
from common.locks import FileLock, LockFile
from common.optimizer import OPTIMIZERS
from common.policy import epsilon_greedy, linear_epsilon
from common.processes import Role, random_stream
from common.returns import n_step_returns
from common.supervisor import RunProbe, Shared, run_roles
from common.telemetry import Probe
from common.trajectories import Rollout, Trajectory
from common.types import FloatArray, RunResult, Traits
from common.weights import SharedWeights

if TYPE_CHECKING:
    from common.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices without replay, and how gradients are pushed."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    workers: int = changed("workers", 2)
    envs_per_worker: int = changed("envs_per_worker", 8)
    warmup_env_steps: int = changed("warmup_env_steps", 0)
    target_update: float = option(200, "Pushes of all workers between target copies.", at_least=1)
    rollout_length: int = option(8, "Vector steps of one gradient at the most.", at_least=2)
    optimizer: str = option("rmsprop", "The one shared optimizer.", choices=OPTIMIZERS)
    lock: bool = option(False, "Guard each push, so that nothing can be lost.")
    max_staleness: int | None = option(
        None, "Pushes that a worker may be ahead of the slowest; 0 is synchronous.", at_least=0
    )


TRAITS = Traits(
    name="a3c",
    parent="hogwild",
    summary="Many processes push n-step gradients through one shared optimizer.",
    processes="N actor-learners",
    collects="every worker",
    computes_gradients="every worker, on a local copy",
    writes_weights="every worker, through one shared optimizer",
    guard="none; a file lock with --lock",
    experience="the last rollout, then forgotten",
    correction="none",
    loss="Huber on the n-step error, target network",
    can_go_wrong="gradients are stale; writes and moments overwrite each other",
    paper="Mnih et al. 2016",
    can_lose_updates=True,
    single_process=False,
    ratios=("derived",),
    roles=("actor_learner",),
    unused_options=(*(name for name in REPLAY_OPTIONS if name != "target_update"), "chunk_steps"),
)


def traits(config: Config) -> Traits:
    """Return the header for a configuration: a lock, or one worker, loses nothing."""
    if config.workers > 1 and not config.lock:
        return TRAITS
    wrong = "gradients are stale; workers wait for the lock" if config.lock else "as with one process"
    return dataclasses.replace(TRAITS, can_lose_updates=False, can_go_wrong=wrong)


def actor_learner(
    config: Config,
    probe: Probe,
    shared: Shared,
    target: SharedWeights,
    lock_file: LockFile | None,
    worker: int,
) -> None:
    """Act, observe, learn, sync, until told to stop."""
    from common.learner import Learner

    lanes = make_lanes(config, worker, random_stream(config.seed, "environment", worker))
    exploration = np.random.default_rng(random_stream(config.seed, "exploration", worker))
    rollout = Rollout(config.rollout_length, config.envs_per_worker, shared.info)
    master, state = MasterWriter(shared.master, worker), shared.optimizer_state
    learner = Learner(config, shared.spec, shared.latest(), master, config.optimizer, state)
    lock = FileLock(lock_file, probe)
    network = ActingNetwork(shared.spec, learner.vector)
    pushes_seen = sync(config, probe, shared, target, learner, worker)
    observation = lanes.reset()
    while not probe.should_stop(rollout.num_env_steps):
        # act
        epsilon = linear_epsilon(
            probe.env_steps,
            config.epsilon_start,
            config.epsilon_end,
            config.epsilon_decay_env_steps,
        )
        action, probability = epsilon_greedy(network.q_values(observation), epsilon, exploration)
        probe.spent("act")
        step = lanes.step(action)
        probe.spent("env_step")
        # observe
        rollout.write(observation, action, probability, step, pushes_seen)
        probe.record_episodes(lanes.finished_episodes)
        observation = step.observation
        probe.spent("write")
        if not (rollout.is_full or (step.terminated | step.truncated).all()):
            continue
        # learn
        accumulate_gradient(config, probe, learner, rollout.take(observation))
        push_gradient(probe, learner, shared, lock, pushes_seen)
        # sync
        pushes_seen = sync(config, probe, shared, target, learner, worker)
        if worker == 0 and probe.evaluation_is_due():
            probe.evaluate()
    if rollout.num_env_steps:
        accumulate_gradient(config, probe, learner, rollout.take(observation))
        push_gradient(probe, learner, shared, lock, pushes_seen)
    lanes.close()


def accumulate_gradient(config: Config, probe: Probe, learner: Learner, rollout: Trajectory) -> None:
    """Sum the gradients of a rollout's transitions, towards their n-step targets, in the local copy."""
    import torch

    target = n_step_targets(config, learner, rollout)
    learner.gradient_towards(
        rollout.observation[:-1][rollout.valid],
        rollout.action[rollout.valid],
        torch.from_numpy(target[rollout.valid]),
    )
    probe.count("env_steps", rollout.num_env_steps)
    probe.count("stored", rollout.num_env_steps)


def n_step_targets(config: Config, learner: Learner, rollout: Trajectory) -> FloatArray:
    """Return each row's longest n-step return, ``[T, L]``: to the rollout's or the episode's end."""
    length, lanes = rollout.reward.shape
    following = rollout.observation[1:].reshape(length * lanes, *rollout.observation.shape[2:])
    targets: FloatArray = n_step_returns(
        rollout.reward,
        rollout.discount(config.gamma),
        rollout.episode_continues,
        learner.target_values(following).reshape(length, lanes),
        length,
    )
    return targets


def sync(
    config: Config, probe: Probe, shared: Shared, target: SharedWeights, learner: Learner, worker: int
) -> int:
    """Copy the shared weights and target network; return the pushes that the copy contains."""
    while worker_is_ahead(config, shared, worker) and not probe.should_stop():
        probe.wait()
    pushes = shared.master.updates_issued
    # Published by one worker alone, when all have pushed often enough since the last time.
    if worker == 0 and pushes // int(config.target_update) > target.version:
        target.publish(shared.latest())
    learner.pull_target(target)
    learner.read()
    probe.spent("pull")
    return pushes


# --- The difference that matters ---


def push_gradient(
    probe: Probe, learner: Learner, shared: Shared, lock: FileLock, pushes_seen: int
) -> None:
    """Turn the local gradient into a step by the shared optimizer and add it to the shared weights.

    The gradient was computed at the weights as they were ``pushes_seen`` pushes after the start. The
    step lands on what they are by now, and works on moments that others change too.
    """
    with lock:
        probe.record("gradient_staleness", shared.master.updates_issued - pushes_seen)
        learner.take_step()
        learner.write()
    probe.count_update()
    probe.spent("update")


def worker_is_ahead(config: Config, shared: Shared, worker: int) -> bool:
    """Return whether a worker has done too many pushes more than the slowest (Ho et al. 2013)."""
    if config.max_staleness is None:
        return False
    pushes = shared.master.updates_by_worker
    return bool(pushes[worker] - pushes.min() > config.max_staleness)


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared = Shared(config, config.workers, config.optimizer)
    target = SharedWeights(shared.spec, shared.latest())
    lock_file = LockFile() if config.lock else None
    roles = [
        Role("actor_learner", worker, actor_learner, (shared, target, lock_file, worker))
        for worker in range(config.workers)
    ]
    return run_roles(config, probe, roles, shared)
