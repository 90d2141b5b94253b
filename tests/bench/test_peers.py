"""How a configuration of ``single`` is told to stable-baselines3. No package is needed for that."""

from __future__ import annotations

from typing import Any

import pytest

from bench.peers import UNUSED, as_peer, peer_config, settings
from common.config import ConfigError
from common.policy import linear_decay
from strategies.single import Config


@pytest.mark.parametrize("ratio", [0.25, 1 / 3, 0.3, 1.0, 2.0, 1.5])
def test_the_replay_ratio_comes_out_even(ratio: float) -> None:
    found = settings(Config.for_env("CartPole-v1", replay_ratio=ratio), 50_000)
    assert found["gradient_steps"] / found["train_freq"] == pytest.approx(ratio)
    assert all(type(found[name]) is int for name in ("gradient_steps", "train_freq"))
    # Env steps between target copies, times updates per env step, are updates between them.
    assert found["target_update_interval"] * ratio == pytest.approx(25, abs=ratio)


@pytest.mark.parametrize("env_steps", [50_000, 10**12])
def test_schedules_are_those_of_single_whatever_the_budget(env_steps: int) -> None:
    config = Config.for_env("CartPole-v1", epsilon_decay_env_steps=4_000)
    found = settings(config, env_steps)
    assert found["exploration_fraction"] * env_steps == pytest.approx(4_000)
    for done in (0, 10_000, 20_000, 45_000):
        expected = linear_decay(done, 3e-3, 3e-4, config.learning_rate_decay_env_steps)
        assert found["learning_rate"](1 - done / env_steps) == pytest.approx(expected, rel=0.01)
    assert found["policy_kwargs"]["net_arch"] == [128, 128] and found["batch_size"] == 128
    assert (found["n_steps"], found["buffer_size"], found["learning_starts"]) == (10, 50_000, 1_000)


def test_a_polyak_rate_is_one() -> None:
    found = settings(Config.for_env("CartPole-v1", target_update=0.01), 50_000)
    assert (found["tau"], found["target_update_interval"]) == (0.01, 4)
    hard = settings(Config.for_env("CartPole-v1"), 50_000)
    assert hard["tau"] == 1.0 and hard["target_update_interval"] == 100


@pytest.mark.parametrize("name", UNUSED)
def test_what_it_has_no_counterpart_for_is_refused(name: str) -> None:
    choices: dict[str, Any] = {"env_id": "CartPole-v1", name: 1}
    with pytest.raises(ConfigError, match="has no use in sb3-dqn"):
        peer_config(choices)
    assert peer_config({"env_id": "CartPole-v1"}) == Config.for_env("CartPole-v1")


def test_images_and_other_first_actions_are_refused_in_one_sentence() -> None:
    pytest.importorskip("minatar")
    with pytest.raises(ConfigError, match="observations that are vectors") as caught:
        peer_config({"env_id": "MinAtar/Breakout-v1"})
    assert "(10, 10, 4)" in str(caught.value)


def test_what_was_not_measured_is_null() -> None:
    ours: dict[str, Any] = {
        "strategy": "single",
        "audit": {"enabled": True, "lost_fraction": 0.0, "auditable": True, "reason": None},
        "replay_ratio": {"achieved": 1.0, "target_copies": 0},
        "experience": {"jain_collected": 1.0, "workers": []},
        "health": {"q_mean": 1.0, "alarms": [1]},
        "processes": {"shared_mib": 3.0, "supervisor_rss_mib": 40.0, "peak_rss_mib": {"a": 1.0}},
    }
    theirs = as_peer(ours)
    assert theirs["audit"]["lost_fraction"] is None and theirs["audit"]["auditable"] is False
    assert theirs["health"] == {"q_mean": None, "alarms": []}
    assert theirs["processes"]["supervisor_rss_mib"] is None
    assert theirs["replay_ratio"] == {"achieved": 1.0, "target_copies": None}
    assert {name: list(theirs[name]) for name in ours if name != "strategy"} == {
        name: list(ours[name]) for name in ours if name != "strategy"
    }
