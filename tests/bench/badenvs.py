"""A user's own environments: one that is fine but prints, and some that misbehave in one way each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
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


class BadAtStep(SmallEnv):
    """Does what ``misbehave`` does at step 25 of its life, wherever it is played."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        return self.misbehave(*result) if self.total_steps == BAD_STEP else result

    def misbehave(self, observation: Any, reward: Any, *rest: Any) -> Any:
        raise NotImplementedError


class RaisesOnce(BadAtStep):
    """Raises in the first process that comes to it, and in no other."""

    def misbehave(self, *result: Any) -> Any:
        try:
            Path(os.environ["RAISED_ONCE"]).touch(exist_ok=False)
        except FileExistsError:
            return result
        raise RuntimeError("the step went wrong, once")


class NanReward(BadAtStep):
    def misbehave(self, observation: Any, reward: Any, *rest: Any) -> Any:
        return observation, float("nan"), *rest


class InfiniteReward(BadAtStep):
    def misbehave(self, observation: Any, reward: Any, *rest: Any) -> Any:
        return observation, float("-inf"), *rest


class InfiniteObservation(BadAtStep):
    def misbehave(self, observation: Any, reward: Any, *rest: Any) -> Any:
        return observation * np.float32(np.inf), reward, *rest


class TextReward(BadAtStep):
    def misbehave(self, observation: Any, reward: Any, *rest: Any) -> Any:
        return observation, "much", *rest


class DoubleObservation(SmallEnv):
    """Wider numbers than its space says."""

    def _observation(self) -> Any:
        return super()._observation().astype(np.float64)


class TextObservation(SmallEnv):
    def _observation(self) -> Any:
        return np.array(["left", "right", "left"])


class HugeReward(SmallEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        return observation, 3e38, *rest  # type: ignore[return-value]


class NegativeReward(SmallEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        return observation, -1000.0, *rest  # type: ignore[return-value]


class BlocksInStep(BadAtStep):
    def misbehave(self, *result: Any) -> Any:
        time.sleep(600)


class BlocksInReset(SmallEnv):
    def reset(self, **values: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(600)
        return super().reset(**values)


class ExitsProcess(BadAtStep):
    def misbehave(self, *result: Any) -> Any:
        os._exit(3)


class RaisesSystemExit(BadAtStep):
    def misbehave(self, *result: Any) -> Any:
        sys.exit("the environment has had enough")


class Segfaults(BadAtStep):
    def misbehave(self, *result: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)  # as a fault in its C code does
        time.sleep(600)


class ClosesFiles(BadAtStep):
    def misbehave(self, *result: Any) -> Any:
        os.closerange(3, 256)
        return result


class Leaks(SmallEnv):
    """Keeps two megabytes of every tenth step."""

    kept: list[Any] = []  # noqa: RUF012

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.total_steps % 10 == 0 and len(self.kept) < 100:
            self.kept.append(np.ones(2 << 20, dtype=np.uint8))
        return super().step(action)


class LeavesThreads(BadAtStep):
    """Leaves threads running that would keep the process from ending."""

    def misbehave(self, *result: Any) -> Any:
        for _ in range(3):
            threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
        return result


for _class in (
    Prints,
    Slow,
    RaisesOnce,
    NanReward,
    InfiniteReward,
    InfiniteObservation,
    TextReward,
    DoubleObservation,
    TextObservation,
    HugeReward,
    NegativeReward,
    BlocksInStep,
    BlocksInReset,
    ExitsProcess,
    RaisesSystemExit,
    Segfaults,
    ClosesFiles,
    Leaks,
    LeavesThreads,
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
