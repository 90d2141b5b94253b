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
from common.children import AWAY_SECONDS, LAST_WORDS_SECONDS, START_SECONDS, how_it_ended
from common.config import Config
from common.evaluate import FINAL_EPISODES, Played, play_and_compare
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
        # vector: written here before a request, read by the playing process. heartbeat_ns is written by
        # it after each step, returns before it answers. What goes through the pipe is so small that one
        # write sends it: nobody waits for a process that was stopped in the middle of a message.
        most = max(config.evaluation_episodes, FINAL_EPISODES)
        self._shared = SharedArrays(
            {
                "vector": ((spec.num_parameters,), np.float32),
                "returns": ((most,), np.float64),
                "heartbeat_ns": ((1,), np.int64),
            }
        )
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
                np.copyto(self._shared["vector"], vector)
                return self._ask(episodes, seeds, may_go_on)
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
        episodes: int,
        seeds: np.random.SeedSequence,
        may_go_on: Callable[[], bool],
    ) -> Played | None:
        if self._process is None:
            self._start()
        assert self._process is not None and self._connection is not None
        try:
            self._connection.send((episodes, seeds))
            if not self._wait(self._connection, may_go_on):
                self.close()
                return None
            kind, values = self._connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            has_ended(self._process, LAST_WORDS_SECONDS)
            raise _DiedError(how_it_ended(self._process.exitcode)) from None
        if kind == "failed":
            raise _DiedError(values)
        return Played(tuple(self._shared["returns"][:episodes].tolist()), values)

    def _wait(self, connection: Connection, may_go_on: Callable[[], bool]) -> bool:
        """Wait for an answer; return False if it is not wanted any more.

        Raises:
            _DiedError: there was no sign of life for too long.
        """
        asked_at = looked_at = quiet_since = time.perf_counter()
        while not connection.poll(LISTEN_SECONDS):
            if not may_go_on():
                return False
            now = time.perf_counter()
            if now - looked_at > AWAY_SECONDS:
                quiet_since = now
            looked_at = now
            heard_at, limit = int(self._shared["heartbeat_ns"][0]) / 1e9, self._config.worker_timeout
            if heard_at < asked_at:  # loading, and making the environments
                limit += START_SECONDS
            if now - max(heard_at, quiet_since) > limit:
                raise _DiedError(
                    f"gave no sign of life for {limit:g} s in an evaluation and was killed"
                )
        return True

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        try:
            self._connection, there = context.Pipe()
            arguments = (there, self._config, self._spec, self._estimates, self._shared)
            process = context.Process(target=serve, args=arguments, name="evaluator-0", daemon=True)
            with there, interrupts_blocked():
                process.start()
        except OSError as error:  # no more processes, open files or memory
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
    connection: Connection, config: Config, spec: NetworkSpec, estimates: str, shared: SharedArrays
) -> None:
    """Play what is asked for, again and again. The target of ``Process``."""
    prepare_child()

    def alive() -> None:
        shared["heartbeat_ns"][0] = time.perf_counter_ns()

    while True:
        try:
            episodes, seeds = connection.recv()
        except (EOFError, OSError):
            return
        try:
            vector = shared["vector"].copy()
            played = play_and_compare(
                config.env_id, spec, vector, episodes, seeds, config.gamma, estimates, alive
            )
            shared["returns"][:episodes] = played.returns
            connection.send(("played", played.q_bias))
        except BaseException:
            connection.send(("failed", short(traceback.format_exc())))
