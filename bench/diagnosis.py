"""What holds a run back, from where its time went: a verdict with its number, and a flag to try.

Whoever waits is not the bottleneck; what it waits for is. So waiting is looked at first: the learner
for data, the actors for the learner, anybody for a lock or at a barrier. Where nobody waits much, it is
the activity that takes most of the time. Evaluations and checkpoints are left out of all shares:
everybody stands still meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import suggestions
from bench.time_shares import MUCH, WORK, Run, most_work, read, slow_worker, waiting

SAME = 0.10  # two waits closer than this are alike

NOTHING: dict[str, str | None] = {"bottleneck": None, "verdict": None, "suggestion": None}


@dataclass(frozen=True)
class Finding:
    """One bottleneck: its name, the sentence with its number, and what to try."""

    bottleneck: str
    verdict: str
    suggestion: str

    def as_dict(self) -> dict[str, str | None]:
        """Return the three fields of ``summary["time"]``.

        Verdict and suggestion are without a capital and a full stop: who shows them says
        "<verdict>. Try <suggestion>."
        """
        label = self.bottleneck if self.bottleneck == "balanced" else f"{self.bottleneck}-bound"
        return {
            "bottleneck": self.bottleneck,
            "verdict": f"{label}: {self.verdict}",
            "suggestion": self.suggestion,
        }


def diagnose(summary: Mapping[str, Any]) -> dict[str, str | None]:
    """Return ``bottleneck``, ``verdict`` and ``suggestion`` of a run; all None if nothing is known.

    Args:
        summary: as in ``summary.json``; only ``strategy``, ``config``, ``machine``, ``time``,
            ``updates`` and ``experience`` are looked at.
    """
    if not summary.get("updates"):
        return NOTHING  # it never came to learning
    run = read(summary)
    if {"actor", "learner"} <= set(run.roles):
        finding = _two_sides(run)
    elif run.roles:
        finding = _all_in_one(run)
    else:
        return NOTHING
    return finding.as_dict()


# Actors on one side and a learner on the other.


def _two_sides(run: Run) -> Finding:
    learner, actor = run.roles["learner"], run.roles["actor"]
    if "barrier" in learner or "barrier" in actor:
        return _at_a_barrier(run)
    learner_waits, actors_wait = waiting(learner), waiting(actor)
    if run.is_crowded and max(learner_waits, actors_wait) < MUCH:
        return _too_few_cores(run)
    if abs(learner_waits - actors_wait) < SAME or max(learner_waits, actors_wait) < MUCH:
        return _balanced(run, learner_waits, actors_wait)
    if learner_waits > actors_wait:
        verdict = f"the learner waits {learner_waits:.0%} of its time for data"
        return Finding("collection", verdict, suggestions.collect_more(run))
    return _learning(run, f"the actors wait {actors_wait:.0%} of their time for the learner")


def _at_a_barrier(run: Run) -> Finding:
    """Judge a round: its time is collecting, waiting for the slowest worker, and learning."""
    waits = {
        name: waiting(shares) for name, shares in run.processes.items() if name.startswith("actor")
    }
    slowest = min(waits, key=lambda name: waits[name])
    others = [share for name, share in waits.items() if name != slowest] or [waits[slowest]]
    learning = 1 - waiting(run.roles["learner"])
    for_slowest = max(0.0, statistics.mean(others) - learning)
    collecting = 1 - learning - for_slowest
    if for_slowest >= max(MUCH, learning, collecting):
        return _barrier(run, for_slowest)
    if collecting >= learning:
        verdict = f"the learner waits {1 - learning:.0%} of its time at the barrier for the actors"
        return Finding("collection", verdict, suggestions.collect_more(run))
    return _learning(
        run, f"the actors wait at the barrier {learning:.0%} of the time while the learner works"
    )


def _barrier(run: Run, share: float) -> Finding:
    straggler = slow_worker(run)
    if straggler is not None:
        verdict = (
            f"the others wait {share:.0%} of their time for worker {straggler}, which steps slowly"
        )
        return Finding(
            "barrier",
            verdict,
            f"{suggestions.cure_straggler(run, straggler)}, or take a strategy without a barrier "
            "(--strategy apex), where a slow worker costs only its own share",
        )
    verdict = f"the actors wait {share:.0%} of their time at the barrier while nobody learns"
    longer = f"{suggestions.double(run, 'chunk_steps')} or {suggestions.double(run, 'envs_per_worker')}"
    return Finding(
        "barrier",
        verdict,
        f"longer rounds, over which slow steps even out: {longer}{suggestions.note_on_cores(run)}; or "
        "a strategy without a barrier (--strategy apex)",
    )


def _learning(run: Run, verdict: str) -> Finding:
    """Suggest less for the learner to do. More actors would only wait longer."""
    learner = run.roles["learner"]
    kind, share = most_work(learner)
    only = "; more actors would only wait longer"
    if run.is_crowded:
        only += f", and {suggestions.fewer_workers(run)} would leave the learner more of the cores"
    if kind == "sampling":
        verdict += f", which spends {share:.0%} of its own on batches and priorities"
        return Finding("sampling", verdict, suggestions.draw_less(run) + only)
    gpu = suggestions.accelerator(run) if kind == "update" else ""
    return Finding("learning", verdict, suggestions.learn_less(run) + gpu + only)


def _balanced(run: Run, learner_waits: float, actors_wait: float) -> Finding:
    verdict = (
        f"the learner waits {learner_waits:.0%} of its time and the actors {actors_wait:.0%}, so "
        "neither side holds the other back"
    )
    if min(learner_waits, actors_wait) >= 2 * MUCH:
        more = " or ".join(
            suggestions.double(run, name)
            for name in ("chunk_steps", "envs_per_worker")
            if run.takes(name)
        )
        return Finding("balanced", verdict, f"more to do at a time for each side: {more}")
    return Finding("balanced", verdict, f"faster parts or more cores{suggestions.note_on_cores(run)}")


# One process, or many that all do the same.


def _all_in_one(run: Run) -> Finding:
    shares = next(iter(run.roles.values()))
    kind, share = most_work(shares)
    lock, held_back = shares.get("lock", 0.0), shares.get("wait", 0.0)
    if lock >= max(MUCH, share / 2):
        return _lock(run, lock)
    if held_back >= max(MUCH, share / 2):
        verdict = f"the workers wait {held_back:.0%} of their time for the slowest of them"
        straggler = slow_worker(run)
        who = "" if straggler is None else f", or {suggestions.cure_straggler(run, straggler)}"
        return Finding(
            "staleness", verdict, f"a larger --max-staleness, which lets them run ahead{who}"
        )
    if run.is_crowded:
        return _too_few_cores(run)
    verdict = f"{WORK[kind][1]} {share:.0%} of the time"
    return Finding(kind, verdict, suggestions.for_work(run, kind))


def _lock(run: Run, share: float) -> Finding:
    verdict = f"the workers wait {share:.0%} of their time for the lock"
    parts = []
    if run.config.get("write") == "copy-back":
        parts.append("--write in-place, which needs the lock for the addition alone")
    parts.append("--no-lock, if the updates it loses are few ('bench audit' counts them)")
    if run.config.get("workers", 1) > 1:
        parts.append(f"fewer workers (--workers {run.config['workers'] // 2})")
    return Finding("lock", verdict, ", or ".join(parts))


def _too_few_cores(run: Run) -> Finding:
    number = len(run.processes)
    verdict = f"{run.busy:.1f} of {number} processes are at work at a time, on {suggestions.cores(run)}"
    return Finding("core", verdict, f"{suggestions.fewer_workers(run)}, or more cores")
