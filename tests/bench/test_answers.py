"""What is printed of a run's audit, from blocks that the audit itself made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import answers
from bench.answers import lost_updates_answer, optimizer_state_answer
from bench.display import answer_lines
from common.audit import (
    FINISHED,
    REPORT_FIELDS,
    STARTED,
    TAG,
    AuditReader,
    MasterWriter,
    SharedMaster,
)


def make_writers(size: int, number: int, **choices: Any) -> tuple[SharedMaster, list[MasterWriter]]:
    master = SharedMaster(np.zeros(size, dtype=np.float32), number, **choices)
    return master, [MasterWriter(master, worker) for worker in range(number)]


def update(writer: MasterWriter, size: int) -> None:
    vector = np.empty(size, dtype=np.float32)
    writer.read_into(vector)
    writer.apply(vector)


def test_no_loss_is_a_plain_no() -> None:
    master, writers = make_writers(1_000, 2)
    for writer in writers * 3:
        update(writer, 1_000)
    block = AuditReader(master).report()
    assert lost_updates_answer(block) == ("No: 0 of 6,000 writes in 6 updates are lost.")
    assert optimizer_state_answer(block) == "Optimizer state: each writer has its own."


def test_losses_are_counted_and_bounded() -> None:
    master, writers = make_writers(1_000, 2)
    for writer in writers * 50:
        update(writer, 1_000)
    master.weights[10:20] -= TAG
    master.weights[15] -= 2 * TAG
    text = lost_updates_answer(AuditReader(master).report())
    assert text == (
        "Yes: 12 of 100,000 writes in 100 updates are lost (0.00012). "
        "10 of 1,000 elements lost some, the most-hit one 3, so that many updates are "
        "damaged at the least."
    )
    assert "whole" not in text and "Survivors" not in text


def test_whole_updates_are_told_by_worker() -> None:
    master, writers = make_writers(10, 2)
    for number in range(6):
        before = master.weights.copy()
        update(writers[number % 2], 10)
        if number in (0, 2, 3):
            master.weights[:] = before  # overwritten whole
    text = lost_updates_answer(AuditReader(master).report("shared, not audited"))
    assert "Yes: 30 of 60 writes in 6 updates are lost (0.5)." in text
    assert text.endswith("Lost whole: at most 3 updates. Survivors by worker: 0: 1 of 3, 1: 2 of 3.")
    state = AuditReader(master).report("shared, not audited")
    assert optimizer_state_answer(state) == "Optimizer state: shared, not audited."


def test_an_update_that_was_cut_off_makes_a_no_a_perhaps() -> None:
    master, (writer,) = make_writers(10, 1)
    update(writer, 10)
    master.words[0, STARTED] += 1
    text = lost_updates_answer(AuditReader(master).report())
    assert "Perhaps: 0 of 10 writes in 1 update are lost, and up to 10 more" in text
    master.words[0, FINISHED] += 1
    text = lost_updates_answer(AuditReader(master).report())
    assert "Yes: 10 of 20" in text and "more" not in text


@pytest.mark.parametrize("audit, expected", [(True, "Not auditable: a weight"), (False, "Not counted")])
def test_what_is_not_known_is_no_number(audit: bool, expected: str) -> None:
    master, (writer,) = make_writers(10, 1, audit=audit)
    update(writer, 10)
    master.weights[3] += TAG / 2  # as by somebody who averages
    text = lost_updates_answer(AuditReader(master).report())
    assert text.startswith(f"{expected}")
    assert "writes" not in text and "?" not in text


def test_a_run_without_an_update_is_not_auditable() -> None:
    block = {**dict.fromkeys(REPORT_FIELDS), "enabled": True, "auditable": False, "reason": "no update"}
    assert lost_updates_answer(block) == "Not auditable: no update."
    assert optimizer_state_answer(block) == "Optimizer state: nothing is known of it."


WORKERS = [
    {"worker": 0, "share_collected": 0.75, "updates": 90},
    {"worker": 1, "share_collected": 0.25, "updates": 10},
]
LENGTHS = [
    {"from": 8, "to": 12, "share_collected": 0.25, "share_consumed": 0.5},
    {"from": 13, "to": 500, "share_collected": 0.75, "share_consumed": 0.5},
]


def experience(**changes: Any) -> dict[str, Any]:
    return {
        "workers": WORKERS,
        "episode_length": LENGTHS,
        "jain_collected": 0.8,
        "jain_consumed": 0.7,
        **changes,
    }


def test_shares_name_who_gets_more_and_by_how_much() -> None:
    text = answers.fairness_answer(experience())
    for part in ("Worker 0", "75%", "50%", "0.800", "0.700", "90% of the updates", "more than their"):
        assert part in text
    assert "8 to 12" in text and "2.00" in text and "0.67" in text
    even = [{**row, "share_consumed": row["share_collected"]} for row in LENGTHS]
    assert "get their share" in answers.fairness_answer(experience(episode_length=even))
    fewer = [{**LENGTHS[0], "share_consumed": 0.1}, {**LENGTHS[1], "share_consumed": 0.9}]
    assert "less than their" in answers.fairness_answer(experience(episode_length=fewer))


def test_shares_that_were_not_measured_are_not_made_up() -> None:
    one = experience(workers=WORKERS[:1], episode_length=None, jain_consumed=None)
    assert answers.fairness_answer(one) == (
        "One worker collects everything. Shares by episode length were not measured."
    )
    nothing = experience(jain_collected=None, jain_consumed=None)
    assert "Nothing was collected" in answers.fairness_answer(nothing)


def test_ages_are_told_in_updates_and_time() -> None:
    lag = {"p50": 1, "p95": 20, "max": 3_000, "unit": "updates"}
    lag["milliseconds"] = {"p50": 1.0, "p95": 2.4, "max": 1_500.0}
    summary = dict.fromkeys(("gradient_staleness", "acting_lag", "sample_age"))
    block = {**summary, "policy_lag": lag, "audit": {"torn_reads_at_most": 4}}
    text = answers.staleness_answer(block)
    assert "1 / 20 / 3,000 updates (1 / 2 / 1,500 ms)" in text and "at most 4 reads" in text
    assert answers.staleness_answer({**block, "policy_lag": None}) == "Not measured."


def test_answers_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"question": "Why?", "answer": "word " * 40}
    for columns, widest in (("60", 60), ("200", 100), ("10", 40)):
        monkeypatch.setenv("COLUMNS", columns)
        lines = answer_lines([answer])
        assert widest - 10 < max(map(len, lines)) <= widest


def test_alarms_are_told_with_their_remedy() -> None:
    alarm = {"name": "divergence", "at_env_steps": 1_234, "meaning": "too high"}
    alarm["remedy"] = "--layer-norm"
    ratio = {"achieved": 0.251, "requested": 0.25, "samples_per_insert": 32.1}
    health = {"alarms": [], "q_max": 98.0, "q_bound": 100.0, "dormant_fraction": 0.25}
    health["most_sampled"] = 88.0
    healthy = answers.learning_answer(ratio, health, {"instruments": True})
    assert "0.251" in healthy and "asked: 0.25" in healthy and "88 times" in healthy
    assert "No alarm" in healthy and "25% of the units" in healthy
    told = answers.learning_answer(ratio, {**health, "alarms": [alarm]}, {"instruments": True})
    assert "DIVERGENCE since 1,234 env steps: too high; try: --layer-norm." in told
    off = answers.learning_answer(ratio, {**health, "q_max": None}, {"instruments": False})
    assert "not measured" in off
    assert answers.learning_answer({**ratio, "achieved": None}, health, {}) == "No update was made."


def test_a_gpu_can_save_no_more_than_the_updates_take() -> None:
    roles = {"learner": {"update": 0.6, "sample": 0.15, "evaluation": 0.25}, "actor": {"act": 1.0}}
    text = answers.gpu_answer({"time": {"roles": roles}, "updates": 1})
    assert "At most 5.0 times" in text and "80% of the learner's" in text  # 0.6 of the 0.75 at work
    assert answers.gpu_answer({"time": {"roles": {}}, "updates": 1}).startswith("Not known")
    assert answers.gpu_answer({"time": {"roles": roles}, "updates": 0}).startswith("Not known")
