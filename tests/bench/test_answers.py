"""What is printed of a run's audit, from blocks that the audit itself made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.answers import answers, lost_updates_answer, optimizer_state_answer
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
    assert lost_updates_answer(block) == (
        "Are updates overwritten? No: 0 of 6,000 writes in 6 updates are lost."
    )
    assert optimizer_state_answer(block) == "Optimizer state: each writer has its own."
    assert answers({"audit": block}) == [lost_updates_answer(block), optimizer_state_answer(block)]


def test_losses_are_counted_and_bounded() -> None:
    master, writers = make_writers(1_000, 2)
    for writer in writers * 50:
        update(writer, 1_000)
    master.weights[10:20] -= TAG
    master.weights[15] -= 2 * TAG
    text = lost_updates_answer(AuditReader(master).report())
    assert text == (
        "Are updates overwritten? Yes: 12 of 100,000 writes in 100 updates are lost (0.00012). "
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
    assert text.startswith(f"Are updates overwritten? {expected}")
    assert "writes" not in text and text.count("?") == 1


def test_a_run_without_an_update_is_not_auditable() -> None:
    block = {**dict.fromkeys(REPORT_FIELDS), "enabled": True, "auditable": False, "reason": "no update"}
    assert lost_updates_answer(block) == "Are updates overwritten? Not auditable: no update."
    assert optimizer_state_answer(block) == "Optimizer state: nothing is known of it."
