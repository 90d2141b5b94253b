"""Scalars for TensorBoard, by env steps, written without torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.display import Rates
from common.config import ConfigError
from common.types import Alarm, Death, Evaluation

WRITE_SECONDS = 1.0
CLOCKS = ("env_steps", "updates")


def require_tensorboard() -> None:
    """Check that the extra is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import tensorboard.summary.writer.event_file_writer  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--tensorboard needs the extra 'tensorboard': "
            'pip install -c constraints.txt ".[tensorboard]"'
        ) from None


class TensorBoardObserver:
    """Writes into ``folder/tensorboard``. The package's own writer is used: torch's loads torch."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: Any = EventFileWriter(str(folder / "tensorboard"))
        self._rates = Rates()
        self._next_write = 0.0

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Write throughput and the training return, at most once a second."""
        self._rates.add(env_steps, updates, seconds)
        now = time.perf_counter()
        if now < self._next_write or seconds == 0:
            return
        self._next_write = now + WRITE_SECONDS
        scalars = {
            "throughput/env_steps_per_second": self._rates.env_steps_per_second,
            "throughput/updates_per_second": self._rates.updates_per_second,
        }
        if returns:
            scalars["returns/train_last_100_mean"] = sum(returns) / len(returns)
        self._write(env_steps, scalars)

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Write the evaluation's mean return."""
        self._write(evaluation.env_steps, {"returns/eval_mean": evaluation.mean})

    def on_health(self, sample: Mapping[str, float], seconds: float) -> None:
        """Write a sample of the network's health."""
        scalars = {f"health/{name}": value for name, value in sample.items() if name not in CLOCKS}
        self._write(int(sample["env_steps"]), scalars)

    def on_alarm(self, alarm: Alarm) -> None:
        """Write nothing: an alarm is no scalar, and what raised it is one above."""

    def on_death(self, death: Death, outcome: str) -> None:
        """Write nothing."""

    def on_final_evaluation(self, episodes: int) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _write(self, env_steps: int, scalars: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(step=env_steps, wall_time=time.time(), summary=Summary(value=values))
        self._writer.add_event(event)
