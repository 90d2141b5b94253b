r"""Many actors collect a round with the same weights; at a barrier one learner learns for all.

    actor 0 --chunk--> segment 0 \               +------------+
    actor 1 --chunk--> segment 1  >-- barrier --> |  learner   |
    actor N --chunk--> segment N /                +-----+------+
       ^                                                |
       +----------- published weights, next round ------+

Processes:   N actors and 1 learner, in turn: either all actors work or the learner does.
Weights:     in the learner, which alone writes them, while nobody acts.
Experience:  a round of fixed-size chunks, into the learner's replay.
Correction:  none; none is needed for the round itself, which the newest weights have collected.
Can go wrong: everybody waits for the slowest actor, and then for the learner.

Paper: Stooke and Abbeel 2018, "Accelerated Methods for Deep Reinforcement Learning".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.acting import ActingNetwork
from common.audit import MasterWriter, SharedMaster
from common.barrier import OVER, RoundBarrier
from common.config import Config as CommonConfig
from common.config import changed
from common.envs import make_lanes
from common.experience import ExperienceBuffer, SegmentWriter
from common.policy import epsilon_greedy, linear_decay
from common.probe import Probe
from common.processes import Role, random_stream, worker_stream
from common.replay import make_replay
from common.supervisor import RunProbe, Shared, run_roles
from common.types import RunResult, Traits
from common.weights import SharedWeights


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices, with several workers and a batch of environments for each."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": {
            "n_step": 10,
            "replay_ratio": 1 / 64,
            "epsilon_end": 0.05,
            "epsilon_decay_env_steps": 20_000,
            "learning_rate_decay_env_steps": 200_000,
            "steps": 300_000,
            "evaluate_every_env_steps": 6_400,
        },
    }

    workers: int = changed("workers", 2)
    envs_per_worker: int = changed("envs_per_worker", 8)
    chunk_steps: int = changed("chunk_steps", 4)


TRAITS = Traits(
    name="sync",
    parent="vector",
    summary="Many actors collect a round with the same weights; then one learner learns for all.",
    processes="N actors + 1 learner, in turn",
    collects="the actors",
    computes_gradients="the learner",
    writes_weights="the learner",
    guard="a barrier: nobody acts while they are written",
    experience="a round of fixed-size chunks, into the learner's replay",
    correction="none",
    loss="Huber on the n-step double-Q error",
    can_go_wrong="everybody waits for the slowest actor, and then for the learner",
    paper="Stooke and Abbeel 2018",
    can_lose_updates=False,
    single_process=False,
    ratios=("held",),
    roles=("actor", "learner"),
)


def actor(
    config: Config,
    probe: Probe,
    buffer: ExperienceBuffer,
    weights: SharedWeights,
    barrier: RoundBarrier,
    worker: int,
) -> None:
    """Act, observe, sync, until told to stop. Computes no gradient and loads no torch."""
    lanes = make_lanes(config, worker, worker_stream(config, probe, "environment", worker))
    exploration = np.random.default_rng(worker_stream(config, probe, "exploration", worker))
    writer = SegmentWriter(buffer, worker, config)
    vector, version = weights.latest()
    network = ActingNetwork(weights.spec, vector)
    schedule = (config.epsilon_start, config.epsilon_end, config.epsilon_decay_env_steps)
    probe.resumable(lanes=lanes, exploration=exploration, writer=writer)
    observation = lanes.reset()
    round_number = barrier.next_round(worker, takes_over=probe.restarts > 0)
    while wait_for_start(config, probe, barrier, round_number):
        version = weights.pull(vector, version)
        probe.set("weights_version", version)
        epsilon = linear_decay(barrier.env_steps, *schedule)
        probe.spent("pull")
        for _ in range(config.chunk_steps):
            # act
            q_values = network.q_values(observation)
            action, probability = epsilon_greedy(q_values, epsilon, exploration)
            probe.spent("act")
            step = lanes.step(action)
            probe.spent("env_step")
            # observe
            writer.write(observation, q_values, action, probability, step, probe.updates)
            writer.publish_when_full(probe)
            observation = step.observation
            probe.spent("write")
            if is_cut_short(config, probe):
                break
        # sync
        probe.record("acting_lag", weights.version - version)
        probe.record_episodes(lanes.finished_episodes)
        barrier.arrive(worker, round_number, writer.unpublished_env_steps)
        round_number += 1
    writer.flush(observation, probe)
    lanes.close()


def learner(
    config: Config,
    probe: Probe,
    buffer: ExperienceBuffer,
    weights: SharedWeights,
    barrier: RoundBarrier,
    master: SharedMaster,
) -> None:
    """Learn, sync, until told to stop. The only writer of the weights."""
    from common.learner import Learner

    draws = np.random.default_rng(random_stream(config.seed, "replay"))
    replay = make_replay(config, buffer, draws, probe)
    trainer = Learner(config, weights.spec, weights.latest()[0], MasterWriter(master), probe=probe)
    probe.resumable(draws=draws, replay=replay, trainer=trainer)
    round_number = barrier.round_number + 1
    while not probe.should_stop(barrier.unpublished_env_steps(probe.workers_gone)):
        # observe: a round
        barrier.begin(round_number, probe.env_steps)
        if not wait_for_all(config, probe, barrier, round_number):
            break
        round_number += 1
        # learn
        while probe.updates + 1 <= config.owed_updates(probe.env_steps):
            replay.take_in()
            batch = replay.sample()
            probe.spent("sample")
            result = trainer.update(batch, probe.env_steps)
            probe.count_update()
            probe.spent("update")
            replay.update_priorities(batch, result.td_error)
            probe.spent("priorities")
        # sync
        weights.publish(trainer.vector)
        probe.spent("publish")
        if probe.evaluation_is_due():
            probe.evaluate()
    barrier.begin(OVER, probe.env_steps)
    weights.publish(trainer.vector)


# --- The difference that matters ---


def wait_for_start(config: Config, probe: Probe, barrier: RoundBarrier, round_number: int) -> bool:
    """Hold an actor at the barrier; return whether the round began, or False if all is over.

    Only here an actor is saved for a checkpoint: in a round it is waited for.
    """
    while not barrier.has_begun(round_number):
        if barrier.is_over or (probe.should_stop() and probe.env_steps < config.steps):
            return False
        probe.wait("barrier")
    return True


def wait_for_all(config: Config, probe: Probe, barrier: RoundBarrier, round_number: int) -> bool:
    """Hold the learner until every actor has done its part; return False if one never will."""
    while not barrier.all_arrived(round_number, probe.workers_gone):
        if is_cut_short(config, probe):
            return False
        probe.wait("barrier")
    return True


def is_cut_short(config: Config, probe: Probe) -> bool:
    """Return whether the run ends inside this round.

    That of the last env step is finished: else who is cut off, and the weights, would depend on speed.
    """
    return probe.should_stop_within() and probe.env_steps < config.steps


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    barrier = RoundBarrier(config.workers)
    roles = [Role("learner", 0, learner, (buffer, shared.weights, barrier, shared.master))]
    roles += [
        Role("actor", worker, actor, (buffer, shared.weights, barrier, worker), can_restart=True)
        for worker in range(config.workers)
    ]
    return run_roles(config, probe, roles, shared, buffer)
