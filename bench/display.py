"""What a person sees of a run: a live panel on a terminal, plain lines elsewhere, a result at the end.

All but the result goes to standard error.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from common.config import Config
from common.types import Alarm, Death, Evaluation

LINE_SECONDS = 5.0
RATE_WINDOW_SECONDS = 3.0
WIDTH, LEAST_WIDTH = 100, 40
INDENT = " " * 5


class Display(Protocol):
    """Hears a run and shows it."""

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """See ``common.events.Observer``."""

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """See ``common.events.Observer``."""

    def on_health(self, sample: Mapping[str, float], seconds: float) -> None:
        """See ``common.events.Observer``."""

    def on_alarm(self, alarm: Alarm) -> None:
        """See ``common.events.Observer``."""

    def on_death(self, death: Death, outcome: str) -> None:
        """See ``common.events.Observer``."""

    def on_final_evaluation(self, episodes: int) -> None:
        """See ``common.events.Observer``."""

    def close(self) -> None:
        """Leave the screen tidy."""


def make_display(strategy: str, config: Config) -> Display:
    """Return the live display if standard error is a terminal, else plain lines."""
    if sys.stderr.isatty():
        return LiveDisplay(strategy, config)
    return PlainDisplay(strategy, config)


class Rates:
    """Speeds over the last seconds of training time, so that evaluations do not count."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, env_steps: int, updates: int, seconds: float) -> None:
        """Take in a sample; old ones are forgotten."""
        self._samples.append((seconds, env_steps, updates))
        while seconds - self._samples[0][0] > RATE_WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

    @property
    def env_steps_per_second(self) -> float:
        """Env steps per second of training."""
        return self._per_second(1)

    @property
    def updates_per_second(self) -> float:
        """Updates per second of training."""
        return self._per_second(2)

    def _per_second(self, column: int) -> float:
        if not self._samples:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        elapsed = last[0] - first[0]
        return (last[column] - first[column]) / elapsed if elapsed > 0 else 0.0


class Progress:
    """The state of a run in words: what both displays say."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._rates = Rates()
        self.env_steps = self.updates = 0
        self.seconds = 0.0
        self.train_return: float | None = None
        self.last: Evaluation | None = None
        self.best: Evaluation | None = None
        self.health: Mapping[str, float] | None = None
        self.alarms: list[Alarm] = []
        self.stage: str | None = None  # what goes on when training is over

    def tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Take in a tick."""
        self.env_steps, self.updates, self.seconds = env_steps, updates, seconds
        self._rates.add(env_steps, updates, seconds)
        if returns:
            self.train_return = sum(returns) / len(returns)

    def evaluated(self, evaluation: Evaluation, best: bool) -> None:
        """Take in an evaluation."""
        self.last = evaluation
        if best:
            self.best = evaluation

    @property
    def fraction(self) -> float:
        """How much of the budget is used, by steps or by seconds, whichever ends the run first."""
        by_steps = self.env_steps / self._config.steps
        by_seconds = self.seconds / self._config.seconds if self._config.seconds else 0.0
        return min(1.0, max(by_steps, by_seconds))

    @property
    def eta(self) -> str:
        """Training time left at the present pace."""
        if self.fraction <= 0 or self.seconds <= 0:
            return "-"
        return duration(self.seconds * (1 - self.fraction) / self.fraction)

    @property
    def speed(self) -> str:
        """Env steps and updates per second."""
        env_steps, updates = self._rates.env_steps_per_second, self._rates.updates_per_second
        return f"{env_steps:,.0f} env steps/s, {updates:,.0f} updates/s"

    @property
    def ratio(self) -> str:
        """Updates per env step since the warm-up."""
        learning = self.env_steps - self._config.warmup_env_steps
        return f"{self.updates / learning:.3f}" if learning > 0 and self.updates else "-"


class PlainDisplay:
    """A line every few seconds and one per evaluation."""

    def __init__(self, strategy: str, config: Config) -> None:
        self._progress = Progress(config)
        self._next_line = 0.0
        _say(f"{headline(strategy, config)}; starting")

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Say where the run is, once it trains."""
        progress = self._progress
        progress.tick(env_steps, updates, seconds, returns)
        now = time.perf_counter()
        if now < self._next_line or not env_steps:
            return
        first, self._next_line = self._next_line == 0, now + LINE_SECONDS
        if first:
            return  # no speed is known yet
        train = "-" if progress.train_return is None else f"{progress.train_return:.1f}"
        _say(
            f"{env_steps:,} env steps ({progress.fraction:.0%}, {progress.eta} left), "
            f"{progress.speed}, replay ratio {progress.ratio}, train return {train}"
        )

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Say what was reached."""
        self._progress.evaluated(evaluation, best)
        _say(f"evaluation at {evaluation_text(evaluation)}{', the best so far' if best else ''}")

    def on_health(self, sample: Mapping[str, float], seconds: float) -> None:
        """Say nothing: alarms say what matters of it."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Say what is wrong."""
        _say(f"ALARM: {alarm_text(alarm)}")

    def on_death(self, death: Death, outcome: str) -> None:
        """Say who died, why, and what follows."""
        _say(death_text(death, outcome))

    def on_final_evaluation(self, episodes: int) -> None:
        """Say what is waited for."""
        _say(final_text(episodes))

    def close(self) -> None:
        """Nothing is left open."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class LiveDisplay:
    """A panel that is redrawn in place, a few times a second, from the supervisor's own loop."""

    def __init__(self, strategy: str, config: Config) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = headline(strategy, config)
        self._progress = Progress(config)
        self._live = Live(
            console=Console(stderr=True),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        self._draw()

    def on_tick(self, env_steps: int, updates: int, seconds: float, returns: Sequence[float]) -> None:
        """Redraw."""
        self._progress.tick(env_steps, updates, seconds, returns)
        self._draw()

    def on_evaluation(self, evaluation: Evaluation, best: bool) -> None:
        """Redraw."""
        self._progress.evaluated(evaluation, best)
        self._draw()

    def on_health(self, sample: Mapping[str, float], seconds: float) -> None:
        """Take in a sample; it is drawn with the next tick."""
        self._progress.health = sample

    def on_alarm(self, alarm: Alarm) -> None:
        """Redraw."""
        self._progress.alarms.append(alarm)
        self._draw()

    def on_death(self, death: Death, outcome: str) -> None:
        """Say above the panel who died, why, and what follows."""
        self._live.console.print(death_text(death, outcome), markup=False, highlight=False)
        self._draw()

    def on_final_evaluation(self, episodes: int) -> None:
        """Say in the panel what is waited for."""
        self._progress.stage = final_text(episodes)
        self._draw()

    def close(self) -> None:
        """Leave the last state on the screen and the cursor below it."""
        self._progress.stage = "over"
        self._draw()
        self._live.stop()

    def _draw(self) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        progress = self._progress
        table = Table(title=self._title, title_justify="left", show_header=False, box=None)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True)
        done = "starting the processes"
        if progress.env_steps:
            done = f"{progress.env_steps:,} env steps, {progress.updates:,} updates"
            done += f" in {duration(progress.seconds)}, "
            done += progress.stage or f"about {progress.eta} left"
        table.add_row("done", ProgressBar(total=1.0, completed=progress.fraction, width=40))
        table.add_row("", done)
        table.add_row("speed", progress.speed)
        table.add_row("replay ratio", progress.ratio)
        train = progress.train_return
        about = "last 100 episodes, exploring"
        table.add_row("train return", "-" if train is None else f"{train:.1f} ({about})")
        table.add_row("evaluation", evaluation_text(progress.last) if progress.last else "-")
        table.add_row("best", evaluation_text(progress.best) if progress.best else "-")
        table.add_row("Q", health_text(progress.health) if progress.health else "-")
        for alarm in progress.alarms:
            table.add_row("alarm", f"{alarm.name} since {alarm.at_env_steps:,} env steps")
        self._live.update(table, refresh=True)


def final_text(episodes: int) -> str:
    """Return what goes on when training is over."""
    return f"playing {episodes} episodes with the final weights"


def headline(strategy: str, config: Config) -> str:
    """Return what is being run, in a line."""
    budget = f"{config.steps:,} env steps"
    if config.seconds is not None:
        budget += f" or {config.seconds:g} s"
    return f"{strategy} on {config.env_id}, seed {config.seed}, up to {budget}"


def return_text(value: float) -> str:
    """Return a return with one decimal; a small one, of environments that pay little, with three."""
    return f"{value:.1f}" if abs(value) >= 10 or value == 0 else f"{value:.3f}"


def evaluation_text(evaluation: Evaluation) -> str:
    """Return an evaluation in a line."""
    episodes = len(evaluation.episode_returns)
    where = f"{evaluation.env_steps:,} env steps"
    return f"{where}: mean return {return_text(evaluation.mean)} over {episodes} episodes"


def health_text(sample: Mapping[str, float]) -> str:
    """Return where the estimates stand, in a few words."""
    bound = sample["q_bound"]
    beside = f" (bound {bound:.4g})" if 0 < bound < float("inf") else ""
    return f"mean {sample['q_mean']:.4g}, largest {sample['q_max']:.4g}{beside}"


def alarm_text(alarm: Alarm) -> str:
    """Return an alarm in a sentence: since when, what it means, what to try."""
    return (
        f"{alarm.name} since {alarm.at_env_steps:,} env steps ({alarm.value:.4g}, limit "
        f"{alarm.limit:.4g}): {alarm.meaning}; try: {alarm.remedy}"
    )


def death_text(death: Death, outcome: str) -> str:
    """Return who died, what follows and why, the traceback included if there is one."""
    name = f"{death.role}-{death.worker}"
    at = f"at {death.at_env_steps:,} env steps"
    if "\n" not in death.reason:
        return f"{name} {death.reason} {at}: {outcome}"
    return f"{name} failed {at}: {outcome}\n{death.reason.rstrip()}"


def duration(seconds: float) -> str:
    """Return a time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def result_text(summary: Mapping[str, Any]) -> str:
    """Return the end of a run as a few lines of text."""
    rows = {
        "status": f"{summary['status']} after {duration(summary['wall_seconds'])}",
        "solved": _solved(summary["returns"]),
        "evaluation": _final_evaluation(summary),
        "trained": f"{summary['env_steps']:,} env steps, {summary['updates']:,} updates "
        f"in {summary['training_seconds']:.1f} s",
        "speed": _speed(summary),
        "replay ratio": _replay_ratio(summary["replay_ratio"]),
        "deaths": _deaths(summary["processes"]),
        "memory": _memory(summary["processes"]),
        "run folder": summary["folder"],
        "checkpoint": _checkpoint(summary["checkpoint"]),
    }
    title = f"{summary['strategy']} on {summary['env_id']}, seed {summary['seed']}"
    lines = [f"  {name:<13} {text}" for name, text in rows.items() if text]
    return "\n".join([title, *lines, "", *answer_lines(summary["answers"])])


def answer_lines(answers: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the six questions with their answers, wrapped."""
    lines = []
    width = max(LEAST_WIDTH, min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns))
    for number, each in enumerate(answers, start=1):
        lines.append(f"  {number}. {each['question']}")
        lines += textwrap.wrap(each["answer"], width, initial_indent=INDENT, subsequent_indent=INDENT)
    return lines


def _checkpoint(checkpoint: Mapping[str, Any] | None) -> str:
    if checkpoint is None or checkpoint["folder"] is None:
        reason = None if checkpoint is None else checkpoint["error"]
        return "none" + (f": {reason}" if reason else "")
    size, at = checkpoint["size_mib"], checkpoint["saved_at_env_steps"]
    replay = "with" if checkpoint["replay"] else "without"
    return f"{size:.1f} MiB {replay} replay, at {at:,} env steps (--resume goes on from there)"


def _solved(returns: Mapping[str, Any]) -> str:
    threshold = returns["threshold"]
    if threshold is None:
        return "this environment states no threshold"
    if returns["solved_at_seconds"] is None:
        number = len(returns["evaluations"])
        were = f"{number} evaluation{'' if number == 1 else 's'}"
        return f"no: it takes a mean of {threshold:g} three times running and at the end ({were})"
    training, command = returns["solved_at_seconds"], returns["solved_after_command_seconds"]
    return (
        f"yes, at {returns['solved_at_env_steps']:,} env steps: {training:.1f} s of training, "
        f"{command:.1f} s after the command was given"
    )


def _final_evaluation(summary: Mapping[str, Any]) -> str:
    returns = summary["returns"]
    if returns["eval_mean"] is None:
        return "none"
    text = f"mean return {return_text(returns['eval_mean'])}, std {return_text(returns['eval_std'])}"
    which = "final weights" if summary["status"] == "completed" else "last evaluation"
    return f"{text}, over {returns['eval_episodes']} episodes ({which})"


def _speed(summary: Mapping[str, Any]) -> str:
    if summary["env_steps_per_second"] is None:
        return "unknown: no update was made"
    return (
        f"{summary['env_steps_per_second']:,.0f} env steps/s, "
        f"{summary['updates_per_second']:,.0f} updates/s while learning"
    )


def _replay_ratio(ratio: Mapping[str, Any]) -> str:
    achieved = "none" if ratio["achieved"] is None else f"{ratio['achieved']:.4g}"
    asked = "derived" if ratio["requested"] is None else f"asked {ratio['requested']}"
    return f"{asked}, achieved {achieved} updates per env step"


def _deaths(processes: Mapping[str, Any]) -> str:
    """Return who died how often; nothing if nobody did."""
    names = [f"{death['role']}-{death['worker']}" for death in processes["deaths"]]
    if not names:
        return ""
    often = {name: names.count(name) for name in names}
    said = [name if number == 1 else f"{name} ({number} times)" for name, number in often.items()]
    return f"{', '.join(said)}; restarts: {processes['restarts']}"


def _memory(processes: Mapping[str, Any]) -> str:
    parts = [f"{name} {mib:.0f} MiB" for name, mib in processes["peak_rss_mib"].items()]
    parts.append(f"supervisor {processes['supervisor_rss_mib']:.0f} MiB")
    parts.append(f"evaluator {processes['evaluator_rss_mib']:.0f} MiB")
    parts.append(f"shared {processes['shared_mib']:.1f} MiB")
    return ", ".join(parts)
