"""Every choice: where its value comes from, and what is refused in which words."""

import dataclasses
import math
from typing import ClassVar

import pytest

from common import config as config_module
from common.config import Config, ConfigError, changed, option, parse_straggler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy(Config):
    presets: ClassVar = {"Env-v0": {"batch_size": 33, "hidden_size": 34}}

    n_step: int = changed("n_step", 5)
    chunk_steps: int = changed("chunk_steps", 6)
    kind: str = option("a", "One of two.", choices=("a", "b"))


@pytest.fixture
def env_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"batch_size": 22, "hidden_size": 23, "n_step": 4, "gamma": 0.5, "unknown": 1}
    monkeypatch.setitem(config_module.PRESETS, "Env-v0", values)


@pytest.mark.usefixtures("env_preset")
def test_a_value_comes_from_the_first_that_names_it() -> None:
    config = Strategy.for_env("Env-v0", batch_size=44)
    assert config.batch_size == 44  # the user
    assert config.hidden_size == 34  # the strategy's preset
    assert config.n_step == 4 and config.gamma == 0.5  # the environment's preset
    assert config.chunk_steps == 6  # the strategy's default
    assert config.learning_rate == Config().learning_rate  # the default
    assert config.env_id == "Env-v0"
    elsewhere = Strategy.for_env("Elsewhere-v0")
    assert (elsewhere.n_step, elsewhere.batch_size, elsewhere.gamma) == (5, 128, 0.99)
    assert Config.for_env("Env-v0").hidden_size == 23  # another strategy's preset is not used


def test_a_config_is_frozen_and_equal_by_value() -> None:
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    assert config.seed == 0 and config == Config() and config != Config(seed=1)
    assert dataclasses.replace(config, seed=1).seed == 1
    with pytest.raises(ConfigError):
        dataclasses.replace(config, seed=-1)  # a changed copy is checked too


def test_an_unknown_option_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.for_env("CartPole-v1", batch=3)
    assert "'batch'" in str(caught.value) and "batch_size" in str(caught.value)


# Written by hand: (option, a bad value, the limit that the message must state).
LIMITS = [
    ("seed", -1, "at least 0"),
    ("workers", 0, "at least 1"),
    ("envs_per_worker", 0, "at least 1"),
    ("steps", 0, "at least 1"),
    ("seconds", 0.0, "more than 0"),
    ("hidden_size", 0, "at least 1"),
    ("gamma", 0.0, "more than 0"),
    ("gamma", 1.01, "at most 1"),
    ("n_step", 0, "at least 1"),
    ("batch_size", 0, "at least 1"),
    ("learning_rate", 0.0, "more than 0"),
    ("learning_rate", -1e-3, "more than 0"),
    ("learning_rate_end", 0.0, "more than 0"),
    ("learning_rate_decay_env_steps", 0, "at least 1"),
    ("adam_epsilon", 0.0, "more than 0"),
    ("max_grad_norm", 0.0, "more than 0"),
    ("target_update", 0.0, "more than 0"),
    ("replay_capacity", 1, "at least 2"),
    ("warmup_env_steps", -1, "at least 0"),
    ("priority_exponent", -0.1, "at least 0"),
    ("importance_exponent", -0.1, "at least 0"),
    ("epsilon_start", -0.1, "at least 0"),
    ("epsilon_start", 1.1, "at most 1"),
    ("epsilon_end", 1.5, "at most 1"),
    ("epsilon_end", -0.5, "at least 0"),
    ("epsilon_decay_env_steps", 0, "at least 1"),
    ("chunk_steps", 0, "at least 1"),
    ("evaluate_every_env_steps", 0, "at least 1"),
    ("evaluation_episodes", 0, "at least 1"),
    ("evaluation_min_updates", 49, "at least 50"),
    ("health_every_updates", 0, "at least 1"),
    ("reset_interval", 0, "at least 1"),
    ("checkpoint_seconds", -1, "at least 0"),
    ("max_restarts", -1, "at least 0"),
    ("worker_timeout", 0.0, "more than 0"),
]


@pytest.mark.parametrize("name, value, limit", LIMITS)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: float, limit: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    message = str(caught.value)
    assert f"{name.replace('_', ' ')} {value} must be {limit}" == message
    for side in ("at_least", "above", "at_most"):
        allowed = Config.__dataclass_fields__[name].metadata[side]
        if side != "above" and allowed is not None:
            assert getattr(Config(**{"steps": 10**6, name: allowed, **_needs(name)}), name) == allowed


def _needs(name: str) -> dict[str, int]:
    """What else must be chosen so that an option can stand at its limit."""
    return {"replay_capacity": {"batch_size": 2}, "steps": {"warmup_env_steps": 0}}.get(name, {})


def test_every_number_has_a_limit_and_every_limit_a_test() -> None:
    limited = set()
    for item in dataclasses.fields(Config):
        numeric = item.type in ("int", "float", "float | None", "int | None")
        bounds = [item.metadata[side] for side in ("at_least", "above", "at_most")]
        assert not numeric or any(bound is not None for bound in bounds), item.name
        limited |= {item.name} if numeric else set()
    assert limited == {name for name, _, _ in LIMITS}


@pytest.mark.parametrize("name", ["learning_rate", "gamma", "seconds", "target_update", "replay_ratio"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert name.replace("_", " ") in str(caught.value) and str(value) in str(caught.value)


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.25, "fast", "0.25", ""])
def test_a_replay_ratio_is_a_positive_number_or_free(value: float | str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(replay_ratio=value)
    assert repr(value) in str(caught.value) and "above 0, or 'free'" in str(caught.value)


def test_free_and_held_ratios_are_told_apart() -> None:
    assert Config(replay_ratio="free").is_free and not Config(replay_ratio=4).is_free
    assert Config().replay_ratio == 0.25 and not Config().is_free


def test_owed_updates_count_from_the_end_of_the_warm_up() -> None:
    config = Config(replay_ratio=0.5, warmup_env_steps=100)
    assert [config.owed_updates(steps) for steps in (0, 99, 100, 101, 300)] == [0, 0, 0, 0.5, 100]
    free = Config(replay_ratio="free", warmup_env_steps=100)
    assert [free.owed_updates(steps) for steps in (0, 99, 100)] == [0, 0, math.inf]


def test_choices_are_checked() -> None:
    assert Strategy(kind="b").kind == "b"
    with pytest.raises(ConfigError) as caught:
        Strategy(kind="c")
    assert "kind 'c'" in str(caught.value) and "a, b" in str(caught.value)


def test_replay_must_hold_a_batch() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(replay_capacity=127, batch_size=128)
    with pytest.raises(ConfigError, match="whole number of updates between hard copies, or a Polyak"):
        Config(target_update=1.5)
    assert [Config(target_update=value).target_update for value in (0.5, 1.0, 2.0)] == [0.5, 1.0, 2.0]
    assert "127" in str(caught.value) and "128" in str(caught.value)
    assert Config(replay_capacity=128, batch_size=128).replay_capacity == 128


def test_steps_must_outlast_the_warm_up() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(steps=999, warmup_env_steps=1_000)
    assert "999" in str(caught.value) and "1000" in str(caught.value)
    assert Config(steps=1_000, warmup_env_steps=1_000).steps == 1_000


@pytest.mark.parametrize(
    "text, expected",
    [("0:5", (0, 0.005)), ("2:0.5", (2, 0.0005)), ("1:0", (1, 0.0)), (None, None)],
)
def test_a_straggler_is_a_worker_and_a_delay(text: str | None, expected: object) -> None:
    assert parse_straggler(text, 3) == expected
    assert Config(workers=3, straggler=text).straggler == text


def test_a_straggler_may_not_sleep_longer_than_it_is_waited_for() -> None:
    with pytest.raises(ConfigError, match=r"straggler '0:2000' sleeps longer than .* 2 s"):
        Config(straggler="0:2000", worker_timeout=2.0)
    assert Config(straggler="0:1999", worker_timeout=2.0).worker_timeout == 2.0


@pytest.mark.parametrize(
    "text", ["", "1", "a:5", "1:b", "1:2:3", "3:5", "-1:5", "0:-1", "0:nan", "0:inf"]
)
def test_a_bad_straggler_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(workers=3, straggler=text)
    assert repr(text) in str(caught.value)
    assert "WORKER:MILLISECONDS" in str(caught.value) or "0 to 2" in str(caught.value)


def test_a_changed_default_keeps_the_limits_and_the_help() -> None:
    own, common = Strategy.__dataclass_fields__["n_step"], Config.__dataclass_fields__["n_step"]
    assert own.default == 5 and own.metadata == common.metadata and common.default == 1
    with pytest.raises(ConfigError, match="n step 0 must be at least 1"):
        Strategy(n_step=0)
    for item in dataclasses.fields(Strategy):
        assert item.metadata["help"].endswith("."), item.name
