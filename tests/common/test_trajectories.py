"""Trajectories: every row once, in order; what a step led to is the lane's next row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.acting import NetworkSpec, initial_weights, parameter_views
from common.audit import MasterWriter, SharedMaster
from common.barrier import OVER, RoundBarrier
from common.config import Config
from common.envs import inspect_env
from common.experience import SegmentWriter
from common.network import QNetwork
from common.on_policy import OnPolicyLearner, adam, radam
from common.probe import Probe
from common.telemetry import Telemetry
from common.trajectories import Rollout, Trajectory, TrajectoryQueue
from common.types import LaneStep

LANES, LENGTH = 2, 3
INFO = inspect_env("CartPole-v1")


def numbered_step(number: int) -> LaneStep:
    """Step ``number``: the reward says which; lane 0 ends at every fourth step."""
    ended = np.array([number % 4 == 3, False])
    return LaneStep(
        observation=numbered_observation(number + 1),
        reward=np.full(LANES, number, dtype=np.float32),
        terminated=ended,
        truncated=np.zeros(LANES, dtype=bool),
        valid=np.array([number % 4 != 0 or number == 0, True]),
    )


def numbered_observation(number: int) -> np.ndarray:
    return np.full((LANES, 4), number, dtype=np.float32)


def check(trajectory: Trajectory, first: int, length: int) -> None:
    numbers = np.arange(first, first + length)
    np.testing.assert_array_equal(trajectory.reward[:, 1], numbers)
    np.testing.assert_array_equal(trajectory.weights_version, 10 * numbers)
    np.testing.assert_array_equal(trajectory.observation[:, 0, 0], np.arange(first, first + length + 1))
    np.testing.assert_array_equal(trajectory.terminated[:, 0], numbers % 4 == 3)
    np.testing.assert_array_equal(trajectory.valid[:, 0], (numbers % 4 != 0) | (numbers == 0))


def make_queue(capacity: int = 2) -> tuple[TrajectoryQueue, SegmentWriter, Probe]:
    config = Config(workers=1, envs_per_worker=LANES, batch_size=1, warmup_env_steps=0)
    queue = TrajectoryQueue(config, INFO, LENGTH, capacity)
    probe = Probe(Telemetry(1), 0, config)
    return queue, SegmentWriter(queue.buffer, 0, queue.config), probe


def write(writer: SegmentWriter, probe: Probe, number: int) -> bool:
    logits = np.zeros((LANES, 2), dtype=np.float32)
    action = np.zeros(LANES, dtype=np.int64)
    probability = np.full(LANES, 0.5, dtype=np.float32)
    observation = numbered_observation(number)
    writer.write(observation, logits, action, probability, numbered_step(number), 10 * number)
    return writer.publish_when_full(probe)


def test_a_queue_gives_every_row_once_and_in_order_through_many_turns_of_the_ring() -> None:
    queue, writer, probe = make_queue()
    taken = 0
    for number in range(20 * queue.buffer.num_rows):
        if write(writer, probe, number):
            trajectory = queue.take(probe)
            assert trajectory is not None
            check(trajectory, taken, LENGTH)
            taken += LENGTH
            assert queue.take(probe) is None
    assert taken > 19 * queue.buffer.num_rows


def test_a_full_queue_says_so_until_the_learner_has_taken_one() -> None:
    queue, writer, probe = make_queue(capacity=2)
    published = number = 0
    while published < 2:
        assert not queue.is_full(0)
        published += write(writer, probe, number)
        number += 1

    assert queue.is_full(0)
    assert queue.take(probe) is not None
    assert not queue.is_full(0)


def test_env_steps_are_counted_as_stored_when_taken() -> None:
    queue, writer, probe = make_queue()
    for number in range(2 * LENGTH + 1):
        write(writer, probe, number)
    collected = probe.env_steps

    steps = [trajectory.num_env_steps for trajectory in iter(lambda: queue.take(probe), None)]

    assert steps == [6, 5], "lane 0 moved on to its next episode in row 4: no env step"
    assert sum(steps) == collected


def test_actors_take_turns() -> None:
    config = Config(workers=2, envs_per_worker=LANES, batch_size=1, warmup_env_steps=0)
    queue = TrajectoryQueue(config, INFO, LENGTH, 4)
    probe = Probe(Telemetry(1, 2), 0, config)
    writers = [SegmentWriter(queue.buffer, worker, queue.config) for worker in range(2)]
    for number in range(3 * LENGTH + 1):
        write(writers[0], probe, number)
    for number in range(LENGTH + 1):
        write(writers[1], probe, 100 + number)

    first = [int(t.reward[0, 1]) for t in iter(lambda: queue.take(probe), None)]

    assert first == [0, 100, 3, 6]
    assert queue.take(probe) is None


def test_a_rollout_is_closed_by_the_last_observation_and_starts_anew() -> None:
    rollout = Rollout(LENGTH, LANES, INFO)
    action, probability = np.zeros(LANES, dtype=np.int64), np.ones(LANES, dtype=np.float32)
    for first, length in ((0, LENGTH), (LENGTH, 2)):
        for number in range(first, first + length):
            observation = numbered_observation(number)
            rollout.write(observation, action, probability, numbered_step(number), 10 * number)
        assert rollout.is_full == (length == LENGTH)
        trajectory = rollout.take(numbered_observation(first + length))
        check(trajectory, first, length)
        assert rollout.num_env_steps == 0


def test_discount_knows_termination_and_continuation_both_ends() -> None:
    flags = np.array([[True], [False], [False]])
    zeros = np.zeros((3, 1), dtype=np.float32)
    trajectory = Trajectory(
        np.zeros((4, 1)),
        zeros.astype(np.int64),
        zeros,
        zeros,
        flags,
        flags[::-1],
        ~flags,
        np.zeros(3, int),
    )

    np.testing.assert_allclose(trajectory.discount(0.9)[:, 0], [0, 0.9, 0.9])
    np.testing.assert_array_equal(trajectory.episode_continues[:, 0], [0, 1, 0])


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kind", ["adam", "radam"])
def test_the_flat_step_is_the_step_of_every_parameter(layer_norm: bool, kind: str) -> None:
    spec = NetworkSpec((4,), "<f4", 2, 16, layer_norm)
    config = Config(learning_rate=1e-2, max_grad_norm=0.5)
    master = SharedMaster(initial_weights(spec, 3), audit=True)
    learner = OnPolicyLearner(config, spec, MasterWriter(master), {"adam": adam, "radam": radam}[kind])
    plain = QNetwork(spec, learner.vector.copy())
    make = torch.optim.Adam if kind == "adam" else torch.optim.RAdam
    optimizer = make(plain.parameters(), lr=1e-2, eps=config.adam_epsilon)
    observation = torch.from_numpy(np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32))

    for _ in range(10):
        norm = learner.step(learner.network(observation).square().mean())
        optimizer.zero_grad()
        plain(observation).square().mean().backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        assert norm == pytest.approx(float(expected_norm), rel=1e-3)

    # The master is rounded to 2^-24 at each step, with the rest carried over.
    np.testing.assert_allclose(learner.vector, plain.vector, atol=2e-5)
    np.testing.assert_array_equal(learner.vector, master.vector())
    views = parameter_views(spec, learner.vector)
    for name, parameter in learner.network.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), views[name])


def test_a_round_needs_everybody() -> None:
    barrier = RoundBarrier(2)
    assert not barrier.has_begun(1)

    barrier.begin(1, env_steps=40)
    barrier.arrive(0, 1, unpublished_env_steps=3)
    assert barrier.has_begun(1)
    assert barrier.env_steps == 40
    assert not barrier.all_arrived(1)

    barrier.arrive(1, 1, unpublished_env_steps=4)
    assert barrier.all_arrived(1)
    assert barrier.unpublished_env_steps() == 7
    assert barrier.unpublished_env_steps([True, False]) == 4, "the gone deliver nothing any more"

    barrier.begin(OVER, 50)
    assert barrier.is_over
