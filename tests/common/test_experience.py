from __future__ import annotations

import counting_env as ce
import numpy as np
import pytest
from replay_rig import GAMMA, Rig, expected_transition, first_priority, q_value

from common.config import Config
from common.envs import EnvInfo
from common.experience import ExperienceBuffer


def info(shape: tuple[int, ...], dtype: str) -> EnvInfo:
    return EnvInfo("any", shape, dtype, num_actions=3, first_action=0, reward_threshold=None)


@pytest.mark.parametrize(
    ("env_id", "workers", "envs_per_worker"),
    [(ce.PLAIN, 1, 1), (ce.SAME_STEP, 2, 3), (ce.NEXT_STEP, 1, 6)],
)
def test_rows_hold_what_every_lane_saw_and_did(env_id: str, workers: int, envs_per_worker: int) -> None:
    rig = Rig(env_id, workers=workers, envs_per_worker=envs_per_worker, n_step=2)
    buffer = rig.buffer
    for worker in range(workers):
        rig.run(worker, 3 * buffer.num_rows + 5 * worker)
    for worker in range(workers):
        written = len(rig.log[worker])
        for row in range(written - buffer.num_rows, written):
            seen, valid = rig.log[worker][row]
            slot = worker, row % buffer.num_rows
            assert buffer["observation"][slot].tolist() == [list(key) for key in seen]
            assert buffer["valid"][slot].tolist() == valid
            assert buffer["weights_version"][slot] == row
            assert buffer["env_steps_before"][slot] == rig.env_steps(worker, 0, row)
            assert buffer["action_probability"][slot].tolist() == [0.25 + row] * envs_per_worker
            for lane, (stream, episode, step) in enumerate(seen):
                if not valid[lane]:
                    assert step == ce.length(stream, episode)
                    assert buffer["reward"][slot][lane] == 0
                    continue
                action = (7 * stream + 3 * episode + step) % 3
                flags = buffer["terminated"][slot][lane], buffer["truncated"][slot][lane]
                assert buffer["action"][slot][lane] == action
                assert buffer["reward"][slot][lane] == ce.reward(episode, step, action)
                assert flags == ce.after(stream, episode, step + 1)


@pytest.mark.parametrize(("n_step", "chunk_steps"), [(1, 1), (1, 4), (5, 1), (3, 4)])
def test_rows_are_published_in_chunks_with_their_windows_complete(
    n_step: int, chunk_steps: int
) -> None:
    rig = Rig(n_step=n_step, chunk_steps=chunk_steps, envs_per_worker=2, workers=2)
    writer, published = rig.writers[1], 0
    for written in range(1, 150):
        rig.write(1)
        assert rig.buffer.published(1) == published  # not before it is asked for
        complete = written - n_step
        is_due = complete - published >= chunk_steps
        assert writer.publish_when_full(rig.probes[1]) == is_due
        published = complete if is_due else published
        env_steps = rig.env_steps(1, 0, published)
        assert rig.buffer.published(1) == published
        assert rig.buffer.writing(1) == written
        assert rig.telemetry.word(1, "env_steps") == env_steps
        assert rig.buffer.env_steps_until(1, published) == env_steps
        assert writer.unpublished_env_steps == rig.env_steps(1, published, written)
    assert published > 2 * rig.buffer.num_rows
    # Nobody else's segment was touched.
    assert (rig.buffer.published(0), rig.buffer.writing(0)) == (0, 0)
    assert not rig.buffer["observation"][0].any()
    assert rig.telemetry.word(0, "env_steps") == 0


@pytest.mark.parametrize("envs_per_worker", [1, 5])
@pytest.mark.parametrize("n_step", [1, 5])
def test_first_priorities_are_n_step_td_errors(n_step: int, envs_per_worker: int) -> None:
    rig = Rig(n_step=n_step, envs_per_worker=envs_per_worker, seed=n_step)
    buffer, num_compared, largest = rig.buffer, 0, 0.0
    for _ in range(5):
        rig.run(0, buffer.num_rows * 2 // 3)
        published = buffer.published(0)
        # The slots of rows not published yet still hold the priorities of the ring before.
        for row in range(max(0, len(rig.log[0]) - buffer.num_rows), published):
            seen, valid = rig.log[0][row]
            for lane, key in enumerate(seen):
                if valid[lane]:
                    expected = first_priority(key, n_step)
                    got = buffer["priority"][0, row % buffer.num_rows, lane]
                    assert abs(got - expected) < 1e-4 * max(1.0, expected)
                    num_compared += 1
                    largest = max(largest, expected)
    assert num_compared > 150
    assert largest > 5


@pytest.mark.parametrize("more_rows", range(4))
def test_at_the_stop_everything_is_published(more_rows: int) -> None:
    n_step = 4
    rig = Rig(n_step=n_step, envs_per_worker=8)
    rig.run(0, 2 * rig.buffer.num_rows + more_rows)
    written, version = len(rig.log[0]), rig.buffer.writing(0)
    rig.flush()
    assert rig.buffer.published(0) == written == version
    assert rig.telemetry.total("env_steps") == rig.env_steps(0, 0, written)
    assert rig.writers[0].unpublished_env_steps == 0
    closing = rig.buffer["observation"][0, written % rig.buffer.num_rows]
    assert closing.tolist() == rig.observation[0].tolist()
    assert not rig.buffer["valid"][0, written % rig.buffer.num_rows].any()
    last = (written - 1) % rig.buffer.num_rows
    for lane, (stream, episode, step) in enumerate(rig.log[0][-1][0]):
        valid = rig.log[0][-1][1][lane]
        terminated, truncated = ce.after(stream, episode, step + 1) if valid else (False, False)
        assert rig.buffer["terminated"][0, last, lane] == terminated
        cut = valid and not terminated and not truncated
        assert rig.buffer["truncated"][0, last, lane] == (truncated or cut)
    num_cut = 0
    for row in range(written - n_step, written):
        for lane, key in enumerate(rig.log[0][row][0]):
            if not rig.log[0][row][1][lane]:
                continue
            stop = rig.stopped_at[key[0]]
            transition = expected_transition(key, n_step, GAMMA, stop)
            # The worker computes no Q-values of the observation at which it stopped.
            best = 0.0
            if transition.bootstrap_observation != stop:
                best = max(q_value(transition.bootstrap_observation, a) for a in range(3))
            else:
                num_cut += 1
            total = transition.n_step_return + transition.bootstrap_discount * best
            expected = abs(total - q_value(key, transition.action))
            got = rig.buffer["priority"][0, row % rig.buffer.num_rows, lane]
            assert abs(got - expected) < 1e-4 * max(1.0, expected)
    assert num_cut > 0


def test_a_worker_that_never_stepped_has_nothing_to_flush() -> None:
    rig = Rig()
    rig.flush()
    assert (rig.buffer.published(0), rig.buffer.writing(0)) == (0, 0)
    assert rig.telemetry.total("env_steps") == 0
    assert rig.buffer.env_steps_until(0, 0) == 0


def test_an_observation_is_stored_once_and_in_its_own_type() -> None:
    config = Config(workers=2, envs_per_worker=4, replay_capacity=8_000, n_step=3)
    for shape, dtype in (((10, 10, 4), "|b1"), ((84, 84, 1), "|u1"), ((4,), "<f4")):
        buffer = ExperienceBuffer(config, info(shape, dtype))
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert buffer["observation"].dtype == np.dtype(dtype)
        assert size <= buffer.bytes_per_transition < size + 32
        # One row more per worker than asked for and guarded would not fit into this.
        rows = 8_000 // 8 + buffer.guard_rows
        assert buffer["observation"].shape == (2, rows, 4, *shape)


@pytest.mark.parametrize("capacity", [32, 100, 101])
def test_as_many_transitions_as_asked_for_can_be_sampled(capacity: int) -> None:
    rig = Rig(replay_capacity=capacity, n_step=2, chunk_steps=1, envs_per_worker=3)
    rig.run(0, 4 * rig.buffer.num_rows)
    rig.replay.take_in()
    until = rig.buffer.published(0)
    rows = until - rig.oldest(0)
    # The newest n rows are not complete yet.
    assert rows + 2 >= capacity / 3
    assert rig.sample_all() == rig.transitions(0, until - rows, until)
