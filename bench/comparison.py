"""What a comparison is: which runs, under which budgets, and the folder that holds them.

    DIR/comparison.json                                   the plan, and how far it is
    DIR/runs/<budget>/<strategy>[-param=value]/seed<k>/   a run folder each
    DIR/table.md, table.csv, table.json                   the result

Nothing here starts a process; ``bench.sequence`` does.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import strategies
from bench.machine import commit, machine, versions
from bench.options import make_config
from bench.summary import finite, write_json
from common.config import Config, ConfigError
from common.envs import inspect_env

SCHEMA = 1
NEVER = 10**12  # env steps, where seconds are the budget
PEER = "sb3-dqn"
BASELINE = "single"

# How wide a strategy is spread is what strategies differ in: these reach those that have a use for
# them. Any other must have a use in all of them, or it would make them differ in something else.
WIDTH_OPTIONS = ("workers", "envs_per_worker")


@dataclass(frozen=True)
class Budget:
    """What every run may use: the same env steps, or the same seconds of training."""

    name: str
    steps: int | None = None
    seconds: float | None = None

    @property
    def choices(self) -> dict[str, Any]:
        """Return the budget as choices of a run."""
        if self.steps is not None:
            return {"steps": self.steps}
        return {"steps": NEVER, "seconds": self.seconds}

    @property
    def text(self) -> str:
        """Return the budget in words."""
        return f"{self.steps:,} env steps" if self.steps is not None else f"{self.seconds:g} s"


@dataclass
class PlannedRun:
    """One run of a comparison, done or not.

    Attributes:
        budget: the budget's name.
        strategy: a registered name, or ``PEER``.
        seed: its seed.
        param: the swept options' values, if it is a sweep.
        status: ``pending``, ``completed``, ``failed`` or ``interrupted``.
        error: a line about why it failed.
    """

    budget: str
    strategy: str
    seed: int
    param: dict[str, Any] | None = None
    status: str = "pending"
    error: str | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        """What the runs that differ in the seed alone have in common."""
        return (self.budget, self.strategy, param_text(self.param, "-"))

    @property
    def path(self) -> Path:
        """The run's folder, relative to the comparison's."""
        _, strategy, param = self.group
        name = f"{strategy}-{param}" if param else strategy
        return Path("runs") / self.budget / name / f"seed{self.seed}"

    @property
    def label(self) -> str:
        """The run in a few words."""
        param = f" ({param_text(self.param, ', ')})" if self.param else ""
        return f"{self.strategy}{param}, seed {self.seed}"


def param_text(param: Mapping[str, Any] | None, between: str) -> str:
    """Return swept values as ``name=value``; a value is written as the command line reads it."""
    return between.join(f"{name}={value_text(value)}" for name, value in (param or {}).items())


def value_text(value: Any) -> str:
    """Return an option's value as the command line reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else f"{value}"


@dataclass
class Comparison:
    """Everything in ``comparison.json``.

    Attributes:
        folder: where all of it is.
        kind: ``compare`` or ``sweep``.
        env_id: the environment of all runs.
        budgets: one after the other.
        strategies: in the table's order.
        seeds: each with every strategy.
        param: names and values of a sweep: ``{"names": [..], "values": [[..], ..]}``.
        workers: as chosen, for the strategies that have workers.
        options: what else was chosen, for all runs.
        runs: in the order in which they are done.
    """

    folder: Path
    kind: str
    env_id: str
    budgets: list[Budget]
    strategies: list[str]
    seeds: list[int]
    param: dict[str, list[Any]] | None = None
    workers: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    runs: list[PlannedRun] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)
    versions: dict[str, Any] = field(default_factory=versions)
    commit: str | None = field(default_factory=commit)
    started_at: str = field(
        default_factory=lambda: datetime.now().astimezone().isoformat(timespec="seconds")
    )

    def __post_init__(self) -> None:
        if not self.runs:
            self.runs = list(self._plan())

    def _plan(self) -> Iterator[PlannedRun]:
        """Yield the runs seed by seed: if the machine's speed drifts, it drifts for all strategies."""
        values: Sequence[dict[str, Any] | None] = [None]
        if self.param is not None:
            names = self.param["names"]
            grid = itertools.product(*self.param["values"])
            values = [dict(zip(names, point, strict=True)) for point in grid]
        for budget, seed in itertools.product(self.budgets, self.seeds):
            for strategy, param in itertools.product(self.strategies, values):
                yield PlannedRun(budget.name, strategy, seed, param)

    def budget_of(self, run: PlannedRun) -> Budget:
        """Return a run's budget."""
        (budget,) = [budget for budget in self.budgets if budget.name == run.budget]
        return budget

    def choices_of(self, run: PlannedRun) -> dict[str, Any]:
        """Return what ``bench run`` is told for a run."""
        chosen = {**self.options, "workers": self.workers}
        if self.workers is None:
            del chosen["workers"]
        useful = {
            name: value
            for name, value in chosen.items()
            if name not in WIDTH_OPTIONS or _has_width(run.strategy, name)
        }
        budget = self.budget_of(run).choices
        return {
            "env_id": self.env_id,
            "seed": run.seed,
            **budget,
            **useful,
            **(run.param or {}),
        }

    def config_of(self, run: PlannedRun) -> Config:
        """Return the configuration that a run has.

        Raises:
            ConfigError: a value is not allowed, or an option has no use in the strategy.
        """
        if run.strategy == PEER:
            from bench.peers import peer_config

            return peer_config(self.choices_of(run))
        return make_config(run.strategy, self.choices_of(run))

    def check(self) -> None:
        """Make the environment and every configuration once.

        Raises:
            ConfigError: one of them cannot work, or a package is missing.
        """
        inspect_env(self.env_id)
        if PEER in self.strategies:
            from bench.peers import require_peer

            require_peer()
        for run in self.runs:
            if run.seed == self.seeds[0]:
                self.config_of(run)

    def is_complete(self, run: PlannedRun) -> bool:
        """Return whether a run's folder holds the whole of the run that is planned."""
        summary = load_summary(self.folder / run.path)
        if summary is None or summary["status"] != "completed":
            return False
        planned = json.loads(json.dumps(finite(dataclasses.asdict(self.config_of(run)))))
        return bool(summary.get("strategy") == run.strategy and summary.get("config") == planned)

    def save(self) -> None:
        """Write ``comparison.json``, whole or not at all."""
        contents = {"schema": SCHEMA}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            contents[item.name] = [_as_dict(each) for each in value] if _is_rows(value) else value
        del contents["folder"]
        write_json(self.folder / "comparison.json", finite(contents))


def _has_width(strategy: str, name: str) -> bool:
    if strategy == PEER:
        return False
    traits = strategies.traits_of(strategy)
    return name not in traits.unused_options and not (name == "workers" and traits.single_process)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and dataclasses.is_dataclass(value[0])


def _as_dict(row: Budget | PlannedRun) -> dict[str, Any]:
    values = dataclasses.asdict(row)
    return {"run": row.path.as_posix(), **values} if isinstance(row, PlannedRun) else values


def load_summary(folder: Path) -> dict[str, Any] | None:
    """Return a run's summary; None if it is not there or not whole."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and "status" in summary else None


def load(folder: Path) -> Comparison:
    """Return the comparison that a folder holds.

    Raises:
        ConfigError: it holds none, or one of another schema.
    """
    path = folder / "comparison.json"
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        schema = contents.pop("schema")
        if schema == SCHEMA:
            runs = [
                PlannedRun(**{name: value for name, value in row.items() if name != "run"})
                for row in contents.pop("runs")
            ]
            budgets = [Budget(**row) for row in contents.pop("budgets")]
            return Comparison(folder=folder, budgets=budgets, runs=runs, **contents)
    except OSError as error:
        raise ConfigError(f"{folder} holds no comparison: {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{path} is not the plan of a comparison: {text}") from None
    raise ConfigError(f"{path} has the schema {schema}; this version reads {SCHEMA}")
