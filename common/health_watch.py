"""The supervisor's side of the health measurements: it reads the samples and has them judged."""

from __future__ import annotations

from collections.abc import Sequence

from common.alarms import AlarmJudge
from common.events import Observer
from common.state_files import State
from common.telemetry import Telemetry
from common.types import CheckpointReport, Evaluation

SAMPLES_KEPT = 2


class HealthWatch:
    """Follows the health of a run's learners.

    Args:
        telemetry: where the samples arrive.
        observer: hears samples and alarms.
        actors: numbers of the processes that only act.
        threshold: the environment's mean return that counts as solved.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        observer: Observer,
        actors: Sequence[int],
        threshold: float | None,
    ) -> None:
        self._telemetry, self._observer, self._actors = telemetry, observer, actors
        self.judge = AlarmJudge(threshold)
        self._num_roles = len(telemetry.arrays["words"])
        self._seen = [0] * self._num_roles
        self._told = 0
        # The first and the last: what growth is made of. All of them go to the observer.
        self.samples: list[dict[str, float]] = []

    def state(self) -> State:
        """Return what was seen and judged so far."""
        return {"seen": self._seen, "samples": self.samples, "judge": self.judge.state()}

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self._seen, self.samples = state["seen"], state["samples"]
        self.judge.load_state(state["judge"])
        self._told = len(self.judge.alarms)

    def not_saved(self, report: CheckpointReport, env_steps: int) -> None:
        """Take in whether a checkpoint could not be written."""
        if report.write_error is not None:
            self.judge.not_saved(report.write_error, report.saves > 0, env_steps)

    def look(self, seconds: float) -> None:
        """Take in the samples that arrived since the last look.

        Args:
            seconds: of training so far.
        """
        arrived: list[dict[str, float]] = []
        for role in range(self._num_roles):
            samples, self._seen[role] = self._telemetry.health_since(role, self._seen[role])
            arrived += samples
        for sample in sorted(arrived, key=lambda each: each["updates"]):
            self.samples = [*self.samples[: SAMPLES_KEPT - 1], sample]
            self._observer.on_health(sample, seconds)
            self.judge.judge(sample)
        versions = [self._telemetry.word(role, "weights_version") for role in self._actors]
        total = self._telemetry.total
        self.judge.judge_actors(versions, total("updates"), total("env_steps"))
        self.tell()

    def ended(self) -> None:
        """Judge what only a whole run can show."""
        total = self._telemetry.total
        if total("has_target"):
            self.judge.judge_target(total("target_copies"), total("updates"), total("env_steps"))
        self.tell()

    def evaluated(self, evaluation: Evaluation, has_solved: bool) -> None:
        """Take in an evaluation."""
        self.judge.judge_evaluation(evaluation, has_solved)
        self.tell()

    def tell(self) -> None:
        """Pass on the alarms raised since the last time."""
        for alarm in self.judge.alarms[self._told :]:
            self._observer.on_alarm(alarm)
        self._told = len(self.judge.alarms)
