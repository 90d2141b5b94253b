r"""Many actors fill one shared prioritized replay; one learner samples it and alone writes weights.

    actor 0 --rows--> segment 0 \                          +------------+
    actor 1 --rows--> segment 1  >-- prioritized sample --> |  learner   |
    actor N --rows--> segment N /  <------ priorities ----- |            |
       ^                                                    +-----+------+
       +------------------- published weights -------------------+

Processes:   N actors and 1 learner.
Weights:     in the learner, which alone writes them; published as whole vectors with a version.
Experience:  shared prioritized replay; an actor writes the first priority, the learner the later ones.
Correction:  importance weights for the prioritized draw; none for the older policy that acted.
Can go wrong: stale weights act, old rows are replayed, and in free mode the replay ratio is whatever
             the machine makes it.

Paper: Horgan et al. 2018, "Distributed Prioritized Experience Replay".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.acting import ActingNetwork
from common.audit import MasterWriter, SharedMaster
from common.config import Config as CommonConfig
from common.config import changed
from common.envs import make_lanes
from common.experience import ExperienceBuffer, SegmentWriter
from common.policy import epsilon_greedy, epsilon_ladder
from common.probe import Probe
from common.processes import Role, random_stream, worker_stream
from common.replay import make_replay
from common.supervisor import RunProbe, Shared, run_roles
from common.types import RunResult, Traits
from common.weights import SharedWeights


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices with the paper's values."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": {
            "n_step": 5,
            "replay_ratio": 1 / 128,
            "learning_rate_decay_env_steps": 300_000,
            "steps": 500_000,
            "evaluate_every_env_steps": 12_800,
        },
        "Acrobot-v1": {
            "replay_ratio": 1 / 64,
            "learning_rate_decay_env_steps": 400_000,
            "steps": 500_000,
            "evaluate_every_env_steps": 20_000,
        },
        "LunarLander-v3": {
            "envs_per_worker": 16,
            "replay_ratio": 1 / 16,
            "learning_rate_decay_env_steps": 600_000,
            "steps": 800_000,
            "evaluate_every_env_steps": 25_000,
        },
        "MinAtar/Breakout-v1": {
            "replay_ratio": 1 / 32,
            "learning_rate_decay_env_steps": 2_000_000,
            "steps": 2_000_000,
            "evaluate_every_env_steps": 100_000,
        },
    }

    workers: int = changed("workers", 2)
    envs_per_worker: int = changed("envs_per_worker", 32)
    n_step: int = changed("n_step", 3)
    prioritized: bool = changed("prioritized", True)


TRAITS = Traits(
    name="apex",
    parent="impala",
    summary="Many actors fill one shared prioritized replay; one learner samples it.",
    processes="N actors + 1 learner",
    collects="the actors",
    computes_gradients="the learner",
    writes_weights="the learner",
    guard="none needed: one writer, whole vectors published",
    experience="shared prioritized replay",
    correction="importance weights of the prioritized draw",
    loss="Huber on the n-step double-Q error",
    can_go_wrong="stale weights act, old rows are replayed, the ratio drifts in free mode",
    paper="Horgan et al. 2018",
    can_lose_updates=False,
    single_process=False,
    ratios=("held", "free"),
    roles=("actor", "learner"),
    unused_options=(
        "prioritized",
        "epsilon_start",
        "epsilon_end",
        "epsilon_decay_env_steps",
    ),
)


def actor(
    config: Config, probe: Probe, buffer: ExperienceBuffer, weights: SharedWeights, worker: int
) -> None:
    """Act, observe, sync, until told to stop. Computes no gradient and loads no torch."""
    lanes = make_lanes(config, worker, worker_stream(config, probe, "environment", worker))
    exploration = np.random.default_rng(worker_stream(config, probe, "exploration", worker))
    first_lane = worker * config.envs_per_worker
    epsilon = epsilon_ladder(config.num_lanes)[first_lane : first_lane + config.envs_per_worker]
    writer = SegmentWriter(buffer, worker, config)
    vector, version = weights.latest()
    network = ActingNetwork(weights.spec, vector)
    probe.resumable(lanes=lanes, exploration=exploration, writer=writer)
    observation = lanes.reset()
    wait_for_learner(config, probe)  # a resumed run may have been saved in the middle of it
    while not probe.should_stop(writer.unpublished_env_steps):
        # act
        q_values = network.q_values(observation)
        action, probability = epsilon_greedy(q_values, epsilon, exploration)
        probe.spent("act")
        step = lanes.step(action)
        probe.spent("env_step")
        # observe
        writer.write(observation, q_values, action, probability, step, version)
        published = writer.publish_when_full(probe)
        observation = step.observation
        probe.spent("write")
        # sync
        if published:
            probe.record_episodes(lanes.finished_episodes)
            probe.record("acting_lag", weights.version - version)
            version = weights.pull(vector, version)
            probe.set("weights_version", version)
            probe.spent("pull")
            wait_for_learner(config, probe)
    writer.flush(observation, probe)
    lanes.close()


def learner(
    config: Config,
    probe: Probe,
    buffer: ExperienceBuffer,
    weights: SharedWeights,
    master: SharedMaster,
) -> None:
    """Learn, sync, until told to stop. The only writer of the weights."""
    from common.learner import Learner

    draws = np.random.default_rng(random_stream(config.seed, "replay"))
    replay = make_replay(config, buffer, draws, probe)
    trainer = Learner(config, weights.spec, weights.latest()[0], MasterWriter(master), probe=probe)
    probe.resumable(draws=draws, replay=replay, trainer=trainer)
    while not probe.should_stop():
        # learn
        replay.take_in()
        if learner_is_ahead(config, probe) or replay.num_transitions == 0:
            probe.wait()
            continue
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
    replay.take_in()
    weights.publish(trainer.vector)


# --- The difference that matters ---


def wait_for_learner(config: Config, probe: Probe) -> None:
    """Hold an actor back while the updates owed for its env steps are behind.

    In free mode nobody waits, and the replay ratio is whatever the two sides' speeds make it.
    """
    while not config.is_free and actors_are_ahead(config, probe) and not probe.should_stop():
        probe.wait()


def actors_are_ahead(config: Config, probe: Probe) -> bool:
    """Return whether more than a chunk's worth of updates is owed."""
    slack = max(1.0, config.owed_updates(config.warmup_env_steps + 2 * chunk_env_steps(config)))
    return config.owed_updates(probe.env_steps) - probe.updates > slack


def learner_is_ahead(config: Config, probe: Probe) -> bool:
    """Return whether the next update is not owed yet."""
    return probe.updates + 1 > config.owed_updates(probe.env_steps)


def chunk_env_steps(config: Config) -> int:
    """Return the env steps that all actors publish at once."""
    return config.num_lanes * config.chunk_steps


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    roles = [Role("learner", 0, learner, (buffer, shared.weights, shared.master))]
    roles += [
        Role("actor", worker, actor, (buffer, shared.weights, worker), can_restart=True)
        for worker in range(config.workers)
    ]
    return run_roles(config, probe, roles, shared, buffer)
