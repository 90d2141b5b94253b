"""Every choice of a run, frozen, and checked before any process starts.

A value comes from the first of these that names it: the user, the strategy's preset for the
environment, the environment's preset here, the default. What an interval counts stands in its name or
in its help; env steps are summed over all environments of all workers.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self


class ConfigError(ValueError):
    """A choice that cannot work. The message is one sentence: what was wrong, what is allowed."""


def option(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare one choice: its default, its help line and the values that are allowed.

    The command line is made from the same declaration, so that the two cannot differ.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most}
    return field(default=default, metadata={"help": help, "choices": choices, **limits})


# Values that belong to an environment whatever the strategy. The evidence for each number stands in
# docs/explanation/presets.md.
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "learning_rate": 3e-3,
        "learning_rate_end": 3e-4,
        "target_update": 25.0,
    },
    "Acrobot-v1": {
        "learning_rate_end": 1e-4,
        "target_update": 50.0,
    },
    "LunarLander-v3": {
        "learning_rate_end": 1e-4,
        "target_update": 100.0,
        "replay_capacity": 200_000,
    },
    "MinAtar/Breakout-v1": {
        "learning_rate": 5e-4,
        "learning_rate_end": 1e-4,
        "target_update": 200.0,
        "replay_capacity": 100_000,
        "warmup_env_steps": 5_000,
    },
}


# Where a learner may compute.
DEVICES = ("cpu", "auto", "cuda", "mps")

# Choices that have a use only where rows are sampled from replay, or where epsilon decays on a line.
REPLAY_OPTIONS = (
    "n_step",
    "double",
    "batch_size",
    "target_update",
    "reset_interval",
    "replay_ratio",
    "replay_capacity",
    "warmup_env_steps",
    "prioritized",
    "priority_exponent",
    "importance_exponent",
    "checkpoint_replay",
)
EPSILON_OPTIONS = ("epsilon_start", "epsilon_end", "epsilon_decay_env_steps")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The choices that every strategy shares. A strategy's own ``Config`` adds what only it has."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    all_write_weights: ClassVar[bool] = False  # workers write the one set of weights without a lock

    env_id: str = option("CartPole-v1", "Gymnasium id, also module:Env-v0 for your own.")
    seed: int = option(0, "Seed of everything: weights, environments, exploration.", at_least=0)
    workers: int = option(1, "Processes that step environments.", at_least=1)
    envs_per_worker: int = option(1, "Environments (lanes) that a worker steps as one.", at_least=1)
    steps: int = option(500_000, "Stop after this many env steps over all workers.", at_least=1)
    seconds: float | None = option(None, "Stop after this many seconds of training.", above=0)
    until_solved: bool = option(
        False, "Stop after three evaluations in a row at or above the environment's threshold."
    )
    straggler: str | None = option(None, "WORKER:MILLISECONDS, slows each vector step of that worker.")
    max_restarts: int = option(3, "Restarts of a worker that dies, at the most.", at_least=0)
    worker_timeout: float = option(
        60.0, "Seconds without a sign of life after which a worker is taken for dead.", above=0
    )

    checkpoint_seconds: float | None = option(
        60.0,
        "Seconds between two checkpoints, made at the end too; 0: at the end only; none: never.",
        at_least=0,
    )
    checkpoint_replay: bool = option(True, "Save replay, their largest part, in checkpoints.")

    audit: bool = option(True, "Count every overwritten write, exactly.")
    instruments: bool = option(True, "Measure staleness, fairness and the network's health.")
    health_every_updates: int = option(
        100, "Updates between two measurements of the network's health.", at_least=1
    )
    device: str = option(
        "cpu",
        "Where the learner computes; 'auto' is an accelerator where torch finds one.",
        choices=DEVICES,
    )

    hidden_size: int = option(128, "Width of the two hidden layers.", at_least=1)
    layer_norm: bool = option(False, "Layer normalisation before each hidden ReLU.")

    gamma: float = option(0.99, "Discount per env step.", above=0, at_most=1)
    n_step: int = option(1, "Rewards summed before the bootstrap.", at_least=1)
    double: bool = option(True, "Double Q-learning: online network selects, target evaluates.")
    batch_size: int = option(128, "Transitions per update.", at_least=1)
    learning_rate: float = option(1e-3, "Adam's step size at the start.", above=0)
    learning_rate_end: float | None = option(
        None, "Adam's step size after the decay; without it the step size stays.", above=0
    )
    learning_rate_decay_env_steps: int = option(
        100_000, "Env steps of linear decay of the step size.", at_least=1
    )
    adam_epsilon: float = option(1e-8, "Adam's epsilon.", above=0)
    max_grad_norm: float | None = option(10.0, "Clip the gradient's norm to this.", above=0)
    target_update: float = option(
        200.0,
        "Updates between hard copies to the target network; below 1 a Polyak rate per update.",
        above=0,
    )

    reset_interval: int | None = option(
        None,
        "Updates between resets of the network's heads; without it none.",
        at_least=1,
    )

    replay_ratio: float | str = option(
        0.25, "Updates per env step, held; 'free' (apex only) lets nobody wait."
    )
    replay_capacity: int = option(50_000, "Rows in the experience buffer.", at_least=2)
    warmup_env_steps: int = option(1_000, "Env steps before the first update.", at_least=0)
    prioritized: bool = option(False, "Prioritized instead of uniform replay.")
    priority_exponent: float = option(0.6, "0 is uniform, 1 is proportional.", at_least=0)
    importance_exponent: float = option(
        0.4,
        "0 leaves the bias, 1 corrects it; weights are over the largest of their batch.",
        at_least=0,
    )

    epsilon_start: float = option(1.0, "Exploration at the first step.", at_least=0, at_most=1)
    epsilon_end: float = option(0.05, "Exploration after the decay.", at_least=0, at_most=1)
    epsilon_decay_env_steps: int = option(10_000, "Env steps of linear decay.", at_least=1)

    chunk_steps: int = option(
        8, "Vector steps between an actor's publishes, and its looks for new weights.", at_least=1
    )
    evaluate_every_env_steps: int = option(5_000, "Env steps between evaluations.", at_least=1)
    evaluation_episodes: int = option(20, "Whole episodes of one evaluation.", at_least=1)
    evaluation_min_updates: int = option(
        100, "Updates between two evaluations at the least.", at_least=50
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check_value(item, getattr(self, item.name))
        _check_replay_ratio(self.replay_ratio)
        straggler = parse_straggler(self.straggler, self.workers)
        if straggler is not None and straggler[1] >= self.worker_timeout:
            raise ConfigError(
                f"straggler {self.straggler!r} sleeps longer than the worker timeout of "
                f"{self.worker_timeout:g} s, after which it is taken for dead; give a shorter delay"
            )
        if self.all_write_weights and self.device != "cpu":
            raise ConfigError(
                f"device {self.device!r} is not allowed where all workers write the same weights: "
                "lock-free writes need shared CPU memory and do not carry over to an accelerator's, so "
                "it must be cpu"
            )
        if self.target_update > 1 and self.target_update != int(self.target_update):
            raise ConfigError(
                f"target update {self.target_update:g} is between two kinds; give a whole number of "
                "updates between hard copies, or a Polyak rate below 1"
            )
        if self.replay_capacity < self.batch_size:
            raise ConfigError(
                f"replay capacity {self.replay_capacity} is smaller than a batch of "
                f"{self.batch_size}; it must be at least the batch size"
            )
        if self.steps < self.warmup_env_steps:
            raise ConfigError(
                f"steps {self.steps} are fewer than the warm-up of {self.warmup_env_steps} env "
                "steps, so nothing would be learned; give more steps or a shorter warm-up"
            )

    @classmethod
    def for_env(cls, env_id: str, **choices: Any) -> Self:
        """Return the configuration for an environment: defaults, presets, then ``choices``.

        Raises:
            ConfigError: a value is not allowed, or no such option exists.
        """
        known = {item.name for item in dataclasses.fields(cls)}
        for name in choices:
            if name not in known:
                raise ConfigError(f"there is no option {name!r}; there are {sorted(known)}")
        preset = {**PRESETS.get(env_id, {}), **cls.presets.get(env_id, {})}
        preset = {name: value for name, value in preset.items() if name in known}
        return cls(**{**preset, **choices, "env_id": env_id})

    @classmethod
    def from_saved(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration that a file holds: types are checked as well as values.

        Raises:
            ConfigError: a value is not allowed, or no such option exists.
        """
        kinds = typing.get_type_hints(cls)
        known = {item.name for item in dataclasses.fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"there is no option {name[:40]!r}")
            if not _has_type(value, kinds[name]):
                raise ConfigError(f"{spell(name)} {repr(value)[:40]} is of the wrong type")
        return cls(**values)

    @property
    def num_lanes(self) -> int:
        """Environments over all workers."""
        return self.workers * self.envs_per_worker

    @property
    def is_free(self) -> bool:
        """Whether nobody waits for a replay ratio."""
        return self.replay_ratio == "free"

    def owed_updates(self, env_steps: int, sharers: int = 1) -> float:
        """Return the updates that the replay ratio asks for by this env step.

        Args:
            env_steps: of all workers, or of one of those that share the warm-up.
            sharers: workers among which the warm-up is divided.
        """
        warmup_env_steps = self.warmup_env_steps / sharers
        if self.replay_ratio == "free":
            return math.inf if env_steps >= warmup_env_steps else 0.0
        return float(self.replay_ratio) * max(0.0, env_steps - warmup_env_steps)


def changed(name: str, default: Any) -> Any:
    """Declare that a strategy's ``Config`` has another default for a common choice."""
    (common,) = [item for item in dataclasses.fields(Config) if item.name == name]
    return field(default=default, metadata=common.metadata)


def parse_straggler(text: str | None, workers: int) -> tuple[int, float] | None:
    """Return (worker, seconds of delay per vector step), or None.

    Raises:
        ConfigError: not of the form WORKER:MILLISECONDS, or no such worker.
    """
    if text is None:
        return None
    try:
        worker_text, milliseconds_text = text.split(":")
        worker, milliseconds = int(worker_text), float(milliseconds_text)
    except ValueError:
        raise ConfigError(f"straggler {text!r} is not WORKER:MILLISECONDS, for example 0:5") from None
    if not 0 <= worker < workers or not 0 <= milliseconds < math.inf:
        raise ConfigError(
            f"straggler {text!r} names no worker and delay; worker is 0 to {workers - 1} and the "
            "milliseconds are 0 or more"
        )
    return worker, milliseconds / 1000


def spell(name: str) -> str:
    """Return a field's name as the command line spells it."""
    return name.replace("_", " ")


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a value read from JSON is of a declared type; a whole number is a float, too."""
    kinds = set(typing.get_args(kind)) or {kind}
    if float in kinds:
        kinds.add(int)
    return type(value) in kinds


def _check_value(item: dataclasses.Field[Any], value: Any) -> None:
    limits = item.metadata
    if limits["choices"] and value not in limits["choices"]:
        allowed = ", ".join(limits["choices"])
        raise ConfigError(f"{spell(item.name)} {value!r} is not allowed; give one of {allowed}")
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{spell(item.name)} {value} is not a finite number")
    if limits["at_least"] is not None and value < limits["at_least"]:
        raise ConfigError(f"{spell(item.name)} {value} must be at least {limits['at_least']}")
    if limits["above"] is not None and value <= limits["above"]:
        raise ConfigError(f"{spell(item.name)} {value} must be more than {limits['above']}")
    if limits["at_most"] is not None and value > limits["at_most"]:
        raise ConfigError(f"{spell(item.name)} {value} must be at most {limits['at_most']}")


def _check_replay_ratio(value: float | str) -> None:
    if value == "free":
        return
    if isinstance(value, str) or not value > 0:
        raise ConfigError(
            f"replay ratio {value!r} is not allowed; give a number of updates per env step above 0, "
            "or 'free'"
        )
