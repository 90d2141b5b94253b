"""Many processes act, learn from their own replay, and all write one shared network with no guard.

    +------------- worker 0 -------------+         +----------------+
    |  env -> replay -> batch -> gradient | --add-> |                |
    |   ^---- action <- private copy <----|--read-- | shared weights |
    +-------------------------------------+         |   (float64)    |
    +------------- worker N -------------+ --add-> |                |
    |            the same                 | <-read- |                |
    +-------------------------------------+         +----------------+

Processes:   N actor-learners.
Weights:     in shared memory; every worker reads and writes them, unguarded (or under a lock).
Experience:  each worker its own replay.
Correction:  none.
Can go wrong: writes overwrite each other: few element by element in place, most when whole sets are
             copied back; reads can be torn.

Paper: Niu et al. 2011, "Hogwild!", with the DQN of its parent in every worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from common.acting import ActingNetwork
from common.audit import WRITES, MasterWriter, SharedMaster
from common.config import Config as CommonConfig
from common.config import changed, option
from common.envs import make_lanes
from common.experience import ExperienceBuffer, SegmentWriter
from common.locks import FileLock
from common.policy import epsilon_greedy, linear_decay
from common.probe import Moment, Probe
from common.processes import Role, worker_stream
from common.replay import Replay, make_replay
from common.supervisor import RunProbe, Shared, run_roles
from common.types import Batch, RunResult, Traits

if TYPE_CHECKING:
    from common.learner import Learner, UpdateResult


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices, and how the shared weights are written."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": {
            "n_step": 10,
            "replay_ratio": 1 / 4,
            "epsilon_end": 0.1,
            "epsilon_decay_env_steps": 5_000,
            # Several writers with a momentum each: half the step, half the target's speed.
            "learning_rate": 1.5e-3,
            "target_update": 50.0,
            "learning_rate_decay_env_steps": 40_000,
            "steps": 100_000,
            "evaluate_every_env_steps": 800,
        },
    }
    all_write_weights: ClassVar[bool] = True

    workers: int = changed("workers", 2)
    chunk_steps: int = changed("chunk_steps", 1)
    write: str = option("in-place", "How an update is written.", choices=WRITES)
    lock: bool = option(False, "Guard each update, so that nothing can be lost.")
    shared_optimizer: bool = option(False, "Share Adam's moments too, as many A3C codes do.")


TRAITS = Traits(
    name="hogwild",
    parent="single",
    summary="Many processes learn from their own replay and write one shared network unguarded.",
    processes="N actor-learners",
    collects="every worker",
    computes_gradients="every worker",
    writes_weights="every worker",
    guard="none; a file lock with --lock",
    experience="each its own replay",
    correction="none",
    loss="Huber on the n-step double-Q error",
    can_go_wrong="writes overwrite each other, most of them with --write copy-back; reads can be torn",
    paper="Niu et al. 2011",
    can_lose_updates=True,
    single_process=False,
    ratios=("held",),
    roles=("actor_learner",),
    # Each worker's reset would undo what all of them have learned since the last one's.
    unused_options=("reset_interval",),
)


def traits(config: Config) -> Traits:
    """Return the header for a configuration: a lock, or one worker, loses nothing."""
    if config.workers > 1 and not config.lock:
        return TRAITS
    wrong = "workers wait for the lock" if config.workers > 1 else "as in its parent"
    return dataclasses.replace(TRAITS, can_lose_updates=False, can_go_wrong=wrong)


def actor_learner(
    config: Config, probe: Probe, buffer: ExperienceBuffer, shared: Shared, worker: int
) -> None:
    """Act, observe, learn, sync, until told to stop."""
    from common.learner import Learner

    lanes = make_lanes(config, worker, worker_stream(config, probe, "environment", worker))
    exploration = np.random.default_rng(worker_stream(config, probe, "exploration", worker))
    draws = np.random.default_rng(worker_stream(config, probe, "replay", worker))
    segment = buffer.segment(worker)
    writer = SegmentWriter(segment, 0, config)
    replay = make_replay(config, segment, draws, probe)
    master = MasterWriter(shared.master, worker, config.write)
    state = shared.optimizer_state
    learner = Learner(config, shared.spec, shared.latest(), master, shared_state=state, probe=probe)
    lock = FileLock(shared.lock_file, probe)
    network = ActingNetwork(shared.spec, learner.vector)
    probe.resumable(
        lanes=lanes, exploration=exploration, draws=draws, writer=writer, replay=replay, learner=learner
    )
    observation = lanes.reset()
    while not probe.should_stop(writer.unpublished_env_steps):
        # act
        epsilon = linear_decay(
            probe.env_steps,
            config.epsilon_start,
            config.epsilon_end,
            config.epsilon_decay_env_steps,
        )
        q_values = network.q_values(observation)
        action, probability = epsilon_greedy(q_values, epsilon, exploration)
        probe.spent("act")
        step = lanes.step(action)
        probe.spent("env_step")
        # observe
        writer.write(observation, q_values, action, probability, step, learner.weights_version)
        writer.publish_when_full(probe)
        probe.record_episodes(lanes.finished_episodes)
        observation = step.observation
        probe.spent("write")
        # learn
        learn_in_turn(config, probe, learner, replay, shared.master, lock)
        # sync
        if probe.is_first and probe.evaluation_is_due():
            probe.evaluate()
    writer.flush(observation, probe)
    lanes.close()


def learn_in_turn(
    config: Config,
    probe: Probe,
    learner: Learner,
    replay: Replay,
    master: SharedMaster,
    lock: FileLock,
) -> None:
    """Do the updates that this worker owes for its own env steps, each on the newest shared weights."""
    while probe.own_updates + 1 <= config.owed_updates(probe.own_env_steps, config.workers):
        replay.take_in()
        batch = replay.sample()
        probe.spent("sample")
        result = update_shared(config, probe, learner, batch, master, lock)
        probe.count_update()
        learner.measure_health(batch.observation, result.td_error)
        probe.spent("update")
        replay.update_priorities(batch, result.td_error)
        learner.move_target()
        probe.spent("priorities")
    learner.copy_target_at(probe.env_steps)


# --- The difference that matters ---


def update_shared(
    config: Config, probe: Probe, learner: Learner, batch: Batch, master: SharedMaster, lock: FileLock
) -> UpdateResult:
    """Read the shared weights, take a step on a private copy, and write the change back.

    In place, other workers' writes land between read and write and stay; only a write that falls into
    the few nanoseconds of another's load, add and store is lost, so a lock around the write is enough.
    Copying back returns the whole set to what was read plus this step: whatever others wrote during
    the gradient is gone, and the lock must cover all of it.
    """
    if config.write == "in-place":
        seen, result = read_and_compute(probe, learner, batch, master)
        with lock:
            step_and_write(probe, learner, master, seen)
        return result
    with lock:
        seen, result = read_and_compute(probe, learner, batch, master)
        step_and_write(probe, learner, master, seen)
    return result


def read_and_compute(
    probe: Probe, learner: Learner, batch: Batch, master: SharedMaster
) -> tuple[Moment, UpdateResult]:
    """Read the shared weights and compute a gradient at them; return when they were read, too."""
    seen = probe.moment(master.updates_issued)
    learner.read()
    probe.spent("pull")
    result = learner.compute_gradient(batch)
    probe.spent("update")
    return seen, result


def step_and_write(probe: Probe, learner: Learner, master: SharedMaster, seen: Moment) -> None:
    """Step on the private copy, write the change, and read what the shared weights are by then."""
    learner.take_step(probe.env_steps)
    probe.spent("update")
    probe.record_staleness(seen, probe.moment(master.updates_issued))
    learner.write()
    probe.spent("publish")
    learner.read()
    probe.spent("pull")


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared_optimizer = "adam" if config.shared_optimizer else None
    shared = Shared(config, config.workers, shared_optimizer, config.lock)
    buffer = ExperienceBuffer(config, shared.info)
    roles = [
        Role("actor_learner", worker, actor_learner, (buffer, shared, worker), can_restart=True)
        for worker in range(config.workers)
    ]
    return run_roles(config, probe, roles, shared, buffer)
