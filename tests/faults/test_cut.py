"""A segment whose worker died and was replaced: every transition is checked against brute force."""

from __future__ import annotations

import counting_env as ce
import numpy as np
import pytest
from replay_rig import Key, Rig, keys

from common.config import Config
from common.envs import Lanes
from common.experience import PUBLISHED, WRITING, SegmentWriter
from common.probe import Probe
from common.replay import make_replay
from common.telemetry import Telemetry
from common.trajectories import Trajectory, TrajectoryQueue


class MortalRig(Rig):
    """A rig whose workers can die at a moment of the test's choice."""

    lives = 0

    def die(self, worker: int, torn: bool = False, counted: bool = False) -> int:
        """Drop a worker's writer and put another in its place; return the env steps that were lost."""
        buffer, writer, probe = self.buffer, self.writers[worker], self.probes[worker]
        header = buffer["header"][worker]
        if counted and writer._row - self.config.n_step > buffer.published(worker):
            shown = buffer.published(worker)
            writer._publish(writer._row - self.config.n_step, probe)
            header[PUBLISHED] = shown  # killed between the two stores
        if torn:  # killed in the middle of a row: its beginning is new, the rest of an earlier round
            slot = buffer.writing(worker) % buffer.num_rows
            header[WRITING] += 1
            buffer["observation"][worker, slot] = 123456
            buffer["terminated"][worker, slot] = True
            self.log[worker].append(([(0, 0, 0)] * buffer.num_lanes, [False] * buffer.num_lanes))
        buffer.settle(worker, self.telemetry.word(worker, "env_steps"))
        published = buffer.published(worker)
        lost = self.env_steps(worker, published, len(self.log[worker]))
        for row in range(published, len(self.log[worker])):
            seen, valid = self.log[worker][row]
            self.log[worker][row] = (seen, [False] * len(valid))
        self.lives += 1
        seeds = np.random.SeedSequence([1000 + self.lives, worker])
        self.lanes[worker] = Lanes(self.config.env_id, self.config.envs_per_worker, seeds)
        self.observation[worker] = self.lanes[worker].reset()
        self.home |= {key[0]: (worker, i) for i, key in enumerate(keys(self.observation[worker]))}
        self.writers[worker] = SegmentWriter(buffer, worker, self.config)
        if self.writers[worker]._takes_over:
            self.writers[worker]._cut()  # as with its first write
        return lost

    def account(self) -> None:
        """Collected is stored, dropped, or still in flight, whoever died."""
        taken = self.count("stored") + self.count("dropped")
        shown = sum(
            self.buffer.env_steps_until(worker, self.buffer.published(worker))
            for worker in range(len(self.writers))
        )
        assert shown == self.telemetry.total("env_steps") >= taken


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(("n_step", "lanes", "chunk"), [(1, 1, 1), (3, 2, 4), (5, 1, 3), (2, 3, 1)])
def test_no_transition_joins_two_lives(n_step: int, lanes: int, chunk: int, prioritized: bool) -> None:
    generator = np.random.default_rng(n_step)
    rig = MortalRig(
        n_step=n_step, envs_per_worker=lanes, chunk_steps=chunk, workers=2, prioritized=prioritized
    )
    lost = deaths = checked = 0
    for _ in range(8):
        for worker in range(2):
            rig.run(worker, int(generator.integers(0, rig.buffer.num_rows // 2)))
        victim = int(generator.integers(2))
        lost += rig.die(victim, *(generator.random(2) < 0.5))
        deaths += 1
        rig.run(victim, int(generator.integers(0, 2 * (n_step + chunk))))
        rig.replay.take_in()
        rig.account()
        if rig.replay.num_transitions:
            found = rig.sample_all(15)
            assert found <= rig.stored()
            checked += len(found)
    # A death costs a chunk and the rows whose windows were not complete, at the most.
    assert 0 < lost <= deaths * lanes * (chunk + n_step) and checked > 100
    rig.flush()
    rig.replay.take_in()
    rig.account()
    assert rig.sample_all() <= rig.stored()


def test_a_worker_that_dies_before_it_has_published_leaves_nothing() -> None:
    rig = MortalRig(n_step=3, chunk_steps=4)
    rig.run(0, 5)
    assert rig.buffer.published(0) == 0
    steps = rig.env_steps(0, 0, 5)
    assert rig.die(0, torn=True) == steps > 2
    assert not rig.buffer["valid"][0, :6].any() and rig.buffer["truncated"][0, 5].all()
    assert not rig.buffer["observation"][0, :6].any(), "nothing of a row that nobody has seen"
    rig.run(0, 40)
    rig.replay.take_in()
    assert {key[0] for key in rig.sample_all()} == {key[0] for key in keys(rig.observation[0])}


def test_a_publish_that_was_counted_is_finished_for_the_dead() -> None:
    rig = MortalRig(n_step=2, chunk_steps=100)
    rig.run(0, 30)
    assert (rig.buffer.published(0), rig.telemetry.word(0, "env_steps")) == (0, 0)
    rig.die(0, counted=True)
    assert rig.buffer.published(0) == 28  # all rows whose window was complete
    assert rig.telemetry.word(0, "env_steps") == rig.buffer.env_steps_until(0, 28) > 15
    rig.buffer.settle(0, rig.telemetry.word(0, "env_steps"))
    assert rig.buffer.published(0) == 28  # nothing is left to do a second time


def test_a_replaced_process_counts_nothing_twice() -> None:
    """As in hogwild: the one that reads a segment dies with the one that writes it."""
    rig = MortalRig(n_step=1, replay_capacity=64)
    own = Probe(rig.telemetry, 1, rig.config)
    rig.run(0, 40)
    rig.replay.take_in()
    before = rig.count("stored")
    assert before == rig.buffer.env_steps_until(0, rig.buffer.published(0)) > 20
    rig.run(0, 200)  # seen by nobody: some of it is overwritten
    rig.replay = make_replay(rig.config, rig.buffer, np.random.default_rng(1), own)
    rig.replay.take_in()
    rig.account()
    assert rig.count("stored") + rig.count("dropped") == rig.telemetry.total("env_steps")
    assert rig.count("dropped") > 50 and rig.sample_all() == rig.stored()


LENGTH = 4


def live(queue: TrajectoryQueue, seed: int, rows: int, actor: Probe, learner: Probe) -> list[Key]:
    """Write rows as an actor does and die in the middle of the last; return what was learned from."""
    lanes = Lanes(ce.PLAIN, 1, np.random.SeedSequence(seed))
    writer = SegmentWriter(queue.buffer, 0, queue.config)
    observation, taken = lanes.reset(), []
    probability, q_values = np.ones(1, np.float32), np.zeros((1, ce.NUM_ACTIONS), np.float32)
    for row in range(rows):
        action = ce.scripted_action(observation)
        step = lanes.step(action)
        writer.write(observation, q_values, action, probability, step, 0)
        observation = step.observation
        if row < rows - 1:
            writer.publish_when_full(actor)
        while (trajectory := queue.take(learner)) is not None:
            taken += check_trajectory(trajectory)
    return taken


def check_trajectory(trajectory: Trajectory) -> list[Key]:
    """Compare every transition with what the environment does; return which they are."""
    assert trajectory.valid.any() and (trajectory.action_probability > 0).all()
    assert np.isfinite(trajectory.observation).all() and np.isfinite(trajectory.reward).all()
    found = []
    for row in np.flatnonzero(trajectory.valid[:, 0]):
        (key,), (after,) = keys(trajectory.observation[row]), keys(trajectory.observation[row + 1])
        expected = ce.expected_transition(key, 1, 1.0)
        assert trajectory.action[row, 0] == expected.action
        assert trajectory.reward[row, 0] == expected.n_step_return
        assert after == expected.bootstrap_observation
        ended = trajectory.terminated[row, 0], trajectory.truncated[row, 0]
        assert ended == ce.after(*after)
        found.append(key)
    return found


@pytest.mark.parametrize("rows", range(2 * LENGTH, 4 * LENGTH + 2))
def test_trajectories_are_whole_whenever_the_actor_died(rows: int) -> None:
    config = Config(env_id=ce.PLAIN, warmup_env_steps=0, batch_size=8, replay_capacity=64)
    queue = TrajectoryQueue(config, Lanes(ce.PLAIN, 1, np.random.SeedSequence(0)).info, LENGTH, 2)
    telemetry = Telemetry(2)
    actor, learner = (Probe(telemetry, role, config) for role in range(2))
    lives = [live(queue, seed, rows, actor, learner) for seed in range(6)]
    taken = [key for life in lives for key in life]
    assert len(set(taken)) == len(taken) == telemetry.total("stored") > 6
    assert all(len({stream for stream, _, _ in life}) <= 2 for life in lives)
    waiting = queue.buffer.published(0) - int(queue._words["taken"][0, 0])
    assert 0 <= waiting < LENGTH, "nothing is stuck, also where a whole trajectory was void"
    # All but what the last trajectory may still wait for was taken.
    assert 0 <= telemetry.total("env_steps") - len(taken) < LENGTH
