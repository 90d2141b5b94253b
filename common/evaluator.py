"""Evaluations have a process of their own, since an environment may crash, exit or block in one.

The process is started with the first evaluation, loads no torch, and plays while everybody is held.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

from common.acting import NetworkSpec
from common.children import LAST_WORDS_SECONDS, START_SECONDS, how_it_ended
from common.config import Config
from common.evaluate import Played, play_and_compare
from common.processes import has_ended, interrupts_blocked, prepare_child, short
from common.shared_memory import SharedArrays
from common.types import FloatArray

LISTEN_SECONDS = 0.02


class EvaluationError(Exception):
    """An evaluation failed as often as it may; the message says why."""


class Evaluator:
    """Plays whole greedy episodes of given weights.

    Args:
        config: choices.
        spec: the network's shape.
        estimates: ``"Q"``, or ``"V"`` where the value head is the estimate.
        died: called with the reason and what follows when the process died.
    """

    def __init__(
        self, config: Config, spec: NetworkSpec, estimates: str, died: Callable[[str, str], None]
    ) -> None:
        self._config, self._spec, self._estimates, self._died = config, spec, estimates, died
        # Written by the playing process after each step, read here.
        self._beat = SharedArrays({"heartbeat_ns": ((1,), np.int64)})
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self.restarts = 0

    @property
    def pid(self) -> int:
        """Process id; 0 if there is no process."""
        return 0 if self._process is None else self._process.pid or 0

    def play(
        self,
        vector: FloatArray,
        episodes: int,
        seeds: np.random.SeedSequence,
        may_go_on: Callable[[], bool],
    ) -> Played | None:
        """Play episodes of the weights ``[P]``; a process that dies is replaced, and plays them again.

        Args:
            vector: the weights.
            episodes: number.
            seeds: of their starts.
            may_go_on: asked while the episodes are played.

        Returns:
            What was played; None if it was not to go on.

        Raises:
            EvaluationError: it died or failed more often than ``max_restarts``.
        """
        while True:
            try:
                return self._ask((vector, episodes, seeds), may_go_on)
            except _DiedError as death:
                reason = str(death)
            self.close()
            if self.restarts >= self._config.max_restarts:
                self._died(reason, "the run ends")
                raise EvaluationError(reason)
            self.restarts += 1
            self._died(
                reason, f"restarted ({self.restarts} of at most {self._config.max_restarts} times)"
            )

    def _ask(
        self,
        request: tuple[FloatArray, int, np.random.SeedSequence],
        may_go_on: Callable[[], bool],
    ) -> Played | None:
        limit, asked_at = self._config.worker_timeout, time.perf_counter()
        if self._process is None:
            self._start()
            asked_at += START_SECONDS  # loading, and making the environments
        assert self._process is not None and self._connection is not None
        try:
            self._connection.send(request)
            while not self._connection.poll(LISTEN_SECONDS):
                if not may_go_on():
                    self.close()
                    return None
                heard_at = max(asked_at, int(self._beat["heartbeat_ns"][0]) / 1e9)
                if time.perf_counter() - heard_at > limit:
                    raise _DiedError(
                        f"gave no sign of life for {limit:g} s in an evaluation and was killed"
                    )
            kind, values = self._connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            has_ended(self._process, LAST_WORDS_SECONDS)
            raise _DiedError(how_it_ended(self._process.exitcode)) from None
        if kind == "failed":
            raise _DiedError(values)
        return Played(*values)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        arguments = (there, self._config, self._spec, self._estimates, self._beat)
        process = context.Process(target=serve, args=arguments, name="evaluator-0", daemon=True)
        try:
            with there, interrupts_blocked():
                process.start()
        except OSError as error:
            raise _DiedError(f"could not be started: {error.strerror or error}") from None
        self._process = process

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            if has_ended(self._process, LAST_WORDS_SECONDS):
                self._process.close()
        self._process = self._connection = None


class _DiedError(Exception):
    """The playing process is of no use any more."""


def serve(
    connection: Connection, config: Config, spec: NetworkSpec, estimates: str, beat: SharedArrays
) -> None:
    """Play what is asked for, again and again. The target of ``Process``."""
    prepare_child()
    heartbeat = beat["heartbeat_ns"]

    def alive() -> None:
        heartbeat[0] = time.perf_counter_ns()

    while True:
        try:
            vector, episodes, seeds = connection.recv()
        except (EOFError, OSError):
            return
        try:
            played = play_and_compare(
                config.env_id, spec, vector, episodes, seeds, config.gamma, estimates, alive
            )
            connection.send(("played", tuple(played)))
        except BaseException:
            connection.send(("failed", short(traceback.format_exc())))
