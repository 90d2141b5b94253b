"""``summary.json``: the one place that says what a run's numbers are called and how they are made."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import strategies
from bench.answers import answers
from bench.diagnosis import diagnose
from common import distributions
from common.audit import REPORT_FIELDS
from common.config import Config
from common.distributions import EDGES, LARGEST, NUM_BINS
from common.telemetry import ACTIVITIES, HEALTH
from common.types import Evaluation, RoleReport, RunResult

SCHEMA = 1

CLOCKS = ("env_steps", "updates")
LENGTH_BINS = 4
# Time that a process did not book; more than this would hide something.
MAX_OTHER_FRACTION = 0.02


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What the runner knows of a run and its result does not.

    Attributes:
        run_id: names the run.
        folder: where its files are.
        started_at: local time, ISO 8601.
        wall_seconds: from the command's start to the summary.
        threshold: the environment's mean return that counts as solved.
        supervisor_rss_mib: the supervisor's highest sampled memory.
        machine: see ``bench.machine``.
        versions: likewise.
        commit: likewise.
    """

    run_id: str
    folder: Path
    started_at: str
    wall_seconds: float
    threshold: float | None
    supervisor_rss_mib: float
    machine: Mapping[str, Any]
    versions: Mapping[str, Any]
    commit: str | None
    warmup_env_steps: int | None = None


def make_summary(strategy: str, config: Config, result: RunResult, facts: RunFacts) -> dict[str, Any]:
    """Return everything there is to say about a run, ready for JSON."""
    has_replay = "replay_capacity" not in strategies.traits_of(strategy).unused_options
    is_counted = not has_replay or _draws_are_whole(result)
    consumed = sum(result.consumed_by_worker) if is_counted else 0
    is_derived = strategies.traits_of(strategy).ratios == ("derived",)
    summary = {
        "schema": SCHEMA,
        "strategy": strategy,
        "env_id": config.env_id,
        "seed": config.seed,
        "status": result.status,
        "config": dataclasses.asdict(config),
        "machine": facts.machine,
        "versions": facts.versions,
        "commit": facts.commit,
        "wall_seconds": facts.wall_seconds,
        **_throughput(result),
        "replay_ratio": {
            "requested": None if is_derived else config.replay_ratio,
            "achieved": _ratio(
                result.updates, max(0, result.env_steps - _warmup(strategy, config, facts))
            ),
            "samples_per_insert": _ratio(consumed, result.total("stored")) if consumed else None,
            "target_copies": _target_copies(strategy, result),
        },
        "returns": _returns(result, facts.threshold),
        "audit": _audit(config, result),
        "policy_lag": _distribution(result, "policy_lag", "updates"),
        "acting_lag": _distribution(result, "acting_lag", "updates"),
        "gradient_staleness": _distribution(result, "gradient_staleness", "updates"),
        "sample_age": _distribution(result, "sample_age", "env steps"),
        "experience": _experience(config, result, has_replay, is_counted),
        "health": _health(result),
        "time": {
            "roles": _activities(result.roles, lambda role: role.name),
            "processes": _activities(result.roles, lambda role: f"{role.name}-{role.worker}"),
            "bottleneck": None,
            "verdict": None,
            "suggestion": None,
        },
        "processes": _processes(config, result, facts),
        "checkpoint": _checkpoint(result),
        "resume": None,
        "run_id": facts.run_id,
        "folder": str(facts.folder),
        "started_at": facts.started_at,
        "error": result.error,
    }
    summary["time"] = {**summary["time"], **diagnose(summary)}
    clean: dict[str, Any] = finite(summary)
    clean["answers"] = answers(clean)
    return clean


def _target_copies(strategy: str, result: RunResult) -> int | None:
    """Return how often a target network was copied to; each process may have its own."""
    if "target_update" in strategies.traits_of(strategy).unused_options:
        return None
    return max((role.counters.get("target_copies", 0) for role in result.roles), default=0)


def _warmup(strategy: str, config: Config, facts: RunFacts) -> int:
    """Return the env steps for which no update was owed."""
    if "warmup_env_steps" in strategies.traits_of(strategy).unused_options:
        return 0
    return config.warmup_env_steps if facts.warmup_env_steps is None else facts.warmup_env_steps


def _audit(config: Config, result: RunResult) -> dict[str, Any]:
    """Return what was counted; null means "not measured", never zero."""
    if result.audit is not None:
        return result.audit
    reason = "the run ended without a report" if result.updates else "no update was made"
    nothing = dict.fromkeys(REPORT_FIELDS)
    return {**nothing, "enabled": config.audit, "auditable": False, "reason": reason}


def _throughput(result: RunResult) -> dict[str, Any]:
    steady = result.steady_seconds
    return {
        "env_steps": result.env_steps,
        "updates": result.updates,
        "env_steps_per_second": _ratio(result.steady_env_steps, steady),
        "updates_per_second": _ratio(result.steady_updates, steady),
        "training_seconds": result.training_seconds,
        "steady_seconds": steady,
        "warmup_env_steps": result.env_steps - result.before.env_steps - result.steady_env_steps,
        # The two clocks are read by different processes, microseconds apart.
        "warmup_seconds": max(
            0.0, result.training_seconds - result.before.training_seconds - (steady or 0.0)
        ),
    }


def _returns(result: RunResult, threshold: float | None) -> dict[str, Any]:
    last = result.evaluations[-1] if result.evaluations else None
    judged = result.final_evaluation or last
    solved = result.solved_at if _final_holds(result, threshold) else None
    train = result.train_returns
    return {
        "eval_mean": judged.mean if judged else None,
        "eval_std": judged.std if judged else None,
        "eval_episodes": len(judged.episode_returns) if judged else None,
        "train_last_100_mean": float(np.mean(train)) if train else None,
        "threshold": threshold,
        "solved_at_seconds": solved.training_seconds if solved else None,
        "solved_at_env_steps": solved.env_steps if solved else None,
        "solved_after_command_seconds": solved.command_seconds if solved else None,
        "best_mean": result.best_mean,
        "evaluations": [_evaluation_row(evaluation) for evaluation in result.evaluations],
    }


def _final_holds(result: RunResult, threshold: float | None) -> bool:
    final = result.final_evaluation
    return final is not None and threshold is not None and final.mean >= threshold


def _evaluation_row(evaluation: Evaluation) -> list[float]:
    return [
        evaluation.env_steps,
        evaluation.updates,
        evaluation.training_seconds,
        evaluation.mean,
    ]


def _distribution(result: RunResult, name: str, unit: str) -> dict[str, Any] | None:
    """Return p50, p95 and max in the headline unit, and in the others that were measured."""
    found = distributions.quantiles(result.histograms[name]) if name in result.histograms else None
    if found is None:
        return None
    block: dict[str, Any] = {**found, "unit": unit}
    for other in ("updates", "env_steps"):
        places = result.histograms.get(f"{name}_{other}")
        if places is not None:
            block[other] = distributions.quantiles(places)
    microseconds = result.histograms.get(f"{name}_microseconds")
    spans = None if microseconds is None else distributions.quantiles(microseconds)
    if spans is not None:
        block["milliseconds"] = {key: value / 1000 for key, value in spans.items()}
    return block


def _draws_are_whole(result: RunResult) -> bool:
    """Return whether everybody who drew from replay lived to say what: it is told at the end."""
    learners = [role for role in result.roles if role.name != "actor"]
    return all(role.restarts == 0 and role.imports_torch is not None for role in learners)


def _experience(
    config: Config, result: RunResult, has_replay: bool, is_counted: bool
) -> dict[str, Any]:
    collectors = [role for role in result.roles if role.name != "learner"]
    env_steps = [role.counters.get("env_steps", 0) for role in collectors]
    consumed = result.consumed_by_worker
    known = is_counted and sum(consumed) > 0
    workers = [
        {
            "worker": role.worker,
            "env_steps": own,
            "episodes": role.counters.get("episodes", 0),
            "updates": role.counters.get("updates", 0),
            "share_collected": _ratio(own, sum(env_steps)),
            "share_consumed": _ratio(consumed[role.worker], sum(consumed)) if known else None,
        }
        for role, own in zip(collectors, env_steps, strict=True)
    ]
    # A process that reached its end has published all it had; one that died, all but a chunk.
    died = sum(role.restarts + (role.imports_torch is None) for role in collectors)
    rows = getattr(config, "rollout_length", config.chunk_steps) + config.n_step
    chunk = config.envs_per_worker * rows
    return {
        "workers": workers,
        "episode_length": _by_episode_length(result, has_replay, is_counted),
        "jain_collected": _jain(env_steps),
        "jain_consumed": _jain(consumed) if known else None,
        "collected": result.total("env_steps"),
        "stored": result.total("stored"),
        "dropped": result.total("dropped"),
        "in_flight_at_end": result.in_flight_at_end,
        "unpublished_at_most": died * chunk,
    }


def _by_episode_length(
    result: RunResult, has_replay: bool, is_counted: bool
) -> list[dict[str, Any]] | None:
    """Return the shares of what was collected and consumed, in quarters by episode length.

    With replay it is what the replay took in and what was drawn from it; null where the draws were not
    all counted. Where each transition is learned from once, both are the same.
    """
    if not result.lengths:
        return None
    kinds = ("taken_in", "consumed") if has_replay and is_counted else ("collected", "collected")
    collected, consumed = (result.lengths[kind][:NUM_BINS] for kind in kinds)
    if has_replay and not is_counted:
        consumed = np.zeros_like(consumed)
    if collected.sum() == 0:
        return None
    # By env steps, not by episodes: a thousand short episodes must not hide a long one.
    middle = (np.cumsum(collected) - collected / 2) / collected.sum()
    quarter = (middle * LENGTH_BINS).astype(int)
    longest = int(result.lengths[kinds[0]][LARGEST])
    rows = []
    for number in range(LENGTH_BINS):
        bins = np.flatnonzero((quarter == number) & (collected > 0))
        if len(bins) == 0:
            continue
        last = bins[-1] + 1
        rows.append(
            {
                "from": int(EDGES[bins[0]]),
                "to": min(longest, int(EDGES[last]) - 1) if last < NUM_BINS else longest,
                "share_collected": float(collected[bins].sum() / collected.sum()),
                "share_consumed": _ratio(float(consumed[bins].sum()), float(consumed.sum())),
            }
        )
    return rows


def _health(result: RunResult) -> dict[str, Any]:
    """Return the last sample, and the alarms; null where nothing was measured."""
    names = [name for name in HEALTH if name not in CLOCKS]
    last = result.health[-1] if result.health else dict.fromkeys(names)
    first = result.health[0]["weight_norm"] if result.health else None
    return {
        **{name: last[name] for name in names},
        "most_sampled": result.most_sampled or None,
        "q_bias": result.q_bias,
        "weight_norm_growth": _ratio(last["weight_norm"] or 0.0, first) if first else None,
        "alarms": [dataclasses.asdict(alarm) for alarm in result.alarms],
    }


def _jain(shares: Sequence[float]) -> float | None:
    """Return Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = sum(share * share for share in shares)
    return _ratio(sum(shares) ** 2, len(shares) * squares)


def _activities(
    roles: Sequence[RoleReport], group: Callable[[RoleReport], str]
) -> dict[str, dict[str, float]]:
    """Return, per group of processes, the fraction of its wall time that each activity took.

    ``other`` is what no activity was booked for.
    """
    members: dict[str, list[RoleReport]] = {}
    for role in roles:
        if role.wall_seconds > 0:
            members.setdefault(group(role), []).append(role)
    return {name: _fractions(each) for name, each in members.items()}


def _fractions(roles: Sequence[RoleReport]) -> dict[str, float]:
    wall = sum(role.wall_seconds for role in roles)
    fractions = {
        activity: sum(role.activities[activity] for role in roles) / wall for activity in ACTIVITIES
    }
    fractions = {activity: share for activity, share in fractions.items() if share > 0}
    return {**fractions, "other": 1.0 - sum(fractions.values())}


def _processes(config: Config, result: RunResult, facts: RunFacts) -> dict[str, Any]:
    names = list(dict.fromkeys(role.name for role in result.roles))
    by_name = {name: [role for role in result.roles if role.name == name] for name in names}
    return {
        "workers": config.workers,
        "restarts": result.restarts,
        "deaths": [dataclasses.asdict(death) for death in result.deaths],
        "peak_rss_mib": {
            name: max(role.peak_rss_mib for role in roles) for name, roles in by_name.items()
        },
        "start_seconds": {
            name: _most(role.start_seconds for role in roles) for name, roles in by_name.items()
        },
        "threads": {name: _threads(roles) for name, roles in by_name.items()},
        "imports_torch": {
            name: _most(role.imports_torch for role in roles) for name, roles in by_name.items()
        },
        "device": {name: _most(role.device for role in roles) for name, roles in by_name.items()},
        "shared_mib": result.shared_mib,
        "supervisor_rss_mib": facts.supervisor_rss_mib,
        "evaluator_rss_mib": result.evaluator_rss_mib,
        "cpu_seconds": {name: _sum(map(_cpu_seconds, roles)) for name, roles in by_name.items()},
        "cpu_utilisation": _cpu_utilisation(result, facts),
    }


def _cpu_utilisation(result: RunResult, facts: RunFacts) -> float | None:
    """Return the processes' CPU time over the training time of the cores that they could use.

    While everybody is held for an evaluation, the clock stands still and so, nearly, does CPU time.
    """
    cores = min(len(result.roles), int(facts.machine.get("usable_cores", 1)))
    spent = _sum(map(_cpu_seconds, result.roles))
    seconds = result.training_seconds - result.before.training_seconds
    return None if spent is None else _ratio(spent, seconds * cores)


def _cpu_seconds(role: RoleReport) -> float | None:
    """Return what a process used in this part of the run; the one it took the place of told nobody."""
    return None if role.restarts else role.cpu_seconds


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part of it is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _most(values: Any) -> Any:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _threads(roles: Sequence[RoleReport]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for role in roles:
        for library, number in role.threads.items():
            limits[library] = max(number, limits.get(library, 0))
    return limits


def _checkpoint(result: RunResult) -> dict[str, Any] | None:
    """Return where the last checkpoint is and what making them took; null if there was to be none."""
    report = result.checkpoint
    if report is None:
        return None
    return {
        "folder": None if report.folder is None else str(report.folder),
        "size_mib": report.num_bytes / 2**20,
        "replay": report.replay,
        "saved_at_env_steps": report.saved_at_env_steps,
        "saves": report.saves,
        "longest_hold_seconds": report.held_seconds,
        "longest_save_seconds": report.save_seconds,
        "error": report.error,
    }


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def finite(value: Any) -> Any:
    """Return ``value`` with every number JSON lacks (NaN, infinity) as None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write a file whole or not at all: a reader never sees half of it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(json.dumps(value, indent=indent, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # it is still there only if the disk was full or the like
