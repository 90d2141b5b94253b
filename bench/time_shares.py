"""Where a run's time went, as a summary tells it, in the terms of a diagnosis."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import strategies
from common.config import ConfigError

Shares = Mapping[str, float]

LEFT_OUT = ("evaluation", "checkpoint", "held")  # everybody stands still
WAITS = ("wait", "lock", "barrier")
# What takes the time of a process that does not wait: name of the bottleneck, activities, in words.
WORK = {
    "environment": (("env_step",), "stepping the environment takes"),
    "acting": (("act",), "choosing actions takes"),
    "writing": (("write",), "writing rows takes"),
    "sampling": (("sample", "priorities"), "drawing batches and keeping priorities takes"),
    "update": (("update",), "updates take"),
    "sharing": (("publish", "pull"), "copying weights takes"),
}

MUCH = 0.15  # a smaller wait is no bottleneck
CROWDED = 1.25  # processes at work per core from which the cores are what is short
SPARE_CORES = 0.75  # free cores from which one more worker has room


@dataclass(frozen=True)
class Run:
    """What a diagnosis looks at.

    Attributes:
        roles: share of its time that each activity takes, by role.
        processes: the same by process, for example ``actor-0``.
        config: the run's choices.
        unused: options without a use in its strategy.
        is_one_process: whether the strategy is one process that does everything.
        num_cores: that the run may use.
        collected: share of the env steps by worker.
    """

    roles: Mapping[str, Shares]
    processes: Mapping[str, Shares]
    config: Mapping[str, Any]
    unused: tuple[str, ...]
    is_one_process: bool
    num_cores: int
    collected: Mapping[int, float]

    @property
    def busy(self) -> float:
        """How many processes are at work at a time: those that share a core count as at work."""
        return sum(1 - waiting(shares) for shares in self.processes.values())

    @property
    def has_spare_core(self) -> bool:
        """Whether one more worker would find room."""
        return self.num_cores - self.busy >= SPARE_CORES

    @property
    def is_crowded(self) -> bool:
        """Whether clearly more processes are at work than there are cores."""
        return self.busy > CROWDED * self.num_cores

    def takes(self, name: str) -> bool:
        """Return whether an option exists for the strategy and has a use."""
        return name in self.config and name not in self.unused


def read(summary: Mapping[str, Any]) -> Run:
    """Return what the diagnosis needs of a summary, evaluations and checkpoints left out."""
    time, config = summary.get("time") or {}, summary.get("config") or {}
    roles = _without_evaluation(time.get("roles"))
    processes = _without_evaluation(time.get("processes")) or roles
    machine = summary.get("machine") or {}
    workers = (summary.get("experience") or {}).get("workers") or []
    unused: tuple[str, ...] = ()
    is_one_process = len(processes) == 1
    with contextlib.suppress(ConfigError):  # a saved run of a strategy that is not installed here
        traits = strategies.traits_of(summary["strategy"])
        unused, is_one_process = traits.unused_options, traits.single_process
    return Run(
        roles=roles,
        processes=processes,
        config=config,
        unused=unused,
        is_one_process=is_one_process,
        num_cores=machine.get("usable_cores") or machine.get("logical_cores") or len(processes),
        collected={int(row["worker"]): row.get("share_collected") or 0.0 for row in workers},
    )


def _without_evaluation(groups: Mapping[str, Shares] | None) -> dict[str, dict[str, float]]:
    kept: dict[str, dict[str, float]] = {}
    for name, shares in (groups or {}).items():
        rest = {key: value for key, value in shares.items() if key not in LEFT_OUT and value}
        total = sum(rest.values())
        if total > 0:
            kept[name] = {key: value / total for key, value in rest.items()}
    return kept


def waiting(shares: Shares) -> float:
    """Return the share of time that a process waits, for whatever it is."""
    return sum(shares.get(name, 0.0) for name in WAITS)


def most_work(shares: Shares) -> tuple[str, float]:
    """Return the kind of work that takes most of a role's time, and its share."""
    sums = {
        name: sum(shares.get(activity, 0.0) for activity in activities)
        for name, (activities, _) in WORK.items()
    }
    name = max(sums, key=lambda each: sums[each])
    return name, sums[name]


def slow_worker(run: Run) -> int | None:
    """Return the worker that steps its environments far slower than the others, if there is one.

    It spends more of its time stepping than any other. At a barrier that alone tells it; without one
    the others may be as busy with more steps, and it has then collected less than half a fair share.
    """
    stepping = {name: shares.get("env_step", 0.0) for name, shares in run.processes.items()}
    stepping = {name: share for name, share in stepping.items() if share > 0}
    if len(stepping) < 2:
        return None
    name = max(stepping, key=lambda each: stepping[each])
    others = statistics.median(share for each, share in stepping.items() if each != name)
    worker = int(name.rpartition("-")[2])
    is_starved = run.collected.get(worker, 1.0) < 0.5 / len(stepping)
    stands_out = stepping[name] - others >= MUCH and stepping[name] >= 2 * others
    return worker if stands_out or (is_starved and stepping[name] > others) else None
