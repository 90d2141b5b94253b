"""One process steps many environments and learns from each rollout at once; nothing is stored.

    +--------------------------- one process ----------------------------+
    |  envs  --rows-->  rollout  --Q(lambda)-->  update  -->  weights  +  |
    |  ^  ^             (then forgotten)                               |  |
    |  +--+------------------ actions, one forward pass ---------------+  |
    +---------------------------------------------------------------------+

Processes:   1.
Weights:     in the one process, which alone writes them; no guard is needed.
Experience:  the last rollout, used for some epochs and forgotten: no replay.
Correction:  none; no target network either: layer normalisation keeps the targets from running away.
Can go wrong: an exploring action lowers the value of all that led to it, since Q(lambda) does not cut.

Paper: Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from common.acting import ActingNetwork
from common.audit import MasterWriter, SharedMaster
from common.config import REPLAY_OPTIONS, changed, option
from common.config import Config as CommonConfig
from common.consumption import consume_trajectory
from common.envs import EnvInfo, make_lanes
from common.policy import epsilon_greedy, linear_decay
from common.probe import Probe
from common.processes import Role, random_stream
from common.returns import q_lambda_returns
from common.supervisor import RunProbe, Shared, run_roles
from common.trajectories import Rollout, Trajectory
from common.types import FloatArray, IntArray, RunResult, Traits
from common.weights import SharedWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """The common choices, with a batch of environments and without replay."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "CartPole-v1": {"learning_rate": 2e-3, "learning_rate_end": None},
    }

    envs_per_worker: int = changed("envs_per_worker", 32)
    layer_norm: bool = changed("layer_norm", True)
    warmup_env_steps: int = changed("warmup_env_steps", 0)
    rollout_length: int = option(32, "Vector steps between two rounds of learning.", at_least=1)
    trace: float = option(0.95, "Lambda of Q(lambda); 0 is one-step.", at_least=0, at_most=1)
    epochs: int = option(4, "Times that a rollout is gone through.", at_least=1)
    minibatches: int = option(8, "Updates per epoch.", at_least=1)


TRAITS = Traits(
    name="pqn",
    parent="vector",
    summary="One process learns from each rollout at once; nothing is stored.",
    processes="1",
    collects="the one process, many envs",
    computes_gradients="the one process",
    writes_weights="the one process",
    guard="none needed: one writer",
    experience="the last rollout, then forgotten",
    correction="none",
    loss="squared error to Q(lambda)",
    can_go_wrong="exploring actions lower the values before them",
    paper="Gallici et al. 2024",
    can_lose_updates=False,
    single_process=True,
    ratios=("derived",),
    roles=("actor_learner",),
    unused_options=(*REPLAY_OPTIONS, "chunk_steps"),
)


def actor_learner(
    config: Config, probe: Probe, info: EnvInfo, weights: SharedWeights, master: SharedMaster
) -> None:
    """Act, observe, learn, sync, until told to stop."""
    from common.on_policy import OnPolicyLearner, radam

    lanes = make_lanes(config, 0, random_stream(config.seed, "environment"))
    exploration = np.random.default_rng(random_stream(config.seed, "exploration"))
    draws = np.random.default_rng(random_stream(config.seed, "replay"))
    rollout = Rollout(config.rollout_length, config.envs_per_worker, info)
    learner = OnPolicyLearner(config, weights.spec, MasterWriter(master), radam, probe)
    network = ActingNetwork(weights.spec, learner.vector)
    probe.resumable(lanes=lanes, exploration=exploration, draws=draws, rollout=rollout, learner=learner)
    observation = lanes.reset()
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
        rollout.write(observation, action, probability, step, learner.num_updates)
        probe.record_episodes(lanes.finished_episodes)
        observation = step.observation
        probe.spent("write")
        # learn
        if rollout.is_full:
            learn_from(config, probe, learner, rollout.take(observation), draws)
        # sync
        if probe.evaluation_is_due():
            weights.publish(learner.vector)
            probe.evaluate()
    learn_from(config, probe, learner, rollout.take(observation), draws)
    weights.publish(learner.vector)
    lanes.close()


# --- The difference that matters ---


def learn_from(
    config: Config, probe: Probe, learner: Any, rollout: Trajectory, draws: np.random.Generator
) -> None:
    """Regress Q on Q(lambda) for some epochs of minibatches, then forget the rollout.

    The targets are made once, by the network that acted, and stay as they are during the epochs.
    """
    import torch

    if rollout.num_env_steps == 0:
        return
    probe.count("env_steps", rollout.num_env_steps)
    consume_trajectory(probe, rollout, 0, config.epochs)
    observation = torch.from_numpy(rollout.observation[:-1].reshape(-1, *rollout.observation.shape[2:]))
    action = torch.from_numpy(rollout.action.reshape(-1))
    target = q_lambda_targets(config, learner.network, rollout).reshape(-1)
    probe.spent("sample")
    for rows in minibatches(config, rollout, draws):
        places = torch.from_numpy(rows)
        q_values = learner.network(observation[places])
        loss, td_error = pqn_loss(q_values, action[places], target[places])
        learner.step(loss, probe.env_steps)
        probe.record("policy_lag", learner.num_updates - 1 - int(rollout.weights_version[0]))
        probe.count_update()
        learner.measure_health(observation[places].numpy(), td_error)
    probe.spent("update")


def q_lambda_targets(config: Config, network: Any, rollout: Trajectory) -> Tensor:
    """Return Q(lambda) targets ``[T, B]``; a row's next value is max Q of the lane's next row."""
    import torch

    length, lanes = rollout.reward.shape
    following = rollout.observation[1:].reshape(-1, *rollout.observation.shape[2:])
    with torch.no_grad():
        next_q_max = network(torch.from_numpy(following)).amax(dim=1).numpy()
    return torch.from_numpy(
        q_lambda_returns(
            rollout.reward,
            rollout.discount(config.gamma),
            rollout.episode_continues,
            next_q_max.reshape(length, lanes),
            config.trace,
        )
    )


def minibatches(config: Config, rollout: Trajectory, draws: np.random.Generator) -> Iterator[IntArray]:
    """Yield the places of transitions, each once an epoch; rows that are none are left out."""
    places = np.flatnonzero(rollout.valid)
    for _ in range(config.epochs):
        number = min(config.minibatches, len(places))
        yield from np.array_split(draws.permutation(places), number)


def pqn_loss(q_values: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, FloatArray]:
    """Return the mean of (target - Q(s, a))^2 / 2 over ``[B]``, and the errors ``[B]`` themselves."""
    td_error = target - q_values.gather(1, action[:, None]).squeeze(1)
    return 0.5 * td_error.square().mean(), td_error.detach().numpy()


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect."""
    shared = Shared(config)
    roles = [Role("actor_learner", 0, actor_learner, (shared.info, shared.weights, shared.master))]
    return run_roles(config, probe, roles, shared)
