"""One process steps one environment and learns from its own replay: the baseline.

    +--------------------------- one process ----------------------------+
    |   env  --row-->  replay  --batch-->  update  -->  weights  --+      |
    |    ^                                                         |      |
    |    +------------------------ action -------------------------+      |
    +---------------------------------------------------------------------+

Processes:   1.
Weights:     in the one process, which alone writes them; no guard is needed.
Experience:  its own replay, uniform (or prioritized).
Correction:  none.
Can go wrong: it is slow: acting waits for learning and learning for acting.

Paper: Mnih et al. 2015, with double Q-learning (van Hasselt et al. 2016) and the dueling heads of
Wang et al. 2016.
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
from common.policy import epsilon_greedy, linear_decay
from common.probe import Probe
from common.processes import Role, random_stream
from common.replay import Replay, make_replay
from common.supervisor import RunProbe, Shared, run_roles
from common.types import RunResult, Traits
from common.weights import SharedWeights


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices; this strategy adds none."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": {
            "n_step": 10,
            "replay_ratio": 1 / 4,
            "epsilon_end": 0.1,
            "epsilon_decay_env_steps": 5_000,
            "learning_rate_decay_env_steps": 40_000,
            "steps": 50_000,
            "evaluate_every_env_steps": 800,
        },
    }

    chunk_steps: int = changed("chunk_steps", 1)


TRAITS = Traits(
    name="single",
    parent=None,
    summary="One process steps one environment and learns from its own replay.",
    processes="1",
    collects="the one process, one env",
    computes_gradients="the one process",
    writes_weights="the one process",
    guard="none needed: one writer",
    experience="its own replay",
    correction="none",
    loss="Huber on the n-step double-Q error",
    can_go_wrong="slow: acting and learning wait for each other",
    paper="Mnih et al. 2015",
    can_lose_updates=False,
    single_process=True,
    ratios=("held",),
    roles=("actor_learner",),
    unused_options=("envs_per_worker",),
)


def actor_learner(
    config: Config,
    probe: Probe,
    buffer: ExperienceBuffer,
    weights: SharedWeights,
    master: SharedMaster,
) -> None:
    """Act, observe, learn, sync, until told to stop."""
    from common.learner import Learner

    lanes = make_lanes(config, 0, random_stream(config.seed, "environment"))
    exploration = np.random.default_rng(random_stream(config.seed, "exploration"))
    draws = np.random.default_rng(random_stream(config.seed, "replay"))
    writer = SegmentWriter(buffer, 0, config)
    replay = make_replay(config, buffer, draws, probe)
    learner = Learner(config, weights.spec, weights.latest()[0], MasterWriter(master), probe=probe)
    network = ActingNetwork(weights.spec, learner.vector)
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
        writer.write(observation, q_values, action, probability, step, learner.num_updates)
        writer.publish_when_full(probe)
        probe.record_episodes(lanes.finished_episodes)
        observation = step.observation
        probe.spent("write")
        # learn
        learn_in_turn(config, probe, learner, replay)
        # sync
        if probe.evaluation_is_due():
            weights.publish(learner.vector)
            probe.evaluate()
    writer.flush(observation, probe)
    weights.publish(learner.vector)
    lanes.close()


# --- The difference that matters ---


def learn_in_turn(config: Config, probe: Probe, learner: Any, replay: Replay) -> None:
    """Do the updates that are owed by now, then give the turn back to acting.

    The replay ratio holds by construction: one process does both, in turn.
    """
    while probe.updates + 1 <= config.owed_updates(probe.env_steps):
        replay.take_in()
        batch = replay.sample()
        probe.spent("sample")
        result = learner.update(batch, probe.env_steps)
        probe.count_update()
        probe.spent("update")
        replay.update_priorities(batch, result.td_error)
        probe.spent("priorities")


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    roles = [Role("actor_learner", 0, actor_learner, (buffer, shared.weights, shared.master))]
    return run_roles(config, probe, roles, shared, buffer)
