"""Environments brought back: exactly where that is possible, else cut, never joined wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import counting_env
import gymnasium
import numpy as np
import pytest

from common import env_state
from common.config import Config
from common.envs import Lanes, inspect_env
from common.experience import ExperienceBuffer, SegmentWriter
from common.probe import Probe
from common.returns import n_step_window
from common.role_state import load_parts, state_of
from common.state_files import State, read_state, write_state
from common.telemetry import Telemetry
from common.trajectories import Rollout
from common.types import LaneStep

SEEDS = np.random.SeedSequence(3)


class Forgetful(gymnasium.Env[Any, Any]):
    """Draws from a generator that nobody can see."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self._at = 0
        return np.random.default_rng().uniform(-1, 1, 2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        return np.random.default_rng().uniform(-1, 1, 2), 1.0, self._at == 7, False, {}


class Fragile(Forgetful):
    """Can be reset only so often before it gives up."""

    resets_left = 10**9

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        Fragile.resets_left -= 1
        self._at = 0
        if Fragile.resets_left == 0:
            raise RuntimeError("once too often")
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        return np.full(2, self._at / 10), 1.0, self._at == 7, False, {}


gymnasium.register("Forgetful-v0", Forgetful, disable_env_checker=True)
gymnasium.register("Fragile-v0", Fragile, disable_env_checker=True)


def lanes_of(env_id: str, number: int) -> Lanes:
    return Lanes(env_id, number, SEEDS, is_saved=True)


def through_a_file(state: State, folder: Path) -> State:
    write_state(folder / "state.npz", state)
    again = read_state((folder / "state.npz").read_bytes())
    (folder / "state.npz").unlink()
    return again


def bits(step: Any) -> list[bytes]:
    return [array.tobytes() for array in step]


@pytest.mark.parametrize(
    "env_id, number, exact",
    [
        ("CartPole-v1", 1, True),
        ("CartPole-v1", 3, True),
        ("CartPole-v1", 6, True),  # the environment's own vector version
        ("Acrobot-v1", 2, True),
        pytest.param("LunarLander-v3", 2, True, marks=pytest.mark.slow),
        # Has a generator of its own. Slow for what it imports.
        pytest.param("MinAtar/Breakout-v1", 2, None, marks=pytest.mark.slow),
    ],
)
def test_lanes_go_on_as_if_never_stopped(
    env_id: str, number: int, exact: bool | None, tmp_path: Path
) -> None:
    if env_id.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    if env_id.startswith("MinAtar"):
        pytest.importorskip("minatar")
    rng, lanes = np.random.default_rng(0), lanes_of(env_id, number)
    lanes.reset()
    finished = 0
    for part in range(6):
        for _ in range(int(rng.integers(1, 150))):
            lanes.step(rng.integers(lanes.info.num_actions, size=number))
        again = lanes_of(env_id, number)
        lost = again.load_state(through_a_file(lanes.state(), tmp_path))
        assert again.reset().tobytes() == lanes.state()["observation"].tobytes()
        if exact is None:
            assert lost.any() and part == 0
            return
        assert not lost.any()
        actions = rng.integers(lanes.info.num_actions, size=(60, number))
        for action in actions:
            assert bits(lanes.step(action)) == bits(again.step(action))
        assert again.finished_episodes == lanes.finished_episodes
        finished = len(lanes.finished_episodes)
        lanes = again  # and on with the one that was brought back
    assert finished > 3 or env_id == "Acrobot-v1"


@pytest.mark.parametrize("env_id, number", [("CartPole-v1", 1), ("CartPole-v1", 6), ("Acrobot-v1", 2)])
def test_an_end_is_brought_back_too(env_id: str, number: int, tmp_path: Path) -> None:
    lanes = lanes_of(env_id, number)
    lanes.reset()
    for _ in range(501):
        step = lanes.step(np.zeros(number, dtype=np.int64))
        if (step.terminated | step.truncated).any():
            break
    assert (step.terminated | step.truncated).any()
    again = lanes_of(env_id, number)
    assert not again.load_state(through_a_file(lanes.state(), tmp_path)).any()
    again.reset()
    for _ in range(20):
        action = np.ones(number, dtype=np.int64)
        first, second = lanes.step(action), again.step(action)
        assert bits(first) == bits(second)
        assert first.valid.all() or not first.valid.all()
    assert again.finished_episodes == lanes.finished_episodes


def test_an_episode_too_long_to_remember_is_cut_and_the_next_one_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_state, "MOST_ACTIONS", 20)
    lanes = lanes_of("Acrobot-v1", 1)  # 500 env steps an episode if nothing is done
    lanes.reset()
    nothing = np.ones(1, dtype=np.int64)
    lost = {}
    for number in range(1, 516):
        step = lanes.step(nothing)
        if number in (20, 21, 499, 515):
            again = lanes_of("Acrobot-v1", 1)
            state = through_a_file(lanes.state(), tmp_path)
            lost[number] = bool(again.load_state(state).any())
            assert sum(map(len, state["environments"]["actions"])) <= 20
    assert step.valid.all() and len(lanes.finished_episodes) == 1
    assert lost == {20: False, 21: True, 499: True, 515: False}


def test_a_changed_action_or_observation_is_noticed(tmp_path: Path) -> None:
    lanes = lanes_of("CartPole-v1", 2)
    lanes.reset()
    for _ in range(5):
        lanes.step(np.array([1, 0]))
    state = through_a_file(lanes.state(), tmp_path)
    assert not lanes_of("CartPole-v1", 2).load_state(through_a_file(state, tmp_path)).any()
    state["environments"]["actions"][1][2] = 1
    assert lanes_of("CartPole-v1", 2).load_state(through_a_file(state, tmp_path)).tolist() == [
        False,
        True,
    ]
    native = lanes_of("CartPole-v1", 5)
    native.reset()
    native.step(np.zeros(5, dtype=np.int64))
    state = through_a_file(native.state(), tmp_path)
    state["environments"]["arrays"]["state"][0, 3] += 1
    assert lanes_of("CartPole-v1", 5).load_state(state).all()  # one generator for all


def test_an_environment_that_fails_when_it_is_played_again_is_begun_anew(tmp_path: Path) -> None:
    Fragile.resets_left = 10**9
    lanes = lanes_of("Fragile-v0", 1)
    lanes.reset()
    for _ in range(3):
        lanes.step(np.zeros(1, dtype=np.int64))
    again, good = lanes_of("Fragile-v0", 1), lanes_of("Fragile-v0", 1)
    state = through_a_file(lanes.state(), tmp_path)
    assert not good.load_state(through_a_file(lanes.state(), tmp_path)).any()
    Fragile.resets_left = 2
    assert again.load_state(state).all()
    Fragile.resets_left = 10**9
    assert again.reset().tolist() == [[0.3, 0.3]]
    assert not again.step(np.zeros(1, dtype=np.int64)).valid.any()


# What cannot be brought back: hidden counters or generators, or vector environments of unknown kinds.
LOST = [
    ("Forgetful-v0", 2),
    (counting_env.PLAIN, 2),
    (counting_env.NEXT_STEP, 5),
    (counting_env.SAME_STEP, 5),
    (counting_env.DISABLED, 5),
]


def write_steps(
    lanes: Lanes, writer: SegmentWriter, observation: Any, number: int, probe: Probe
) -> Any:
    """Step with action 0 and write the rows; return the last observation."""
    action = np.zeros(lanes.num_lanes, dtype=np.int64)
    chance = np.ones(lanes.num_lanes, dtype=np.float32)
    q_values = np.zeros((lanes.num_lanes, lanes.info.num_actions), dtype=np.float32)
    for _ in range(number):
        step = lanes.step(action)
        writer.write(observation, q_values, action, chance, step, 0)
        writer.publish_when_full(probe)
        observation = step.observation
    return observation


@pytest.mark.parametrize("env_id, number", LOST)
def test_a_lost_episode_is_cut_and_joined_to_nothing(env_id: str, number: int, tmp_path: Path) -> None:
    config = Config(env_id=env_id, envs_per_worker=number, n_step=3, chunk_steps=2, batch_size=2)
    buffer = ExperienceBuffer(config, inspect_env(env_id))
    probe = Probe(Telemetry(1), 0, config)
    lanes, writer = lanes_of(env_id, number), SegmentWriter(buffer, 0, config)
    first = lanes.reset()
    shown = write_steps(lanes, writer, first, 25, probe)
    published = buffer.published(0)
    states = {
        name: through_a_file(state_of(part), tmp_path)
        for name, part in (("lanes", lanes), ("writer", writer))
    }
    lanes, writer = lanes_of(env_id, number), SegmentWriter(buffer, 0, config)
    assert load_parts({"lanes": lanes, "writer": writer}, states) == number
    assert lanes.reset().tobytes() == shown.tobytes()
    write_steps(lanes, writer, shown, 12, probe)
    rows = {name: buffer[name][0] for name in ("observation", "truncated", "terminated", "valid")}
    # The row after the last one holds what that led to and is no transition; then an episode begins.
    assert rows["observation"][25].tobytes() == shown.tobytes()
    assert not rows["valid"][25].any() and rows["valid"][26].all()
    if env_id != "Forgetful-v0":
        assert not set(rows["observation"][26][:, 0]) & set(first[:, 0])  # of another stream
        assert (rows["observation"][26][:, 2] == 0).all()
    # No window that begins before the cut reaches beyond it.
    horizon = window_lengths(buffer, config)
    for row in range(25):
        assert (row + horizon[row] <= 25)[rows["valid"][row]].all()
    assert published < 25 < buffer.published(0)
    assert not rows["truncated"][:published][horizon[:published] == 3].any()  # nothing else was changed


def window_lengths(buffer: ExperienceBuffer, config: Config) -> np.ndarray:
    """Return how many rows the window of each of the first 30 rows spans, ``[30, L]``."""
    rows = np.arange(30)[:, None] + np.arange(config.n_step)
    shape = (30 * buffer.num_lanes, config.n_step)
    reward, terminated, truncated = (
        buffer[name][0][rows].transpose(0, 2, 1).reshape(shape)
        for name in ("reward", "terminated", "truncated")
    )
    return n_step_window(reward, terminated, truncated, config.gamma)[2].reshape(30, -1)


def test_each_resumption_begins_other_episodes(tmp_path: Path) -> None:
    lanes = lanes_of(counting_env.SAME_STEP, 5)
    streams = [set(lanes.reset()[:, 0])]
    for _ in range(3):
        state = through_a_file(lanes.state(), tmp_path)
        lanes = lanes_of(counting_env.SAME_STEP, 5)
        assert lanes.load_state(state).all()
        lanes.reset()
        step = lanes.step(np.zeros(5, dtype=np.int64))
        assert not step.valid.any() and not step.reward.any()
        streams.append(set(step.observation[:, 0]))
    assert len(set.union(*streams)) == 4 * 5


def test_a_rollout_goes_on_and_is_cut(tmp_path: Path) -> None:
    def written(rollout: Rollout, number: int, first: int = 0) -> Rollout:
        for i in range(first, first + number):
            step = LaneStep(
                np.full((2, 4), i + 1, dtype=np.float32),
                np.full(2, i, dtype=np.float32),
                np.array([i == 2, False]),
                np.zeros(2, dtype=bool),
                np.array([i != 3, True]),
            )
            chance = np.full(2, 0.5, dtype=np.float32)
            rollout.write(np.full((2, 4), i, dtype=np.float32), np.full(2, i % 2), chance, step, i)
        return rollout

    info = inspect_env("CartPole-v1")
    whole = written(Rollout(8, 2, info), 6)
    part = written(Rollout(8, 2, info), 3)
    again = Rollout(8, 2, info)
    again.load_state(through_a_file(part.state(), tmp_path))
    written(again, 3, first=3)
    assert again.num_env_steps == whole.num_env_steps == 11
    last = np.full((2, 4), 6, dtype=np.float32)
    for one, other in zip(whole.take(last), again.take(last), strict=True):
        assert one.tobytes() == other.tobytes()
    again.cut(np.ones(2, dtype=bool))  # nothing is in it any more
    written(again, 3).cut(np.array([True, True]))
    assert again.take(last).truncated.tolist() == [[False, False], [False, False], [False, True]]
