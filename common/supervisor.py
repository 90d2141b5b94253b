"""The parent's side of a run: start the roles, watch, evaluate, stop, collect.

The supervisor loads no torch while a run goes on and takes no lock. Everything it waits for has a
deadline, after which the process that is late is killed.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from common.acting import NetworkSpec, initial_weights, network_spec
from common.audit import AuditReader, SharedMaster
from common.checkpoint import save_model
from common.children import START_SECONDS, Children, settle
from common.config import Config, ConfigError
from common.envs import EnvInfo, inspect_env
from common.evaluate import FINAL_EPISODES, EvaluationRecord
from common.evaluator import EvaluationError, Evaluator
from common.events import NullObserver, Observer
from common.experience import ExperienceBuffer
from common.health_watch import HealthWatch
from common.limits import require_open_files, require_processes
from common.locks import LockFile
from common.optimizer import SharedOptimizerState
from common.outcome import TRAIN_RETURNS, make_result, windows
from common.processes import Role, heeded_signals, random_stream
from common.saved_run import SavedRun
from common.saving import Checkpointer
from common.shared_memory import require_room_for_processes
from common.standstill import StandstillWatch
from common.state_files import State, StateError
from common.telemetry import WORD, Telemetry
from common.types import Death, Evaluation, FloatArray, RunResult
from common.weights import SharedWeights

POLL_SECONDS = 0.003
TICK_SECONDS = 0.25
MEMORY_SECONDS = 0.5
STOP_TIMEOUT_SECONDS = 15.0
INTERRUPT_TIMEOUT_SECONDS = 1.0
# Ctrl-C has to end a run within 3 seconds; a process that is stuck saves nothing in them.
INTERRUPT_SAVE_SECONDS = 1.5


@dataclass
class RunProbe:
    """What ``train`` is given: who listens, where models go, when the command was started.

    Attributes:
        observer: hears ticks and evaluations.
        folder: where ``model.pt`` and ``best.pt`` are written; None writes nothing.
        command_started_at: on the ``perf_counter`` clock.
        final_evaluation: whether the final weights play 100 episodes; to measure speed needs none.
        facts: about the run, for whoever reads a checkpoint of it: the strategy's name, ``config``.
        resume: the checkpoint to go on from.
    """

    observer: Observer = field(default_factory=NullObserver)
    folder: Path | None = None
    command_started_at: float = field(default_factory=time.perf_counter)
    final_evaluation: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    resume: SavedRun | None = None


class Shared:
    """What every strategy shares: the environment's description, the network's shape, the weights.

    ``master`` is what optimizer steps are written to and counted in; ``weights`` is what is published
    from it for those who only read.

    Args:
        config: choices.
        num_writers: processes that write the master.
        shared_optimizer: the optimizer whose state the writers share, if they do.
        lock: whether the writers guard their updates; each opens ``lock_file`` for itself.
        estimates: ``"V"`` where the advantages are a policy's logits and only V is a value.
    """

    def __init__(
        self,
        config: Config,
        num_writers: int = 1,
        shared_optimizer: str | None = None,
        lock: bool = False,
        estimates: str = "Q",
    ) -> None:
        require_room_for_processes(config.workers, learns=num_writers > 1)
        self.info: EnvInfo = inspect_env(config.env_id)
        self.spec: NetworkSpec = network_spec(config, self.info)
        self.estimates = estimates
        initial = initial_weights(self.spec, config.seed)
        self.weights = SharedWeights(self.spec, initial)
        self.master = SharedMaster(initial, num_writers, config.audit)
        self.lock_file = LockFile() if lock else None
        self.optimizer_state: SharedOptimizerState | None = None
        if shared_optimizer is not None:
            self.optimizer_state = SharedOptimizerState(self.spec, shared_optimizer)

    def latest(self) -> FloatArray:
        """Return the newest weights ``[P]``; whole only while nobody writes.

        If the only writer was killed in the middle of an update, they are the last that it published.
        """
        torn = self.master.num_workers == 1 and self.master.is_torn
        written = self.master.updates_issued > 0
        return self.master.vector() if written and not torn else self.weights.latest()[0]


def run_roles(
    config: Config,
    probe: RunProbe,
    roles: Sequence[Role],
    shared: Shared,
    buffer: ExperienceBuffer | None = None,
) -> RunResult:
    """Run the roles to the end and return what they did. The common half of every ``train``."""
    supervisor = _Supervisor(config, probe, roles, shared, buffer)
    return supervisor.run()


class _Supervisor:
    def __init__(
        self,
        config: Config,
        probe: RunProbe,
        roles: Sequence[Role],
        shared: Shared,
        buffer: ExperienceBuffer | None,
    ) -> None:
        self._config, self._probe, self._shared, self._buffer = config, probe, shared, buffer
        self._telemetry = Telemetry(len(roles), config.workers)
        self._audit = AuditReader(shared.master)
        self._record = EvaluationRecord(shared.info.reward_threshold)
        actors = [i for i, role in enumerate(roles) if role.name == "actor"]
        threshold = shared.info.reward_threshold
        self._health = HealthWatch(self._telemetry, probe.observer, actors, threshold)
        self._q_bias: float | None = None
        self._saver = Checkpointer(
            config, self._telemetry, roles, probe.folder, probe.facts, self._state, probe.resume
        )
        self._command_seconds_before = 0.0
        self._deaths_before: list[Death] = []
        self._restarts_before = 0
        self._restore()
        books = functools.partial(settle, self._telemetry, shared, buffer)
        self._children = Children(config, roles, self._telemetry, books, self, self._saver.role_state)
        names = [child.name for child in self._children.all]
        self._standstill = StandstillWatch(self._telemetry, names, 2 * config.worker_timeout)
        self._evaluator = Evaluator(config, shared.spec, shared.estimates, self._evaluator_died)
        self._evaluator_rss_mib = 0.0
        self._interrupts = 0
        self._stop_reason: str | None = None
        self._stop_timeout = self._stop_deadline = float("inf")
        self._error: str | None = None
        self._evaluation_seconds = 0.0
        self._evaluations_done = self._telemetry.total("evaluations_requested")
        self._next_tick = self._next_memory = 0.0

    def _state(self) -> State:
        """Return what only the supervisor knows, for a checkpoint."""
        return {
            "training_seconds": self._training_seconds(),
            "command_seconds": self._command_seconds(),
            "record": self._record.state(),
            "health": self._health.state(),
            "audit": self._audit.state(),
            "q_bias": self._q_bias,
            "deaths": [asdict(death) for death in self._deaths],
            "restarts": self._restarts,
        }

    @property
    def _deaths(self) -> list[Death]:
        """Those of a resumed run's earlier parts, then this part's."""
        return [*self._deaths_before, *self._children.deaths]

    @property
    def _restarts(self) -> int:
        own = sum(report.restarts for report in self._children.reports)
        return self._restarts_before + self._evaluator.restarts + own

    def _restore(self) -> None:
        if self._probe.resume is None:
            return
        try:
            self._saver.restore()
            own = self._probe.resume.run["own"]
            for part in ("record", "health", "audit"):
                getattr(self, f"_{part}").load_state(own[part])
            self._q_bias, self._command_seconds_before = own["q_bias"], own["command_seconds"]
            self._deaths_before = [Death(**death) for death in own.get("deaths", [])]
            self._restarts_before = own.get("restarts", 0)
        except (StateError, KeyError, TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise ConfigError(
                f"the checkpoint {self._probe.resume.folder} does not fit this run: {text}"
            ) from None

    def run(self) -> RunResult:
        """Start, watch, stop, collect."""
        previous = {number: signal.signal(number, self._on_signal) for number in heeded_signals()}
        try:
            self._train()
            return self._collect()
        finally:
            self._children.end(INTERRUPT_TIMEOUT_SECONDS)
            self._evaluator.close()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1

    def _train(self) -> None:
        require_processes(len(self._children.all) + 1)
        require_open_files(len(self._children.all) + 1)
        try:
            self._children.start()
            self._watch()
        except Exception:  # a fault of the toolkit itself; the weights are there all the same
            self.fail(f"the supervisor failed:\n{traceback.format_exc()}")
            self._children.end(INTERRUPT_TIMEOUT_SECONDS)

    def _watch(self) -> None:
        while not self._children.are_finished:
            self._children.look()
            self._check_limits()
            self._evaluate_on_request()
            self._advance_checkpoint()
            self._stop_when_saved()
            self._tick()
            time.sleep(POLL_SECONDS)

    def _advance_checkpoint(self) -> None:
        """Go on with the checkpoint that is being made; none is made without those that have left."""
        if not self._saver.is_over and any(child.is_finished for child in self._children.all):
            self._saver.give_up("a process left before it was saved")
        self._saver.advance()

    @property
    def is_stopping(self) -> bool:
        """Whether the run is coming to its end: by decision, or because its env steps are done."""
        is_over = self._telemetry.total("env_steps") >= self._config.steps
        return self._stop_reason is not None or self._interrupts > 0 or is_over

    def fail(self, reason: str) -> None:
        """End the run as failed. The first failure is the cause; those that follow come of it."""
        if self._interrupts:  # whoever ended the run may have ended processes, too
            self._stop("interrupted", INTERRUPT_TIMEOUT_SECONDS)
        if self._error is None and self._stop_reason != "interrupted":
            self._error = reason
        self._stop("failed", INTERRUPT_TIMEOUT_SECONDS)

    def not_finite(self, reason: str) -> None:
        """Raise the alarm of a run that ended in NaN."""
        self._health.judge.not_finite(reason, self._telemetry.total("env_steps"))

    def died(self, death: Death, outcome: str, is_replaced: bool = False) -> None:
        """Pass on that a process died."""
        self._probe.observer.on_death(death, outcome)
        # A checkpoint is of everybody. One that was being made waits for the dead one in vain; and
        # without those that are gone for good there will be no other.
        reason = f"{death.role}-{death.worker} died"
        if is_replaced and not self.is_stopping:
            self._saver.abandon(reason)
        else:
            self._saver.give_up(reason)

    def _evaluator_died(self, reason: str, outcome: str) -> None:
        death = Death("evaluator", 0, reason, self._telemetry.total("env_steps"))
        self._children.deaths.append(death)
        self._probe.observer.on_death(death, outcome)

    def _stop(self, reason: str, timeout: float) -> None:
        if self._stop_reason in (None, "completed") and reason != self._stop_reason:
            self._stop_reason = reason
            self._stop_timeout = min(self._stop_timeout, timeout)
            within = INTERRUPT_SAVE_SECONDS if reason == "interrupted" else timeout
            self._saver.want_last(within, reason)
        if reason == "failed":
            self._saver.give_up()
        self._saver.advance()  # asked for before anybody who is held now goes on
        self._stop_when_saved()

    def _stop_when_saved(self) -> None:
        """Have everybody leave, once what they leave is in a checkpoint (or cannot be)."""
        if self._stop_reason is None:
            return
        self._telemetry.set_control("evaluations_off", 1)
        if self._saver.is_over:
            deadline = time.perf_counter() + self._stop_timeout
            self._stop_deadline = min(self._stop_deadline, deadline)
            self._telemetry.set_control("stop", 1)

    def _check_limits(self) -> None:
        if self._interrupts == 1:
            self._stop("interrupted", INTERRUPT_TIMEOUT_SECONDS)
        elif self._interrupts > 1:
            self._saver.give_up()
            self._stop("interrupted", 0.0)
            self._stop_deadline = 0.0
        config = self._config
        if config.seconds is not None and self._training_seconds() >= config.seconds:
            self._stop("completed", self._patience_seconds)
        # The roles leave by themselves at the last env step; this bounds how long they may take.
        if self._telemetry.total("env_steps") >= config.steps:
            self._stop("completed", self._patience_seconds)
        if time.perf_counter() > self._stop_deadline:
            self._kill_late()

    @property
    def _patience_seconds(self) -> float:
        """How long the end may take: whoever may be silent for longer may take as long to leave."""
        return max(STOP_TIMEOUT_SECONDS, self._config.worker_timeout)

    def _kill_late(self) -> None:
        for child in self._children.all:
            if child.is_finished:
                continue
            if self._stop_reason == "completed" and child.role.can_restart:
                child.reason = "did not stop in time and was killed"  # and buried at the next look
                continue
            self._children.kill(child)
            if self._stop_reason == "completed":
                self.fail(f"{child.name} did not stop in time and was killed")

    def _training_seconds(self) -> float:
        words = self._telemetry.arrays["words"][:, WORD["started_ns"]]
        started, before = words[words > 0], self._telemetry.before.training_seconds
        if len(started) == 0:
            return before
        return before + time.perf_counter() - float(started.min()) / 1e9 - self._held_seconds

    @property
    def _held_seconds(self) -> float:
        """What is to be taken off the training clock."""
        return self._evaluation_seconds + self._saver.held_seconds

    def _command_seconds(self) -> float:
        """Return the seconds since the command was started, with those of the run's earlier parts."""
        since = time.perf_counter() - self._probe.command_started_at
        return self._command_seconds_before + since

    def _evaluate_on_request(self) -> None:
        requested = self._telemetry.total("evaluations_requested")
        if requested == self._evaluations_done or self._stop_reason is not None:
            return
        training_seconds = self._training_seconds()
        started = time.perf_counter()
        if self._hold_all() and self._evaluate(training_seconds):
            self._telemetry.set_control("evaluations_done", requested)
        else:
            self._telemetry.set_control("evaluations_off", 1)
        self._evaluation_seconds += time.perf_counter() - started
        self._evaluations_done = requested
        self._telemetry.set_control("pause", 0)

    def _hold_all(self) -> bool:
        """Wait until every process stands at its stop check; False if the run ends meanwhile.

        One that hangs is killed before the deadline.
        """
        self._telemetry.set_control("pause", 1)
        seconds = self._config.worker_timeout + START_SECONDS
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            self._children.look()
            if self._interrupts or self._stop_reason is not None:
                return False
            if self._children.are_held:
                return True
            time.sleep(0.0005)
        self.fail(f"not every process reached its stop check in {seconds:.0f} s")
        return False

    def _evaluate(self, training_seconds: float) -> bool:
        vector = self._shared.latest()
        number = self._record.num_evaluations
        returns = self._play(vector, self._config.evaluation_episodes, number)
        if returns is None:
            return False
        evaluation = self._evaluation(returns, training_seconds)
        best = self._record.add(evaluation, vector)
        self._probe.observer.on_evaluation(evaluation, best)
        self._health.evaluated(evaluation, self._record.solved_at is not None)
        if not self._record.wants_confirmation:
            return True
        returns = self._play(vector, FINAL_EPISODES, number, confirm=1)
        if returns is not None and self._record.confirm(returns) and self._config.until_solved:
            self._stop("completed", self._patience_seconds)
        return True

    def _play(
        self, vector: FloatArray, episodes: int, number: int, confirm: int = 0
    ) -> tuple[float, ...] | None:
        """Return the episodes' returns; None if the user interrupts or the environment fails."""
        seeds = random_stream(self._config.seed, "evaluation", confirm, number)
        try:
            played = self._evaluator.play(vector, episodes, seeds, self._may_go_on)
        except EvaluationError as error:
            self.fail(f"the evaluation failed:\n{error}")
            return None
        self._evaluator_rss_mib = max(self._evaluator_rss_mib, private_mib(self._evaluator.pid))
        if played is None:
            return None
        self._q_bias = played.q_bias
        return played.returns

    def _may_go_on(self) -> bool:
        """Look after the held processes during an evaluation; return whether it is still wanted."""
        self._children.look()
        return not self._interrupts and self._stop_reason in (None, "completed")

    def _tick(self) -> None:
        now = time.perf_counter()
        if now >= self._next_memory:
            self._next_memory = now + MEMORY_SECONDS
            for report in self._children.reports:
                report.peak_rss_mib = max(report.peak_rss_mib, private_mib(report.pid))
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._audit.sample_if_due()
            self._end_if_nobody_works(now)
            self._health.not_saved(self._saver.report, self._telemetry.total("env_steps"))
            self._health.look(self._training_seconds())
            self._probe.observer.on_tick(
                self._telemetry.total("env_steps"),
                self._telemetry.total("updates"),
                self._training_seconds(),
                self._telemetry.last_returns(TRAIN_RETURNS),
            )

    def _end_if_nobody_works(self, now: float) -> None:
        found = self._standstill.look(now)
        if found is not None and self._stop_reason is None:
            self.fail(f"the run stands still: {found}")

    def _collect(self) -> RunResult:
        vector = self._shared.latest()
        final = None
        if self._probe.final_evaluation and self._stop_reason in (None, "completed"):
            self._probe.observer.on_final_evaluation(FINAL_EPISODES)
            returns = self._play(vector, FINAL_EPISODES, 0, confirm=2)
            if returns is not None:
                seconds = windows(self._telemetry, self._held_seconds)["training_seconds"]
                final = self._evaluation(returns, seconds)
        status = self._stop_reason or "completed"
        if self._probe.final_evaluation and final is None and status == "completed":
            status = "interrupted"
        self._health.look(windows(self._telemetry, self._held_seconds)["training_seconds"])
        self._health.ended()
        result = make_result(
            status,
            self._error,
            self._telemetry,
            self._shared,
            self._buffer,
            [child.role for child in self._children.all],
            self._record,
            final,
            self._children.reports,
            self._audit,
            self._held_seconds,
        )
        result.health, result.alarms = self._health.samples, self._health.judge.alarms
        result.q_bias = self._q_bias
        result.checkpoint = self._saver.report if self._saver.is_wanted else None
        result.before = self._telemetry.before
        result.deaths, result.restarts = self._deaths, self._restarts
        result.evaluator_rss_mib = self._evaluator_rss_mib
        result.models_saved = self._save_models(result)
        return result

    def _evaluation(self, returns: tuple[float, ...], training_seconds: float) -> Evaluation:
        return Evaluation(
            env_steps=self._telemetry.total("env_steps"),
            updates=self._telemetry.total("updates"),
            training_seconds=training_seconds,
            command_seconds=self._command_seconds(),
            episode_returns=returns,
        )

    def _save_models(self, result: RunResult) -> bool:
        folder = self._probe.folder
        if folder is None:
            return False
        models = [
            (folder / "model.pt", self._shared.spec, result.final_weights),
            (folder / "best.pt", self._shared.spec, result.best_weights),
        ]
        saved = [self._save_model(*model, result) for model in models]
        return all(saved)

    def _save_model(self, path: Path, spec: NetworkSpec, vector: FloatArray, result: RunResult) -> bool:
        try:
            save_model(path, spec, vector)
        except OSError as error:
            reason = f"{path} could not be written: {error.strerror or error}"
            result.error = f"{result.error}\n{reason}" if result.error else reason
            result.status = "failed" if result.status == "completed" else result.status
            return False
        return True


def private_mib(pid: int) -> float:
    """Return a process's resident memory without shared memory, in MiB; 0 if it is gone.

    Anonymous plus file pages where the kernel tells them apart (Linux), else what is unique to it.
    """
    try:
        if sys.platform.startswith("linux"):
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
            lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            kib = sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssFile"))
            return kib / 1024
        process = psutil.Process(pid)
        try:
            unique: int = process.memory_full_info().uss
        except psutil.AccessDenied:  # macOS tells it of other processes to root alone
            unique = process.memory_info().rss
        return unique / 2**20
    except (OSError, KeyError, ValueError, psutil.Error):
        return 0.0
