from __future__ import annotations

from itertools import pairwise
from typing import Any

import counting_env as ce
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import common.envs
from common.config import Config, ConfigError
from common.envs import Lanes, OneByOne, inspect_env, make_lanes, make_next_step_env
from common.processes import random_stream

NUM_STEPS = 120
ROUTES = {
    "plain": ce.PLAIN,
    "next step": ce.NEXT_STEP,
    "same step": ce.SAME_STEP,
    "disabled": ce.DISABLED,
    "with module": "counting_env:Counting-v0",
    "native with module": "counting_env:CountingNextStep-v0",
}


def brute_force_rows(stream: int, actions: np.ndarray) -> list[tuple[Any, ...]]:
    """One plain env by hand: (observation, reward, terminated, truncated, valid) after each step."""
    env = ce.CountingEnv()
    env.stream = stream
    env.reset()
    rows, ended = [], False
    for action in actions:
        if ended:
            rows.append((env.reset()[0].tolist(), 0.0, False, False, False))
            ended = False
        else:
            observation, reward, terminated, truncated, _ = env.step(np.int64(action + 5))
            rows.append((observation.tolist(), reward, terminated, truncated, True))
            ended = terminated or truncated
    return rows


def brute_force_episodes(stream: int, actions: np.ndarray) -> list[tuple[float, int]]:
    finished, total, steps = [], 0.0, 0
    for _, reward, terminated, truncated, valid in brute_force_rows(stream, actions):
        total, steps = total + reward, steps + valid
        if terminated or truncated:
            finished.append((total, steps))
            total, steps = 0.0, 0
    return finished


@pytest.mark.parametrize("num_lanes", [1, 3, 4, 9])
@pytest.mark.parametrize("route", ROUTES)
def test_lanes_give_the_rows_of_plain_environments(route: str, num_lanes: int) -> None:
    lanes = Lanes(ROUTES[route], num_lanes, np.random.SeedSequence(4))
    first = lanes.reset()
    streams = first[:, 0].astype(int).tolist()
    assert len(set(streams)) == num_lanes
    assert first[:, 1:].tolist() == [[0, 0]] * num_lanes
    actions = np.random.default_rng(0).integers(ce.NUM_ACTIONS, size=(NUM_STEPS, num_lanes))

    # Kept without copying, as a worker's loop keeps the row that it acts on.
    steps = [lanes.step(action) for action in actions]

    for lane, stream in enumerate(streams):
        got = [tuple(np.asarray(part[lane]).tolist() for part in step) for step in steps]
        expected = [
            (observation, float(np.float32(reward)), *flags)
            for observation, reward, *flags in brute_force_rows(stream, actions[:, lane])
        ]
        assert got == expected
    assert first[:, 1:].tolist() == [[0, 0]] * num_lanes  # not overwritten either
    expected_episodes = [
        episode
        for lane, stream in enumerate(streams)
        for episode in brute_force_episodes(stream, actions[:, lane])
    ]
    assert sorted(lanes.finished_episodes) == sorted(expected_episodes)
    assert {length for _, length in lanes.finished_episodes} == set(ce.LENGTHS)
    lanes.close()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("num_lanes", [1, 5])
def test_no_row_joins_two_episodes(route: str, num_lanes: int) -> None:
    lanes = Lanes(ROUTES[route], num_lanes, np.random.SeedSequence(1))
    observation = lanes.reset()
    ends = {"terminated": 0, "truncated": 0, "both": 0}
    previous_ended = np.zeros(num_lanes, dtype=bool)
    for _ in range(NUM_STEPS):
        step = lanes.step(ce.scripted_action(observation))
        for lane in range(num_lanes):
            stream, episode, at = (int(x) for x in observation[lane])
            next_row = tuple(int(x) for x in step.observation[lane])
            if previous_ended[lane]:
                assert not step.valid[lane]
                assert at == ce.length(stream, episode)  # the row holds its own final observation
                assert next_row == (stream, episode + 1, 0)
                assert (step.reward[lane], step.terminated[lane], step.truncated[lane]) == (0, 0, 0)
            else:
                assert step.valid[lane]
                assert next_row == (stream, episode, at + 1)
                flags = (step.terminated[lane], step.truncated[lane])
                assert flags == ce.after(stream, episode, at + 1)
            if step.terminated[lane] or step.truncated[lane]:
                ends[ce.ending(stream, episode)] += 1
        previous_ended = step.terminated | step.truncated
        observation = step.observation
    assert min(ends.values()) > 3


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_helper_environment_follows_its_own_autoreset_mode(mode: AutoresetMode) -> None:
    env = ce.CountingVectorEnv(2, mode)
    ours = gymnasium.vector.SyncVectorEnv([ce.CountingEnv] * 2, autoreset_mode=mode)
    seeds = [11, 12]
    ours.reset(seed=seeds)
    env.reset(seed=0)
    for part, seed in zip(env.envs, seeds, strict=True):
        part.stream = int(ce.streams(seed, 1)[0])
    num_ends = 0
    for _ in range(40):
        got, expected = env.step(np.array([6, 7])), ours.step(np.array([6, 7]))
        ended = expected[2] | expected[3]
        num_ends += int(ended.sum())
        for a, b in zip(got[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        if mode == AutoresetMode.SAME_STEP and ended.any():
            for lane in np.flatnonzero(ended):
                np.testing.assert_array_equal(got[4]["final_obs"][lane], expected[4]["final_obs"][lane])
        if mode == AutoresetMode.DISABLED and ended.any():
            env.reset(options={"reset_mask": ended.copy()})
            ours.reset(options={"reset_mask": ended.copy()})
    assert num_ends > 10


def test_the_environments_own_vector_version_is_used_from_four_lanes() -> None:
    many = make_next_step_env(ce.NEXT_STEP, common.envs.NATIVE_FROM_LANES)
    few = make_next_step_env(ce.NEXT_STEP, common.envs.NATIVE_FROM_LANES - 1)
    assert isinstance(many.unwrapped, ce.CountingVectorEnv)
    assert isinstance(few, SyncVectorEnv)
    assert few.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    for env_id in (ce.SAME_STEP, ce.DISABLED):
        adapted = make_next_step_env(env_id, 4)
        assert isinstance(adapted, OneByOne)
        assert adapted.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    only = make_next_step_env(ce.VECTOR_ONLY, 1)
    assert isinstance(only.unwrapped, ce.CountingVectorEnv)


def test_reset_begins_anew() -> None:
    for env_id in (ce.PLAIN, ce.NEXT_STEP, ce.SAME_STEP, ce.DISABLED):
        lanes = Lanes(env_id, 4, np.random.SeedSequence(2))
        first = lanes.reset().copy()
        actions = np.zeros((7, 4), dtype=np.int64)
        before = [step.observation.tolist() for step in map(lanes.step, actions)]
        again = lanes.reset()
        assert again.tolist() == first.tolist()
        lanes.finished_episodes.clear()
        assert [step.observation.tolist() for step in map(lanes.step, actions)] == before
        by_hand = [
            episode
            for stream in first[:, 0].astype(int)
            for episode in brute_force_episodes(stream, actions[:, 0])
        ]
        assert sorted(lanes.finished_episodes) == sorted(by_hand)


@pytest.mark.parametrize("num_lanes", [1, 6])
def test_cartpole_lanes_end_and_begin_like_single_environments(num_lanes: int) -> None:
    lanes = Lanes("CartPole-v1", num_lanes, np.random.SeedSequence(3))
    observation = lanes.reset().copy()
    lengths = np.zeros(num_lanes, dtype=int)
    by_hand = []
    ended = np.zeros(num_lanes, dtype=bool)
    reference = gymnasium.make("CartPole-v1").unwrapped
    reference.reset()
    for _ in range(150):
        action = np.random.default_rng(int(lengths.sum())).integers(2, size=num_lanes)
        step = lanes.step(action)
        assert (step.valid == ~ended).all()
        for lane in np.flatnonzero(step.valid):
            reference.state = observation[lane].astype(np.float64)
            reference.steps_beyond_terminated = None
            expected, _, terminated, _, _ = reference.step(int(action[lane]))
            np.testing.assert_allclose(step.observation[lane], expected, atol=1e-5)
            assert step.terminated[lane] == terminated
        fresh = step.observation[~step.valid]
        assert (np.abs(fresh) <= 0.05).all()
        lengths += step.valid
        ended = step.terminated | step.truncated
        by_hand += [(float(n), int(n)) for n in lengths[ended]]
        lengths[ended] = 0
        observation = step.observation.copy()
    assert len(by_hand) >= 3
    assert sorted(lanes.finished_episodes) == sorted(by_hand)


def test_cartpole_is_truncated_at_its_time_limit() -> None:
    for num_lanes in (1, 4):
        lanes = Lanes("CartPole-v1", num_lanes, np.random.SeedSequence(0))
        observation = lanes.reset()
        truncated_at = set()
        for t in range(1, 502):
            # A good hand-written controller keeps the pole up.
            action = (observation @ np.array([0.1, 0.5, 5.0, 1.0]) > 0).astype(np.int64)
            step = lanes.step(action)
            assert not step.terminated.any()
            if step.truncated.any():
                truncated_at.add(t)
            observation = step.observation
        assert truncated_at == {500}
        assert lanes.finished_episodes == [(500.0, 500)] * num_lanes


def test_an_environment_is_described() -> None:
    info = inspect_env(ce.PLAIN)
    assert (info.observation_shape, info.observation_dtype) == ((3,), "<f4")
    assert (info.num_actions, info.first_action) == (3, 5)
    assert inspect_env("CartPole-v1").reward_threshold == 475.0
    assert inspect_env("Acrobot-v1").reward_threshold == -100.0


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPoel-v1", ["unknown", "CartPoel-v1", "CartPole-v1"]),
        ("Pendulum-v1", ["Pendulum-v1", "Discrete"]),
        ("CartPole-v7", ["CartPole-v7"]),
        ("no_such_module:Thing-v0", ["no_such_module:Thing-v0"]),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(env_id: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        inspect_env(env_id)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words)


class OffScript(ce.CountingEnv):
    """Breaks one promise at its third step."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if (self.episode, self.at) == (0, 1):
            observation = observation * np.float32("nan" if self.fault == "observation" else 1)
            reward = float("inf") if self.fault == "reward" else reward
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("fault", ["observation", "reward", "none"])
def test_numbers_that_are_not_finite_are_refused(fault: str) -> None:
    env_id = f"OffScript{fault.title()}-v0"
    gymnasium.register(env_id, OffScript, kwargs={"fault": fault}, disable_env_checker=True)
    lanes = Lanes(env_id, 2, np.random.SeedSequence(0))
    lanes.reset()
    if fault == "none":
        assert lanes.step(np.array([0, 0])).valid.all()
        return
    with pytest.raises(ValueError, match="not finite") as error:
        lanes.step(np.array([0, 0]))
    assert env_id in str(error.value)


def test_the_straggler_alone_is_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(common.envs.time, "sleep", slept.append)
    config = Config(env_id=ce.PLAIN, workers=2, straggler="1:250")
    for worker in range(2):
        lanes = make_lanes(config, worker, np.random.SeedSequence(worker))
        lanes.reset()
        for _ in range(3):
            lanes.step(np.array([0]))
        assert slept == ([] if worker == 0 else [0.25] * 3)
    assert lanes.num_lanes == 1


@pytest.mark.parametrize("env_id", ["CartPole-v1", ce.PLAIN, ce.NEXT_STEP, ce.SAME_STEP])
@pytest.mark.parametrize("num_lanes", [2, 8])
def test_no_two_workers_or_lanes_share_a_random_stream(env_id: str, num_lanes: int) -> None:
    def run(seed: int) -> tuple[list[Any], list[Any]]:
        firsts, actions = [], []
        for worker in range(8):
            lanes = Lanes(env_id, num_lanes, random_stream(seed, "environment", worker))
            firsts += lanes.reset().tolist()
            generator = np.random.default_rng(random_stream(seed, "exploration", worker))
            actions += generator.integers(2, size=(num_lanes, 64)).tolist()
            lanes.close()
        return firsts, actions

    firsts, actions = run(seed=0)
    assert all(a != b for a, b in pairwise(sorted(firsts)))
    assert all(a != b for a, b in pairwise(sorted(actions)))
    assert run(seed=0) == (firsts, actions)
    other_firsts, other_actions = run(seed=1)
    assert not any(first in firsts for first in other_firsts)
    assert not any(action in actions for action in other_actions)


def test_streams_of_different_purposes_differ() -> None:
    purposes = ("weights", "environment", "exploration", "replay", "evaluation")
    states = {
        tuple(random_stream(seed, purpose, worker, number).generate_state(4))
        for seed in (0, 1)
        for purpose in purposes
        for worker in range(8)
        for number in range(3)
    }
    assert len(states) == 2 * 5 * 8 * 3
    again = random_stream(1, "replay", 2, 1).generate_state(4)
    assert tuple(again) in states


def test_an_id_without_a_version_is_refused_and_the_version_named() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1"):
        inspect_env("CartPole")
    assert inspect_env("CartPole-v1").num_actions == 2
