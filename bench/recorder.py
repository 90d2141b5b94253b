"""Hears a run: writes its events and passes everything on to displays."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.summary import finite
from common.distributions import as_event
from common.evaluate import Thinner
from common.events import EventLog, Observer
from common.saved_run import SavedRun
from common.supervisor import private_mib
from common.telemetry import HISTOGRAM_UNITS
from common.types import Alarm, Death, Evaluation, RunResult

PROGRESS_SECONDS = 1.0


class Recorder:
    """Writes ``events.jsonl``, samples the supervisor's memory and passes everything on.

    Args:
        log: the event log.
        observers: who else listens.
    """

    def __init__(self, log: EventLog, observers: Sequence[Observer]) -> None:
        self._log, self._observers = log, list(observers)
        self._next_progress = 0.0
        self._counters: tuple[int, int, float] = (0, 0, 0.0)
        self._evaluations: list[Evaluation] = []
        self._thinner = Thinner()
        self.has_heard = False
        self.rss_mib = 0.0

    def going_on_from(self, resume: SavedRun | None) -> None:
        """Write a row where a run goes on that was stopped."""
        if resume is not None:
            names = ("env_steps", "updates", "training_seconds")
            env_steps, updates, seconds = (resume.contents[name] for name in names)
            self._write("resume", env_steps, updates, seconds)

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Write a row at most once a second."""
        self.has_heard = True
        self._counters = (env_steps, updates, seconds)
        now = time.perf_counter()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            self.rss_mib = max(self.rss_mib, private_mib(os.getpid()))
            mean = float(np.mean(returns)) if returns else None
            self._write("progress", env_steps, updates, seconds, train_return_mean=mean)
        self._tell("on_tick", env_steps, updates, seconds, returns)

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Write a row per evaluation."""
        self._thinner.append(self._evaluations, evaluation)
        clock = (evaluation.env_steps, evaluation.updates, evaluation.training_seconds)
        self._write("evaluation", *clock, mean=evaluation.mean, std=evaluation.std, best=best)
        self._tell("on_evaluation", evaluation, best)

    def on_health(self, sample: Mapping[str, float], seconds: float) -> None:
        """Write a row per sample."""
        self._log.write("health", **finite({**sample, "seconds": seconds}))
        self._tell("on_health", sample, seconds)

    def on_alarm(self, alarm: Alarm) -> None:
        """Write a row per alarm."""
        self._log.write("alarm", **finite(dataclasses.asdict(alarm)))
        self._tell("on_alarm", alarm)

    def on_death(self, death: Death, outcome: str) -> None:
        """Write a row per death."""
        self._log.write("death", **dataclasses.asdict(death), outcome=outcome)
        self._tell("on_death", death, outcome)

    def on_final_evaluation(self, episodes: int) -> None:
        """Pass it on: it can take as long as the training did."""
        self._tell("on_final_evaluation", episodes)

    def _tell(self, name: str, *values: Any) -> None:
        """Pass something on. Who fails (a closed terminal, a full disk) is left out from then on."""
        for observer in tuple(self._observers):
            try:
                getattr(observer, name)(*values)
            except Exception as error:
                self._observers.remove(observer)
                with contextlib.suppress(OSError):
                    text = f"{type(observer).__name__} failed and is left out from now on: {error}"
                    print(text, file=sys.stderr)

    def write_histograms(self, result: RunResult) -> None:
        """Write how lag, staleness and age were distributed over the whole run."""
        for name, places in result.histograms.items():
            event = as_event(places)
            if event["counts"]:
                self._log.write(
                    "histogram",
                    name=name,
                    unit=HISTOGRAM_UNITS[name],
                    env_steps=result.env_steps,
                    seconds=result.training_seconds,
                    **event,
                )

    def _write(
        self, kind: str, env_steps: int, updates: int, seconds: float, **values: float | None
    ) -> None:
        row = {"env_steps": env_steps, "updates": updates, "seconds": seconds, **values}
        self._log.write(kind, **finite(row))

    def failed_result(self, error: str) -> RunResult:
        """Return the result of a run that ended without one: what was heard until then."""
        env_steps, updates, seconds = self._counters
        nothing = np.zeros(0, dtype=np.float32)
        means = [evaluation.mean for evaluation in self._evaluations]
        return RunResult(
            status="failed",
            error=error,
            env_steps=env_steps,
            updates=updates,
            training_seconds=seconds,
            steady_seconds=None,
            steady_env_steps=0,
            steady_updates=0,
            evaluations=self._evaluations,
            final_weights=nothing,
            best_weights=nothing,
            best_mean=max(means, default=None),
            solved_at=None,
            final_evaluation=None,
            train_returns=[],
            shared_mib=0.0,
            in_flight_at_end=0,
            roles=[],
        )
