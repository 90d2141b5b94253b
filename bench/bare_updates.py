"""One update of each strategy on data that stays the same: nothing but the update itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.acting import NetworkSpec, initial_weights
from common.audit import MasterWriter, SharedMaster
from common.config import Config
from common.trajectories import Trajectory
from common.types import Batch, FloatArray

if TYPE_CHECKING:
    from common.learner import Learner

Maker = Callable[[Any, NetworkSpec], Callable[[], Any]]

SEED = 0


def make_update(strategy: str, config: Config, spec: NetworkSpec) -> Callable[[], int]:
    """Return a function that does one update as the strategy does it, and returns 1.

    A strategy of another package is taken to learn from replay.
    """
    make: Maker = MAKERS.get(strategy, _from_replay)
    update = make(config, spec)

    def once() -> int:
        update()
        return 1

    return once


def first_weights(spec: NetworkSpec) -> FloatArray:
    """Return some first weights ``[P]``."""
    return initial_weights(spec, SEED)


def random_observation(spec: NetworkSpec, *sizes: int) -> NDArray[Any]:
    """Return observations ``[*sizes, ...]`` in the environment's own dtype."""
    generator = np.random.default_rng(SEED)
    shape = (*sizes, *spec.observation_shape)
    dtype = np.dtype(spec.observation_dtype)
    if dtype.kind == "f":
        return generator.normal(size=shape).astype(dtype)
    return generator.integers(0, 2 if dtype.kind == "b" else 100, size=shape).astype(dtype)


def random_batch(spec: NetworkSpec, size: int) -> Batch:
    """Return transitions ``[B]`` of nothing in particular."""
    generator = np.random.default_rng(SEED)
    return Batch(
        observation=random_observation(spec, size),
        action=generator.integers(0, spec.num_actions, size),
        n_step_return=generator.random(size, dtype=np.float32),
        bootstrap_discount=np.full(size, 0.9, dtype=np.float32),
        bootstrap_observation=random_observation(spec, size),
        importance_weight=np.ones(size, dtype=np.float32),
        weights_version=np.zeros(size, dtype=np.int64),
        place=np.arange(size),
        row=np.arange(size),
    )


def random_trajectory(spec: NetworkSpec, length: int, lanes: int) -> Trajectory:
    """Return a trajectory ``[T, B]`` in which no episode ends."""
    generator = np.random.default_rng(SEED)
    shape = (length, lanes)
    no = np.zeros(shape, dtype=bool)
    return Trajectory(
        observation=random_observation(spec, length + 1, lanes),
        action=generator.integers(0, spec.num_actions, shape),
        action_probability=np.full(shape, 1 / spec.num_actions, dtype=np.float32),
        reward=generator.random(shape, dtype=np.float32),
        terminated=no,
        truncated=no,
        valid=~no,
        weights_version=np.zeros(length, dtype=np.int64),
    )


def make_learner(config: Config, spec: NetworkSpec, optimizer: str = "adam") -> Learner:
    """Return a learner with a master of its own, which nobody else writes."""
    from common.learner import Learner

    weights = first_weights(spec)
    return Learner(config, spec, weights, _writer(config, weights), optimizer)


def _writer(config: Config, weights: FloatArray) -> MasterWriter:
    return MasterWriter(SharedMaster(weights, audit=config.audit))


def _from_replay(config: Config, spec: NetworkSpec) -> Callable[[], Any]:
    learner, batch = make_learner(config, spec), random_batch(spec, config.batch_size)
    return lambda: learner.update(batch)


def _from_rollout(config: Any, spec: NetworkSpec) -> Callable[[], Any]:
    learner = make_learner(config, spec, config.optimizer)
    rollout = random_trajectory(spec, config.rollout_length, config.envs_per_worker)

    def update() -> None:
        learner.compute_rollout_gradient(rollout)
        learner.take_step()
        learner.write()
        learner.read()

    return update


def _from_trajectory(config: Any, spec: NetworkSpec) -> Callable[[], Any]:
    from common.on_policy import OnPolicyLearner, adam
    from strategies.impala import impala_loss

    learner = OnPolicyLearner(config, spec, _writer(config, first_weights(spec)), adam)
    trajectory = random_trajectory(spec, config.rollout_length, config.envs_per_worker)
    return lambda: learner.step(_loss(impala_loss(config, learner.network, trajectory)))


def _from_minibatch(config: Any, spec: NetworkSpec) -> Callable[[], Any]:
    import torch

    from common.on_policy import OnPolicyLearner, radam
    from strategies.pqn import pqn_loss

    learner = OnPolicyLearner(config, spec, _writer(config, first_weights(spec)), radam)
    size = max(1, config.rollout_length * config.envs_per_worker // config.minibatches)
    batch = random_batch(spec, size)
    observation, action = torch.from_numpy(batch.observation), torch.from_numpy(batch.action)
    target = torch.from_numpy(batch.n_step_return)
    return lambda: learner.step(_loss(pqn_loss(learner.network(observation), action, target)))


def _loss(value: Any) -> Any:
    """Return the loss of what a strategy's loss function returns, with or without measurements."""
    return value[0] if isinstance(value, tuple) else value


# Those that learn from something else than a replayed batch.
MAKERS: dict[str, Maker] = {
    "a3c": _from_rollout,
    "impala": _from_trajectory,
    "pqn": _from_minibatch,
}
