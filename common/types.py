"""Shapes and units, written once.

Notation: ``T`` is time, ``B`` the batch, ``L`` the lanes (environments stepped together by one
worker), ``A`` the actions, ``n`` the n-step length. ``...`` is the shape of one observation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class LaneStep(NamedTuple):
    """What one step of all lanes of a worker gave.

    Attributes:
        observation: ``[L, ...]`` what the agent sees next. At an end this is the episode's own
            final observation; the first one of the next episode follows one step later.
        reward: ``[L]`` float32.
        terminated: ``[L]`` the episode ended in the environment's own terms: nothing follows.
        truncated: ``[L]`` the episode was cut (a time limit): the value of what follows counts.
        valid: ``[L]`` False where the lane did not step but moved on to its next episode. Such a
            row is no env step; its action was ignored and its reward is 0.
    """

    observation: NDArray[Any]
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    valid: BoolArray


class Batch(NamedTuple):
    """Transitions as the learner takes them from replay.

    Attributes:
        observation: ``[B, ...]`` in the environment's own dtype.
        action: ``[B]`` int64.
        n_step_return: ``[B]`` float32, discounted rewards inside the window.
        bootstrap_discount: ``[B]`` float32, gamma^horizon, or 0 after a termination.
        bootstrap_observation: ``[B, ...]`` the observation at the end of the window.
        importance_weight: ``[B]`` float32, 1 everywhere for uniform replay.
        weights_version: ``[B]`` int64, the version of the weights that chose the action.
        place: ``[B]`` int64, where the transition lies (it comes back with a priority).
        row: ``[B]`` int64, the number of the row since the start, which tells whether the row at
            ``place`` is still the one that was sampled.
    """

    observation: NDArray[Any]
    action: IntArray
    n_step_return: FloatArray
    bootstrap_discount: FloatArray
    bootstrap_observation: NDArray[Any]
    importance_weight: FloatArray
    weights_version: IntArray
    place: IntArray
    row: IntArray


@dataclass(frozen=True)
class Traits:
    """The header of a strategy file as data. Tests hold it to the truth.

    Attributes:
        name: what ``--strategy`` takes.
        parent: the strategy that this one is one step away from; None for the baseline.
        summary: one sentence.
        processes: which processes there are.
        collects: who steps environments.
        computes_gradients: who computes gradients.
        writes_weights: who writes the weights.
        guard: what protects the weights while they are written.
        experience: how experience reaches the learner.
        correction: what corrects for acting with other weights than are trained.
        loss: which loss is minimised.
        can_go_wrong: what to look for.
        paper: where it comes from.
        can_lose_updates: whether one writer can overwrite another's update.
        single_process: whether ``workers`` must be 1.
        ratios: which kinds of ``--replay-ratio`` it takes.
        roles: the role functions in the strategy's file.
        unused_options: fields of the common ``Config`` without a use here; setting one is refused.
    """

    name: str
    parent: str | None
    summary: str
    processes: str
    collects: str
    computes_gradients: str
    writes_weights: str
    guard: str
    experience: str
    correction: str
    loss: str
    can_go_wrong: str
    paper: str
    can_lose_updates: bool
    single_process: bool
    ratios: tuple[str, ...]
    roles: tuple[str, ...]
    unused_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: whole greedy episodes of one set of weights, off the training clock.

    Attributes:
        env_steps: the global clock when everybody was held.
        updates: updates done by then.
        training_seconds: seconds of training, without evaluations.
        command_seconds: seconds since the command was started, evaluations included.
        episode_returns: undiscounted, one per episode.
    """

    env_steps: int
    updates: int
    training_seconds: float
    command_seconds: float
    episode_returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean undiscounted return."""
        return float(np.mean(self.episode_returns))

    @property
    def std(self) -> float:
        """Standard deviation over episodes."""
        return float(np.std(self.episode_returns))


@dataclass(frozen=True)
class Alarm:
    """Something in a run's health that asks for attention.

    Attributes:
        name: what it is called.
        value: what was measured when it was raised.
        limit: what it broke.
        at_env_steps: when it began.
        meaning: in words.
        remedy: what to try.
    """

    name: str
    value: float
    limit: float
    at_env_steps: int
    meaning: str
    remedy: str


@dataclass(frozen=True)
class Death:
    """A process that ended before the run did.

    Attributes:
        role: the role's name; ``evaluator`` for the process that plays evaluations.
        worker: its number among its kind.
        reason: the traceback, the signal, the exit code, or for how long nothing was heard.
        at_env_steps: the global clock when it was noticed.
    """

    role: str
    worker: int
    reason: str
    at_env_steps: int


@dataclass
class RoleReport:
    """What one process was, as measured in and around it.

    Attributes:
        name: the role's name, for example ``actor``.
        worker: its number among its kind.
        pid: process id, of the last process that had the role.
        restarts: processes that took the place of one that died.
        start_seconds: from spawn to the role's first statement.
        peak_rss_mib: highest sampled private resident memory (anonymous + file pages, without
            shared memory), in MiB.
        threads: the limit that each numeric library in the process reports.
        imports_torch: whether torch was loaded when the role ended.
        wall_seconds: from the common start to its end.
        device: what the role's learner computed on; None if it computed no gradient.
        cpu_seconds: CPU time since the training clock started, evaluations included; None if killed.
        activities: seconds by activity.
        counters: the role's counters by name.
    """

    name: str
    worker: int
    pid: int = 0
    restarts: int = 0
    start_seconds: float | None = None
    peak_rss_mib: float = 0.0
    threads: dict[str, int] = field(default_factory=dict)
    imports_torch: bool | None = None
    wall_seconds: float = 0.0
    device: str | None = None
    cpu_seconds: float | None = None
    activities: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


class Before(NamedTuple):
    """What the earlier parts of a resumed run came to; all zero in a new run."""

    env_steps: int = 0
    updates: int = 0
    training_seconds: float = 0.0


NOTHING_BEFORE = Before()


@dataclass
class CheckpointReport:
    """What the checkpoints of a run came to.

    Attributes:
        folder: where the last one is; None if none was made.
        replay: whether it holds the replay.
        saves: how many were made in this part of the run.
        saved_at_env_steps: of the last one.
        num_bytes: of the last one.
        held_seconds: the longest that everybody stood still for what is shared.
        save_seconds: the longest from the request until the files were on the disk.
        error: why the last attempt failed, if it did.
        write_error: why one could not be written, if the folder or the disk was the reason.
    """

    folder: Path | None = None
    replay: bool = True
    saves: int = 0
    saved_at_env_steps: int | None = None
    num_bytes: int = 0
    held_seconds: float = 0.0
    save_seconds: float = 0.0
    error: str | None = None
    write_error: str | None = None


@dataclass
class RunResult:
    """What ``train`` returns. Seconds are on the training clock unless the name says otherwise.

    Attributes:
        status: ``completed``, ``interrupted`` or ``failed``.
        error: the traceback or signal of the child that ended the run, if one did.
        env_steps: env steps over all workers and lanes.
        updates: optimizer steps over all writers.
        training_seconds: from the first role's start to the last stop, without evaluations.
        steady_seconds: from the first update to the stop, without evaluations; None before it.
        steady_env_steps: env steps inside the steady window.
        steady_updates: updates inside the steady window.
        evaluations: in order.
        final_weights: ``[P]`` float32.
        best_weights: ``[P]`` float32, those of the best evaluation.
        best_mean: mean return of the best evaluation.
        solved_at: the evaluation with which the threshold was held, if it was.
        final_evaluation: 100 new episodes of the final weights.
        train_returns: the returns of the last training episodes, exploration included.
        shared_mib: size of all shared arrays, counted once.
        in_flight_at_end: collected but never taken by a learner when the run stopped.
        roles: a report per process.
        audit: what the update audit counted; None if nothing was written through the shared master.
        histograms: counts of lag, staleness and age, as ``common.distributions`` keeps them.
        lengths: counts by episode length, likewise (``common.telemetry.LENGTHS``).
        consumed_by_worker: transitions learned from, by the worker that collected them.
        most_sampled: times that one transition was drawn, at the most; 0 if that was not counted.
        health: the samples of the network's health, the first and the last of the whole run.
        alarms: in the order in which they were raised.
        q_bias: mean of estimate minus return in the last evaluation.
        lost_by_element: ``[P]`` lost writes of each weight; None where they were not counted.
        layout: name and shape of each part of the weights, in the order of the flat vector.
        spans: per role, its last activities ``[n, 3]``, see ``Telemetry.spans``.
        checkpoint: what the checkpoints came to.
        before: what a resumed run's earlier parts came to. ``env_steps``, ``updates`` and
            ``training_seconds`` are of all parts; the steady window and the roles' times of this one.
        deaths: the processes that died, in the order in which it was noticed.
        restarts: processes that were started in the place of one that died.
        evaluator_rss_mib: highest sampled memory of the process that plays evaluations.
    """

    status: str
    error: str | None
    env_steps: int
    updates: int
    training_seconds: float
    steady_seconds: float | None
    steady_env_steps: int
    steady_updates: int
    evaluations: list[Evaluation]
    final_weights: FloatArray
    best_weights: FloatArray
    best_mean: float | None
    solved_at: Evaluation | None
    final_evaluation: Evaluation | None
    train_returns: list[float]
    shared_mib: float
    in_flight_at_end: int
    roles: list[RoleReport]
    models_saved: bool = False
    audit: dict[str, Any] | None = None
    histograms: dict[str, IntArray] = field(default_factory=dict)
    lengths: dict[str, IntArray] = field(default_factory=dict)
    consumed_by_worker: list[int] = field(default_factory=list)
    most_sampled: int = 0
    health: list[dict[str, float]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    q_bias: float | None = None
    lost_by_element: IntArray | None = None
    layout: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    spans: list[IntArray] = field(default_factory=list)
    checkpoint: CheckpointReport | None = None
    before: Before = NOTHING_BEFORE
    deaths: list[Death] = field(default_factory=list)
    restarts: int = 0
    evaluator_rss_mib: float = 0.0

    def total(self, counter: str) -> int:
        """Sum one counter over all processes."""
        return sum(role.counters.get(counter, 0) for role in self.roles)
