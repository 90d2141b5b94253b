"""Evaluation plays whole episodes, one per lane; solved means held, not hit."""

import counting_env
import gymnasium
import numpy as np
import pytest

from common import evaluate
from common.acting import ActingNetwork, NetworkSpec, initial_weights, network_spec
from common.config import Config
from common.envs import inspect_env
from common.evaluate import EvaluationRecord, play_episodes
from common.types import Evaluation

CARTPOLE = network_spec(Config(hidden_size=16), inspect_env("CartPole-v1"))
COUNTING = NetworkSpec((3,), "<f4", counting_env.NUM_ACTIONS, 8, False)


def seeds(entropy: int = 0) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy)


def lane_seeds(number: int, entropy: int = 0) -> list[int]:
    return [int(seed) >> 1 for seed in seeds(entropy).generate_state(number)]


def greedy(spec: NetworkSpec, vector: np.ndarray, observation: np.ndarray) -> int:
    return int(ActingNetwork(spec, vector).q_values(observation[None]).argmax())


@pytest.mark.parametrize("number", [1, 3])
def test_returns_equal_gymnasium_stepped_by_hand(number: int) -> None:
    vector = initial_weights(CARTPOLE, 2)
    expected = []
    for seed in lane_seeds(number):
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(
                greedy(CARTPOLE, vector, observation)
            )
            total, ended = total + float(reward), terminated or truncated
        expected.append(total)
    assert play_episodes("CartPole-v1", CARTPOLE, vector, number, seeds()) == tuple(expected)
    assert all(7 < value <= 500 for value in expected)


@pytest.mark.parametrize(
    "env_id, native",
    [
        (counting_env.PLAIN, False),
        (counting_env.NEXT_STEP, True),
        (counting_env.SAME_STEP, False),
        (counting_env.DISABLED, False),
    ],
)
def test_each_lane_counts_its_first_episode_alone(env_id: str, native: bool) -> None:
    number = 12
    vector = initial_weights(COUNTING, 1)
    # Lanes of a native vector env draw from one generator, others have a seed each.
    if native:
        streams = counting_env.streams(lane_seeds(number)[0], number)
    else:
        streams = [counting_env.streams(seed, 1)[0] for seed in lane_seeds(number)]
    expected = []
    for stream in map(int, streams):
        total = 0.0
        for step in range(counting_env.length(stream, 0)):
            observation = np.array([stream, 0, step], dtype=np.float32)
            total += counting_env.reward(0, step, greedy(COUNTING, vector, observation))
        expected.append(total)
    # Ends of every kind at different times: a second episode's reward, or one too few, would show.
    assert len({counting_env.length(int(stream), 0) for stream in streams}) >= 3
    assert play_episodes(env_id, COUNTING, vector, number, seeds()) == pytest.approx(expected, abs=1e-9)


def test_fresh_seeds_give_fresh_starts_and_the_same_seeds_the_same_returns() -> None:
    vector = initial_weights(CARTPOLE, 2)
    first, again, other = (
        play_episodes("CartPole-v1", CARTPOLE, vector, 20, seeds(entropy)) for entropy in (0, 0, 1)
    )
    assert first == again and first != other
    assert len(first) == 20 and len(set(first)) > 1


def test_an_endless_episode_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MAX_EPISODE_STEPS", 5)
    returns = play_episodes("CartPole-v1", CARTPOLE, initial_weights(CARTPOLE, 2), 4, seeds())
    assert returns == (5.0,) * 4
    monkeypatch.undo()
    assert min(play_episodes("CartPole-v1", CARTPOLE, initial_weights(CARTPOLE, 2), 4, seeds())) > 5


def evaluation(*returns: float, env_steps: int = 0) -> Evaluation:
    return Evaluation(env_steps, 0, 0.0, 0.0, returns)


def test_an_evaluations_mean_and_spread() -> None:
    each = evaluation(1.0, 2.0, 6.0)
    assert each.mean == 3.0
    assert each.std == pytest.approx(np.sqrt((4 + 1 + 9) / 3))


def added(record: EvaluationRecord, *means: float) -> list[bool]:
    """Add evaluations and return after which of them a confirmation is wanted."""
    wanted = []
    for mean in means:
        record.add(evaluation(mean, env_steps=len(record.evaluations)), np.zeros(1, np.float32))
        wanted.append(record.wants_confirmation)
    return wanted


def test_solved_takes_three_in_a_row() -> None:
    record = EvaluationRecord(10.0)
    assert added(record, 10, 11, 9.99, 10, 10) == [False] * 5
    assert added(record, 10) == [True]
    assert record.solved_at is None  # not before it is confirmed
    assert record.confirm((9.0, 11.0)) and record.solved_at is record.evaluations[5]
    assert added(record, 10, 10, 10, 10) == [False] * 4  # once is enough


def test_a_failed_confirmation_asks_for_one_more_good_evaluation() -> None:
    record = EvaluationRecord(10.0)
    assert added(record, 10, 10, 10) == [False, False, True]
    assert not record.confirm((9.0, 10.9)) and record.solved_at is None
    assert not record.wants_confirmation
    assert added(record, 9) == [False] and added(record, 10, 10, 10) == [False, False, True]
    assert not record.confirm((0.0,))
    assert added(record, 10) == [True] and record.confirm((10.0,))
    assert record.solved_at is record.evaluations[-1]


def test_without_a_threshold_nothing_is_ever_solved() -> None:
    record = EvaluationRecord(None)
    assert added(record, 1e9, 1e9, 1e9, 1e9) == [False] * 4
    assert record.solved_at is None and record.best_mean == 1e9


def test_the_best_weights_are_copied_at_their_evaluation() -> None:
    record = EvaluationRecord(10.0)
    assert record.best_mean is None and record.best_weights is None
    vector = np.zeros(2, np.float32)
    best = []
    for i, mean in enumerate([-5.0, 3.0, 3.0, 2.0, 4.0, 1.0]):
        vector[:] = i
        best.append(record.add(evaluation(mean), vector))
    assert best == [True, True, False, False, True, False]
    assert record.best_mean == 4.0 and record.best_weights is not None
    assert record.best_weights.tolist() == [4.0, 4.0]
