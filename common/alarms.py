"""Alarms: what in a run's health asks for attention, since when, what it means and what to try.

The limits were set on one half of a set of healthy runs and tested on the other: ``python -m
bench.alarm_limits``, docs/explanation/six-answers.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from common.state_files import State
from common.types import Alarm, Evaluation

IN_A_ROW = 3

DIVERGED_TIMES_BOUND = 1.5
DIVERGED_AT_ONCE_TIMES_BOUND = 10.0
EXPLODED_GRAD_NORM = 10_000.0
DEAD_UNITS_FRACTION = 0.9
EXPLORATION_ENTROPY = 0.004
STALE_AFTER_UPDATES = 100
TARGET_AFTER_UPDATES = 100
COLLAPSED_SHARE = 0.5
COLLAPSED_IN_A_ROW = 2

Sample = Mapping[str, float]


def _in_any_case(sample: Sample) -> float:
    return math.inf


@dataclass(frozen=True)
class Rule:
    """A limit on one measurement.

    Attributes:
        name: of the alarm.
        reads: the measurement in a sample.
        limit: given a sample; infinite where it has none.
        above: whether it is broken above the limit; below it otherwise.
        in_a_row: samples running that must break it.
        meaning: in words.
        remedy: what to try.
        also: a second strain that must be above 1, too.
    """

    name: str
    reads: str
    limit: Callable[[Sample], float]
    above: bool
    in_a_row: int
    meaning: str
    remedy: str
    also: Callable[[Sample], float] = _in_any_case

    def strain(self, sample: Sample) -> float:
        """Return how near to the limit a sample is: above 1 breaks it, 0 was not measured."""
        value, limit = sample[self.reads], self.limit(sample)
        if not (math.isfinite(value) and math.isfinite(limit)):
            return 0.0
        over, under = (value, limit) if self.above else (limit, value)
        return min(over / under if under else math.inf, self.also(sample))


def _times_bound(times: float) -> Callable[[Sample], float]:
    return lambda sample: times * sample["q_bound"] if sample["q_bound"] > 0 else math.inf


def _mean_over_bound(sample: Sample) -> float:
    return abs(sample["q_mean"]) / sample["q_bound"]


def _always(limit: float) -> Callable[[Sample], float]:
    return lambda sample: limit


DIVERGENCE = (
    "the estimates are above any return that is possible: bootstrapping, function approximation and "
    "replayed data feed on each other (the deadly triad)",
    "lower --replay-ratio or --learning-rate, copy the target less often (--target-update), or add "
    "--layer-norm",
)

RULES = (
    # The largest estimate alone goes up to twice the bound and comes back in runs that solve the task;
    # where the mean of the batch is above the bound, it is not a few states.
    Rule(
        "divergence",
        "q_max",
        _times_bound(DIVERGED_TIMES_BOUND),
        True,
        IN_A_ROW,
        *DIVERGENCE,
        also=_mean_over_bound,
    ),
    Rule("divergence", "q_max", _times_bound(DIVERGED_AT_ONCE_TIMES_BOUND), True, 1, *DIVERGENCE),
    Rule(
        "exploding gradient",
        "grad_norm",
        _always(EXPLODED_GRAD_NORM),
        True,
        IN_A_ROW,
        "gradients are far longer than any healthy run's: one batch can undo what was learned",
        "lower --learning-rate or --max-grad-norm, or scale the environment's rewards",
    ),
    Rule(
        "dead units",
        "dormant_fraction",
        _always(DEAD_UNITS_FRACTION),
        True,
        IN_A_ROW,
        "most hidden units answer to nothing any more: the network can learn little that is new",
        "lower --replay-ratio or --learning-rate, add --layer-norm, or use --reset-interval",
    ),
    Rule(
        "no exploration left",
        "action_entropy",
        _always(EXPLORATION_ENTROPY),
        False,
        IN_A_ROW,
        "the actions learned from were all but certain: nothing new is tried",
        "raise --epsilon-end (in impala --entropy-cost)",
    ),
)


class AlarmJudge:
    """Judges samples and evaluations as they come; each alarm is raised once.

    Args:
        threshold: the environment's mean return that counts as solved.
    """

    def __init__(self, threshold: float | None) -> None:
        self._threshold = threshold
        self.alarms: list[Alarm] = []
        self._broken = [0] * len(RULES)
        self._since = [0.0] * len(RULES)
        self._first_mean: float | None = None
        self._low: list[int] = []

    def state(self) -> State:
        """Return what was judged so far."""
        return {
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "broken": self._broken,
            "since": self._since,
            "first_mean": self._first_mean,
            "low": self._low,
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self.alarms = [Alarm(**alarm) for alarm in state["alarms"]]
        self._broken, self._since = state["broken"], state["since"]
        self._first_mean, self._low = state["first_mean"], state["low"]

    def judge(self, sample: Sample) -> None:
        """Take in a sample of the network's health."""
        for i, rule in enumerate(RULES):
            if rule.strain(sample) <= 1:
                self._broken[i] = 0
                continue
            if self._broken[i] == 0:
                self._since[i] = sample["env_steps"]
            self._broken[i] += 1
            if self._broken[i] >= rule.in_a_row:
                value, limit = sample[rule.reads], rule.limit(sample)
                self._raise(rule.name, value, limit, self._since[i], rule.meaning, rule.remedy)

    def judge_evaluation(self, evaluation: Evaluation, has_solved: bool) -> None:
        """Take in an evaluation: after having solved, two in a row far below it are a collapse."""
        if self._first_mean is None:
            self._first_mean = evaluation.mean
        if self._threshold is None or not has_solved:
            return
        limit = self._first_mean + COLLAPSED_SHARE * (self._threshold - self._first_mean)
        self._low = [*self._low, evaluation.env_steps] if evaluation.mean < limit else []
        if len(self._low) >= COLLAPSED_IN_A_ROW:
            self._raise(
                "collapse",
                evaluation.mean,
                limit,
                self._low[0],
                "a policy that had solved the task is lost again (best.pt has it)",
                "lower --learning-rate-end or --replay-ratio, raise --replay-capacity, or stop with "
                "--until-solved",
            )

    def judge_actors(self, versions: list[int], updates: int, env_steps: int) -> None:
        """Take in the weights versions that actors hold, after so many updates."""
        never = [str(worker) for worker, version in enumerate(versions) if version == 0]
        if updates > STALE_AFTER_UPDATES and never:
            self._raise(
                "stale actors",
                float(updates),
                float(STALE_AFTER_UPDATES),
                env_steps,
                f"the first weights still act in worker {', '.join(never)}",
                "see whether it steps at all (a slow environment, --straggler); lower --chunk-steps",
            )

    def judge_target(self, copies: int, updates: int, env_steps: int) -> None:
        """Take in, at the end of a run with a target network, how often it was copied to."""
        if copies == 0 and updates >= TARGET_AFTER_UPDATES:
            self._raise(
                "target never copied",
                float(updates),
                float(TARGET_AFTER_UPDATES),
                env_steps,
                "every target of the run was computed with the first weights",
                "lower --target-update below the number of updates, or train longer",
            )

    def not_finite(self, reason: str, env_steps: int) -> None:
        """Raise the alarm of a run that ended in NaN."""
        remedy = "lower --learning-rate, set --max-grad-norm, or add --layer-norm"
        self._raise("not finite", math.nan, math.nan, env_steps, reason, remedy)

    def not_saved(self, reason: str, has_earlier: bool, env_steps: int) -> None:
        """Raise the alarm of a checkpoint that could not be written."""
        meaning = f"a checkpoint could not be written ({reason})"
        meaning += "; the one before it is still whole" if has_earlier else ", and there is none yet"
        remedy = "see whether the run's folder can be written and has room"
        self._raise("checkpoint not saved", math.nan, math.nan, env_steps, meaning, remedy)

    def _raise(
        self, name: str, value: float, limit: float, since: float, meaning: str, remedy: str
    ) -> None:
        if all(alarm.name != name for alarm in self.alarms):
            self.alarms.append(Alarm(name, value, limit, int(since), meaning, remedy))
