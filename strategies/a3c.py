"""Many processes act on a local copy and push n-step gradients through one shared optimizer.

    +------------- worker 0 --------------+           +------------------+
    |  env -> rollout -> n-step gradient  | --push--> | shared optimizer |
    |   ^---- action <- local copy <------|-- sync -- | shared weights   |
    +-------------------------------------+           +------------------+
    +------------- worker N --------------+ --push-->   |
    |              the same               | <-- sync ---+
    +-------------------------------------+

Processes:   N actor-learners.
Weights:     in shared memory; every worker adds its step, unguarded (or under a lock).
Experience:  the last rollout, then forgotten.
Correction:  none; n-step targets with a shared target network.
Can go wrong: gradients are stale; writes and moments overwrite each other.

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
from common.consumption import consume_trajectory
from common.envs import make_lanes
from common.locks import FileLock
from common.optimizer import OPTIMIZERS
from common.policy import epsilon_greedy, linear_decay
from common.probe import Moment, Probe
from common.processes import Role, worker_stream
from common.supervisor import RunProbe, Shared, run_roles
from common.trajectories import Rollout, Trajectory
from common.types import RunResult, Traits
from common.weights import SharedWeights

if TYPE_CHECKING:
    from common.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices without replay, and how gradients are pushed."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": {"learning_rate": 1e-3, "learning_rate_end": None, "target_update": 200.0},
    }
    all_write_weights: ClassVar[bool] = True

    workers: int = changed("workers", 2)
    envs_per_worker: int = changed("envs_per_worker", 4)
    warmup_env_steps: int = changed("warmup_env_steps", 0)
    adam_epsilon: float = changed("adam_epsilon", 1e-4)
    target_update: float = option(200, "Pushes of all workers between target copies.", at_least=1)
    rollout_length: int = option(16, "Vector steps of one gradient at the most.", at_least=2)
    optimizer: str = option("rmsprop", "The one shared optimizer.", choices=OPTIMIZERS)
    lock: bool = option(False, "Guard each push, so that nothing can be lost.")
    max_staleness: int | None = option(None, "Pushes ahead of the slowest worker.", at_least=0)


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
    config: Config, probe: Probe, shared: Shared, target: SharedWeights, worker: int
) -> None:
    """Act, observe, learn, sync, until told to stop."""
    from common.learner import Learner

    lanes = make_lanes(config, worker, worker_stream(config, probe, "environment", worker))
    exploration = np.random.default_rng(worker_stream(config, probe, "exploration", worker))
    rollout = Rollout(config.rollout_length, config.envs_per_worker, shared.info)
    master, state = MasterWriter(shared.master, worker), shared.optimizer_state
    learner = Learner(config, shared.spec, shared.latest(), master, config.optimizer, state, probe)
    network, lock = ActingNetwork(shared.spec, learner.vector), FileLock(shared.lock_file, probe)
    probe.resumable(lanes=lanes, exploration=exploration, rollout=rollout, learner=learner)
    observation = lanes.reset()
    seen = sync(config, probe, shared, target, learner)
    while not probe.should_stop(rollout.num_env_steps):
        # act
        epsilon = linear_decay(
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
        rollout.write(observation, action, probability, step, seen.updates)
        probe.record_episodes(lanes.finished_episodes)
        observation = step.observation
        probe.spent("write")
        if not (rollout.is_full or (step.terminated | step.truncated).all()):
            continue
        # learn
        learn_from(probe, learner, shared, lock, rollout.take(observation), seen, worker)
        # sync
        seen = sync(config, probe, shared, target, learner)
        if probe.is_first and probe.evaluation_is_due():
            probe.evaluate()
    if rollout.num_env_steps:
        learn_from(probe, learner, shared, lock, rollout.take(observation), seen, worker)
    lanes.close()


def learn_from(
    probe: Probe,
    learner: Learner,
    shared: Shared,
    lock: FileLock,
    rollout: Trajectory,
    seen: Moment,
    worker: int,
) -> None:
    """Learn from a rollout once, towards its n-step returns, and forget it."""
    result = learner.compute_rollout_gradient(rollout)
    probe.count("env_steps", rollout.num_env_steps)
    consume_trajectory(probe, rollout, worker)
    probe.spent("update")
    push_gradient(probe, learner, shared, lock, seen)
    learner.measure_health(rollout.observation[:-1][rollout.valid], result.td_error)


def sync(
    config: Config, probe: Probe, shared: Shared, target: SharedWeights, learner: Learner
) -> Moment:
    """Copy the shared weights and target network; return the moment, with the pushes in the copy."""
    while not probe.should_stop() and worker_is_ahead(config, probe):
        probe.wait()
    seen = probe.moment(shared.master.updates_issued)
    # One worker alone publishes it, when all together have pushed often enough.
    if probe.is_first and seen.updates // int(config.target_update) > target.version:
        target.publish(shared.latest())
    learner.pull_target(target)
    learner.read()
    probe.spent("pull")
    return seen


# --- The difference that matters ---


def push_gradient(probe: Probe, learner: Learner, shared: Shared, lock: FileLock, seen: Moment) -> None:
    """Make the local gradient a step of the shared optimizer and add that to the shared weights.

    It was computed at the weights as they were at ``seen``, and lands on what they are by now.
    """
    with lock:
        probe.record_staleness(seen, probe.moment(shared.master.updates_issued))
        learner.take_step(probe.env_steps)
        learner.write()
    probe.count_update()
    probe.spent("publish")


def worker_is_ahead(config: Config, probe: Probe) -> bool:
    """Return whether a worker has done too many pushes more than the slowest (Ho et al. 2013)."""
    limit = config.max_staleness
    return limit is not None and probe.updates_ahead() > limit


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared = Shared(config, config.workers, config.optimizer, config.lock)
    target = SharedWeights(shared.spec, shared.latest())
    roles = [
        Role("actor_learner", worker, actor_learner, (shared, target, worker), can_restart=True)
        for worker in range(config.workers)
    ]
    return run_roles(config, probe, roles, shared)
