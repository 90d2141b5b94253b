"""A user's own environments: one that is fine but prints, and some that misbehave in one way each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np

EPISODE_STEPS = 10
BAD_STEP = 25


class SmallEnv(gymnasium.Env[Any, Any]):
    """Episodes of ten steps; action 1 pays 1."""

    observation_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0
        self.total_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self.total_steps += 1
        ended = self._steps >= EPISODE_STEPS
        return self._observation(), float(action), ended, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Prints(SmallEnv):
    """Writes to standard output, in Python and below it."""

    def __init__(self) -> None:
        super().__init__()
        print("made an environment")

    def reset(self, **values: Any) -> tuple[Any, dict[str, Any]]:
        print("reset an environment")
        os.write(1, b"reset an environment, said in C\n")
        return super().reset(**values)


class Slow(SmallEnv):
    """Every step takes five milliseconds, without a use for the processor."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.005)
        return super().step(action)


class ResetRaises(SmallEnv):
    def reset(self, **values: Any) -> tuple[Any, dict[str, Any]]:
        raise RuntimeError("the reset went wrong")


class StepRaises(SmallEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.total_steps == BAD_STEP:
            raise RuntimeError("the step went wrong")
        return super().step(action)


class NanObservation(SmallEnv):
    def _observation(self) -> Any:
        return super()._observation() * np.float32(np.nan)


class WrongShape(SmallEnv):
    def _observation(self) -> Any:
        return np.zeros(4, dtype=np.float32)


def is_evaluated() -> bool:
    return multiprocessing.current_process().name.startswith("evaluator")


class EvaluationRaises(SmallEnv):
    """Only fails where evaluations are played."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if is_evaluated():
            raise RuntimeError("the evaluation's step went wrong")
        return super().step(action)


class EvaluationWaits(SmallEnv):
    """Blocks where evaluations are played."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if is_evaluated():
            print("waiting", file=sys.stderr, flush=True)
            time.sleep(60)
        return super().step(action)


class ConstructorRaises(SmallEnv):
    def __init__(self) -> None:
        raise ValueError("the constructor went wrong")


class ConstructorExits(SmallEnv):
    def __init__(self) -> None:
        raise SystemExit(7)


class ConstructorWaits(SmallEnv):
    """Gives a test the time to interrupt before anything is started."""

    def __init__(self) -> None:
        print("waiting", file=sys.stderr, flush=True)
        time.sleep(60)


class DictObservation(SmallEnv):
    observation_space: Any = gymnasium.spaces.Dict(
        {"position": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)}
    )


for _class in (
    Prints,
    Slow,
    ResetRaises,
    StepRaises,
    NanObservation,
    WrongShape,
    EvaluationRaises,
    EvaluationWaits,
    ConstructorRaises,
    ConstructorExits,
    ConstructorWaits,
    DictObservation,
):
    gymnasium.register(f"{_class.__name__}-v0", entry_point=_class, disable_env_checker=True)
