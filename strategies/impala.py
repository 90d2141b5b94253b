r"""Many actors send whole trajectories; one learner takes each once and corrects for its age.

    actor 0 --rows--> segment 0 \                          +------------+
    actor 1 --rows--> segment 1  >-- in order, once ------> |  learner   |
    actor N --rows--> segment N /   (full: the actor waits) |  V-trace   |
       ^                                                    +-----+------+
       +------------------- published weights -------------------+

Processes:   N actors and 1 learner.
Weights:     in the learner, which alone writes them; published as whole vectors with a version.
Experience:  a queue of trajectories per actor: the shared experience buffer read in order.
Correction:  V-trace: importance ratios of the learner's policy to the actor's, clipped.
Can go wrong: clipping biases what is learned; a slow learner makes the actors wait.

Paper: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from common.acting import ActingNetwork
from common.audit import MasterWriter, SharedMaster
from common.config import EPSILON_OPTIONS, REPLAY_OPTIONS, ConfigError, changed, option
from common.config import Config as CommonConfig
from common.envs import make_lanes
from common.experience import SegmentWriter
from common.policy import boltzmann
from common.probe import Probe
from common.processes import Role, worker_stream
from common.returns import vtrace
from common.supervisor import RunProbe, Shared, run_roles
from common.trajectories import Trajectory, TrajectoryQueue
from common.types import FloatArray, RunResult, Traits
from common.weights import SharedWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices, with trajectories, V-trace and the weights of the three losses."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": {"learning_rate": 1e-3, "learning_rate_end": None},
    }

    workers: int = changed("workers", 2)
    envs_per_worker: int = changed("envs_per_worker", 4)
    warmup_env_steps: int = changed("warmup_env_steps", 0)
    rollout_length: int = option(16, "Rows of a trajectory.", at_least=1)
    queue_trajectories: int = option(1, "Trajectories an actor may be ahead.", at_least=1)
    rho_bar: float = option(1.0, "V-trace: clip of the ratio in the error.", above=0)
    c_bar: float = option(1.0, "V-trace: clip of the ratio in the trace.", at_least=0)
    value_cost: float = option(0.5, "Weight of the value loss.", at_least=0)
    entropy_cost: float = option(0.01, "Weight of the entropy bonus.", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c_bar > self.rho_bar:
            raise ConfigError(f"c bar {self.c_bar} must be at most rho bar {self.rho_bar}")


TRAITS = Traits(
    name="impala",
    parent="sync",
    summary="Many actors send trajectories; one learner takes each once, corrected by V-trace.",
    processes="N actors + 1 learner",
    collects="the actors",
    computes_gradients="the learner",
    writes_weights="the learner",
    guard="none needed: one writer, whole vectors published",
    experience="a queue of trajectories per actor",
    correction="V-trace: clipped importance ratios",
    loss="policy gradient, squared value error, entropy",
    can_go_wrong="clipping biases the value; a slow learner makes actors wait",
    paper="Espeholt et al. 2018",
    can_lose_updates=False,
    single_process=False,
    ratios=("derived",),
    roles=("actor", "learner"),
    unused_options=(*REPLAY_OPTIONS, *EPSILON_OPTIONS, "chunk_steps"),
)


def actor(
    config: Config, probe: Probe, queue: TrajectoryQueue, weights: SharedWeights, worker: int
) -> None:
    """Act, observe, sync, until told to stop. Computes no gradient and loads no torch."""
    lanes = make_lanes(config, worker, worker_stream(config, probe, "environment", worker))
    exploration = np.random.default_rng(worker_stream(config, probe, "exploration", worker))
    writer = SegmentWriter(queue.buffer, worker, queue.config)
    vector, version = weights.latest()
    network = ActingNetwork(weights.spec, vector)
    probe.resumable(lanes=lanes, exploration=exploration, writer=writer)
    observation = lanes.reset()
    wait_for_room(probe, queue, worker)  # a resumed run may have been saved in the middle of it
    while not probe.should_stop(writer.unpublished_env_steps):
        # act
        _, logits = network.heads(observation)
        action, probability = boltzmann(logits, exploration)
        probe.spent("act")
        step = lanes.step(action)
        probe.spent("env_step")
        # observe
        writer.write(observation, logits, action, probability, step, version)
        published = writer.publish_when_full(probe)
        observation = step.observation
        probe.spent("write")
        # sync
        if published:
            probe.record_episodes(lanes.finished_episodes)
            probe.record("acting_lag", weights.version - version)
            wait_for_room(probe, queue, worker)
            version = weights.pull(vector, version)
            probe.set("weights_version", version)
            probe.spent("pull")
    writer.flush(observation, probe)
    lanes.close()


def learner(
    config: Config, probe: Probe, queue: TrajectoryQueue, weights: SharedWeights, master: SharedMaster
) -> None:
    """Learn, sync, until told to stop. The only writer of the weights."""
    from common.on_policy import OnPolicyLearner, adam

    trainer = OnPolicyLearner(config, weights.spec, MasterWriter(master), adam, probe, "V")
    probe.resumable(queue=queue, trainer=trainer)
    while not probe.should_stop():
        # learn
        trajectory = queue.take(probe)
        if trajectory is None:
            probe.wait()
            continue
        probe.spent("sample")
        loss, td_error = impala_loss(config, trainer.network, trajectory)
        trainer.step(loss, probe.env_steps)
        probe.count_update()
        trainer.measure_health(trajectory.observation[:-1][trajectory.valid], td_error)
        probe.spent("update")
        # sync
        weights.publish(trainer.vector)
        probe.spent("publish")
        if probe.evaluation_is_due():
            probe.evaluate()
    weights.publish(trainer.vector)


# --- The difference that matters ---


def wait_for_room(probe: Probe, queue: TrajectoryQueue, worker: int) -> None:
    """Hold an actor back while its queue is full: every row is taken once, so none may be reused."""
    while queue.is_full(worker) and not probe.should_stop():
        probe.wait()


def impala_loss(config: Config, network: Any, trajectory: Trajectory) -> tuple[Tensor, FloatArray]:
    """Return the loss, and the V-trace errors of the transitions ``[N]``.

    Policy-gradient, value and entropy losses of the policy softmax(A), V from its head.

    Espeholt et al. 2018, section 4.2, as means over the transitions. V-trace's targets and advantages
    are constants: no gradient flows through them.
    """
    import torch

    value, logits = network.heads(torch.from_numpy(trajectory.observation).flatten(0, 1))
    value = value.reshape(-1, trajectory.action.shape[1])  # [T + 1, B]
    log_policy = logits.log_softmax(dim=1).reshape(*value.shape, -1)[:-1]  # [T, B, A]
    log_taken = log_policy.gather(2, torch.from_numpy(trajectory.action)[..., None]).squeeze(2)
    constant = value.detach().numpy()
    corrected = vtrace(
        log_taken.detach().exp().numpy() / trajectory.action_probability,
        trajectory.reward,
        trajectory.discount(config.gamma),
        trajectory.episode_continues,
        constant[:-1],
        constant[1:],
        config.rho_bar,
        config.c_bar,
    )
    policy_loss = -torch.from_numpy(corrected.advantages) * log_taken
    value_loss = 0.5 * (torch.from_numpy(corrected.targets) - value[:-1]).square()
    entropy = -(log_policy.exp() * log_policy).sum(dim=2)
    loss: Tensor = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    td_error = (corrected.targets - constant[:-1])[trajectory.valid]
    return loss[torch.from_numpy(trajectory.valid)].mean(), td_error


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared = Shared(config, estimates="V")
    queue = TrajectoryQueue(config, shared.info, config.rollout_length, config.queue_trajectories)
    roles = [Role("learner", 0, learner, (queue, shared.weights, shared.master))]
    roles += [
        Role("actor", worker, actor, (queue, shared.weights, worker), can_restart=True)
        for worker in range(config.workers)
    ]
    return run_roles(config, probe, roles, shared, queue.buffer)
