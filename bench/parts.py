"""The parts of the toolkit that are measured one by one.

Each function here prepares one part and returns what to time: a function without arguments that does
the work once. ``bench/suite`` measures them beside what a user would take otherwise;
``bench.regression`` measures them at two commits. Everything is imported where it is prepared, so that
a part which one of two commits lacks leaves the others measurable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from common.config import Config
    from common.experience import ExperienceBuffer
    from common.probe import Probe
    from common.replay import Replay
    from common.types import Batch

Part = Callable[[], Any]

ENV_ID = "CartPole-v1"
NUM_ACTIONS = 2
BATCH_SIZE = 128
WIDTH = 128
# Many lanes, so that a large replay is filled in seconds. An actor publishes eight rows at once.
FILLING_LANES = 64
CHUNK_STEPS = 8


def lanes(num_lanes: int) -> Part:
    """Step our lanes once, with actions drawn before."""
    from common.envs import Lanes

    env = Lanes(ENV_ID, num_lanes, np.random.SeedSequence(0))
    env.reset()
    actions = random_actions(num_lanes)
    return lambda: env.step(next(actions))


def random_actions(num_lanes: int) -> Any:
    """Yield actions ``[L]`` for ever, without drawing any while they are asked for."""
    import itertools

    drawn = np.random.default_rng(0).integers(NUM_ACTIONS, size=(512, num_lanes))
    return itertools.cycle(list(drawn))


def acting(batch_size: int, width: int = WIDTH) -> Part:
    """Compute Q-values with the numpy twin."""
    from common.acting import ActingNetwork, initial_weights

    spec = network_spec_of(width)
    network = ActingNetwork(spec, initial_weights(spec, 0))
    observation = random_observations(batch_size)
    return lambda: network.q_values(observation)


def acting_in_torch(batch_size: int, width: int = WIDTH) -> Part:
    """Compute the same Q-values with the torch network, without gradients."""
    import torch

    from common.acting import initial_weights
    from common.network import QNetwork

    spec = network_spec_of(width)
    network = QNetwork(spec, initial_weights(spec, 0))
    observation = random_observations(batch_size)

    def act() -> Any:
        with torch.inference_mode():
            return network(torch.from_numpy(observation)).numpy()

    return act


def update(batch_size: int, width: int = WIDTH, writes: str = "audited") -> Part:
    """Learn from one batch.

    Args:
        batch_size: transitions.
        width: of both hidden layers.
        writes: ``audited``, ``unaudited``, or ``private``: not through the shared master at all.
    """
    from common.acting import initial_weights
    from common.audit import MasterWriter, SharedMaster
    from common.config import Config
    from common.learner import Learner

    spec = network_spec_of(width)
    config = Config(hidden_size=width, batch_size=batch_size, warmup_env_steps=0)
    weights = initial_weights(spec, 0)
    writer = None
    if writes != "private":
        writer = MasterWriter(SharedMaster(weights, audit=writes == "audited"))
    learner = Learner(config, spec, weights, writer)
    batch = random_batch(batch_size)
    return lambda: learner.update(batch)


def sampling(capacity: int, prioritized: bool, batch_size: int = BATCH_SIZE) -> Part:
    """Draw and copy a batch from a full replay, and give its errors back if it is prioritized."""
    config = replay_config(capacity, prioritized, batch_size)
    replay = full_replay(config)
    td_error = np.random.default_rng(0).random(batch_size, dtype=np.float32)

    def sample() -> None:
        batch = replay.sample()
        replay.update_priorities(batch, td_error)

    return sample


def sample_and_update(capacity: int, batch_size: int = BATCH_SIZE) -> Part:
    """Draw a batch uniformly and learn from it: what a user calls a training step."""
    from common.acting import initial_weights
    from common.audit import MasterWriter, SharedMaster
    from common.learner import Learner

    config = replay_config(capacity, False, batch_size)
    spec = network_spec_of(WIDTH)
    weights = initial_weights(spec, 0)
    learner = Learner(config, spec, weights, MasterWriter(SharedMaster(weights)))
    replay = full_replay(config)
    return lambda: learner.update(replay.sample())


def inserting(capacity: int, prioritized: bool = True) -> Part:
    """Write a chunk of 512 transitions, publish it, and take it in."""
    config = replay_config(capacity, prioritized)
    buffer, probe = buffer_of(config), probe_of(config)
    write_row = filler(config, buffer, 0)
    for _ in range(buffer.num_rows):
        write_row()
    replay = replay_of(config, buffer, probe)
    replay.take_in()

    def insert() -> None:
        for _ in range(CHUNK_STEPS):
            write_row()
        replay.take_in()

    return insert


def publishing(width: int = WIDTH) -> Part:
    """Publish the weights: one copy of a flat vector."""
    weights = shared_weights(width)
    vector = weights.latest()[0]
    return lambda: weights.publish(vector)


def pulling(width: int = WIDTH) -> Part:
    """Copy the published weights and check that the copy is whole."""
    weights = shared_weights(width)
    vector = weights.latest()[0]
    return lambda: weights.pull(vector, -1)


def locking() -> Part:
    """Take and give back the file lock, with nobody else about."""
    from common.locks import FileLock, LockFile

    file = LockFile()
    lock = FileLock(file)

    def take() -> None:
        with lock:
            pass

    take.file = file  # type: ignore[attr-defined]  # kept: it is removed with its owner
    return take


def shared_weights(width: int) -> Any:
    """Return published weights of a network of some width."""
    from common.acting import initial_weights
    from common.weights import SharedWeights

    spec = network_spec_of(width)
    return SharedWeights(spec, initial_weights(spec, 0))


def network_spec_of(width: int) -> Any:
    """Return the shape of CartPole's network of some width."""
    from common.acting import network_spec
    from common.config import Config
    from common.envs import inspect_env

    return network_spec(Config(hidden_size=width), inspect_env(ENV_ID))


def random_observations(batch_size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return observations ``[B, 4]``."""
    generator = np.random.default_rng(0)
    return generator.normal(size=(batch_size, 4)).astype(np.float32)


def random_batch(batch_size: int) -> Batch:
    """Return a batch as replay would give it."""
    from common.types import Batch

    generator = np.random.default_rng(0)
    return Batch(
        observation=random_observations(batch_size),
        action=generator.integers(NUM_ACTIONS, size=batch_size),
        n_step_return=generator.random(batch_size, dtype=np.float32),
        bootstrap_discount=np.full(batch_size, 0.99, dtype=np.float32),
        bootstrap_observation=random_observations(batch_size),
        importance_weight=np.ones(batch_size, dtype=np.float32),
        weights_version=np.zeros(batch_size, dtype=np.int64),
        place=np.arange(batch_size),
        row=np.zeros(batch_size, dtype=np.int64),
    )


def replay_config(capacity: int, prioritized: bool, batch_size: int = BATCH_SIZE) -> Config:
    """Return a configuration whose replay holds ``capacity`` rows."""
    from common.config import Config

    return Config(
        replay_capacity=capacity,
        envs_per_worker=FILLING_LANES,
        prioritized=prioritized,
        batch_size=batch_size,
        chunk_steps=CHUNK_STEPS,
        warmup_env_steps=0,
    )


def buffer_of(config: Config) -> ExperienceBuffer:
    """Return an empty experience buffer."""
    from common.envs import inspect_env
    from common.experience import ExperienceBuffer

    return ExperienceBuffer(config, inspect_env(ENV_ID))


def probe_of(config: Config) -> Probe:
    """Return a probe of a run with one process."""
    from common.probe import Probe
    from common.telemetry import Telemetry

    return Probe(Telemetry(1), 0, config)


def replay_of(config: Config, buffer: ExperienceBuffer, probe: Probe) -> Replay:
    """Return the learner's end of a buffer."""
    from common.replay import make_replay

    return make_replay(config, buffer, np.random.default_rng(0), probe)


def full_replay(config: Config) -> Replay:
    """Return a replay that has taken in a full buffer of random rows."""
    buffer = buffer_of(config)
    write_row = filler(config, buffer, 0)
    for _ in range(buffer.num_rows):
        write_row()
    replay = replay_of(config, buffer, probe_of(config))
    replay.take_in()
    return replay


def filler(config: Config, buffer: ExperienceBuffer, worker: int) -> Part:
    """Return what writes a random row of all lanes of a worker, publishing when a chunk is full."""
    from common.experience import SegmentWriter
    from common.types import LaneStep

    generator = np.random.default_rng(worker)
    num_lanes = buffer.num_lanes
    shape = (num_lanes, *buffer["observation"].shape[3:])
    observation = generator.normal(size=shape).astype(buffer["observation"].dtype)
    reward = generator.random(num_lanes, dtype=np.float32)
    q_values = generator.random((num_lanes, NUM_ACTIONS), dtype=np.float32)
    action = generator.integers(NUM_ACTIONS, size=num_lanes)
    nothing = np.zeros(num_lanes, dtype=bool)
    step = LaneStep(observation, reward, nothing, nothing, ~nothing)
    writer, probe = SegmentWriter(buffer, worker, config), probe_of(config)

    def write_row() -> None:
        writer.write(observation, q_values, action, reward, step, 0)
        writer.publish_when_full(probe)

    return write_row
