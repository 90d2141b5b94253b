"""What a run came to: the result, read from the shared counters once nobody writes them any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from common.audit import AuditReader
from common.evaluate import EvaluationRecord
from common.experience import ExperienceBuffer
from common.processes import Role
from common.saving import shared_parts
from common.telemetry import ACTIVITIES, COUNTERS, HISTOGRAMS, LENGTHS, WORD, Telemetry
from common.types import Evaluation, RoleReport, RunResult

if TYPE_CHECKING:
    from common.supervisor import Shared

TRAIN_RETURNS = 100


def make_result(
    status: str,
    error: str | None,
    telemetry: Telemetry,
    shared: Shared,
    buffer: ExperienceBuffer | None,
    roles: Sequence[Role],
    record: EvaluationRecord,
    final: Evaluation | None,
    reports: list[RoleReport],
    audit: AuditReader,
    held_seconds: float,
) -> RunResult:
    """Return everything that was counted.

    Args:
        status: ``completed``, ``interrupted`` or ``failed``.
        error: what ended the run, if something did.
        telemetry: the counters.
        shared: the weights.
        buffer: the experience buffer, if there is one.
        roles: what was started, with what it was given.
        record: the evaluations.
        final: the last one, of the final weights.
        reports: one per process; counters are filled in here.
        audit: the reader that has followed the counts.
        held_seconds: time that evaluations took off the training clock.
    """
    vector = shared.latest()
    best = record.best_weights
    audited = audit_report(shared, audit)
    return RunResult(
        status=status,
        error=error,
        env_steps=telemetry.total("env_steps"),
        updates=telemetry.total("updates"),
        evaluations=record.evaluations,
        final_weights=vector,
        best_weights=vector if best is None else best,
        best_mean=record.best_mean,
        solved_at=record.solved_at,
        final_evaluation=final,
        train_returns=telemetry.last_returns(TRAIN_RETURNS),
        shared_mib=shared_mib(telemetry, roles),
        in_flight_at_end=in_flight(telemetry, buffer),
        roles=fill_in(telemetry, reports),
        audit=audited,
        lost_by_element=audit.lost_by_element() if audited else None,
        layout=shared.spec.layout(),
        spans=[telemetry.spans(role) for role in range(len(reports))],
        histograms={name: telemetry.histogram(name) for name in HISTOGRAMS},
        lengths={name: telemetry.lengths(name) for name in LENGTHS},
        consumed_by_worker=telemetry.consumed_by_worker(),
        most_sampled=telemetry.most_sampled(),
        **windows(telemetry, held_seconds),
    )


def audit_report(shared: Shared, audit: AuditReader) -> dict[str, Any] | None:
    """Return the audit's block of the summary; None if nothing was written."""
    updates = shared.master.updates_issued
    if updates == 0:
        return None
    state = shared.optimizer_state
    return audit.report() if state is None else audit.report(state.describe(updates))


def windows(telemetry: Telemetry, held_seconds: float) -> dict[str, Any]:
    """Return the training time and the steady window, on the clocks of the roles themselves.

    The training time is that of all parts of a run. The steady window lies in this part of it.
    """
    words = telemetry.arrays["words"]
    started = [int(row[WORD["started_ns"]]) for row in words if row[WORD["started_ns"]]]
    end_ns = max(_end_ns(row) for row in words)
    own_seconds = (end_ns - min(started)) / 1e9 - held_seconds if started else 0.0
    training = telemetry.before.training_seconds + own_seconds
    writers = [row for row in words if row[WORD["first_update_ns"]]]
    if not writers:
        nothing = {"steady_seconds": None, "steady_env_steps": 0, "steady_updates": 0}
        return {"training_seconds": training, **nothing}
    first = min(writers, key=lambda row: int(row[WORD["first_update_ns"]]))
    held_ns = int(first[WORD["held_ns"]] - first[WORD["held_ns_at_first_update"]])
    before = int(first[WORD["env_steps_at_first_update"]])
    steady_ns = end_ns - int(first[WORD["first_update_ns"]]) - held_ns
    return {
        "training_seconds": training,
        "steady_seconds": max(steady_ns, 1) / 1e9,
        "steady_env_steps": telemetry.total("env_steps") - before,
        "steady_updates": telemetry.total("updates") - telemetry.before.updates,
    }


def _end_ns(words: Any) -> int:
    """Return when a process ended; one that was killed, when it was last heard of."""
    return int(max(words[WORD["finished_ns"]], words[WORD["heartbeat_ns"]]))


def shared_mib(telemetry: Telemetry, roles: Sequence[Role]) -> float:
    """Return the size of what the processes share."""
    parts = [telemetry.arrays, *shared_parts(roles).values()]
    return sum(part.num_bytes for part in parts) / 2**20


def in_flight(telemetry: Telemetry, buffer: ExperienceBuffer | None) -> int:
    """Count the transitions in rows that were published and never taken in by a learner."""
    if buffer is None:
        return 0
    taken = telemetry.total("stored") + telemetry.total("dropped")
    published = sum(
        buffer.env_steps_until(worker, buffer.published(worker)) for worker in range(buffer.num_workers)
    )
    return published - taken


def fill_in(telemetry: Telemetry, reports: list[RoleReport]) -> list[RoleReport]:
    """Add to each process's report what it has counted itself."""
    for report, words in zip(reports, telemetry.arrays["words"], strict=True):
        report.counters = {name: int(words[WORD[name]]) for name in COUNTERS}
        report.activities = {name: float(words[WORD[name]]) / 1e9 for name in ACTIVITIES}
        started_ns = int(words[WORD["started_ns"]])
        if started_ns:
            report.wall_seconds = max(0, _end_ns(words) - started_ns) / 1e9
    return reports
