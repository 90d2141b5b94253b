"""What a run answers, in words: made from its summary alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def answers(summary: Mapping[str, Any]) -> list[str]:
    """Return the answers to the questions that a run can answer, one line each."""
    audit = summary["audit"]
    return [lost_updates_answer(audit), optimizer_state_answer(audit)]


def lost_updates_answer(audit: Mapping[str, Any]) -> str:
    """Answer from an ``audit`` block whether updates were overwritten.

    Writes are counted exactly. Of updates only bounds are known: those that the worst element lost are
    all damaged, and an update that was lost whole was lost in the least hit element, too.
    """
    question = "Are updates overwritten?"
    if not audit["enabled"]:
        return f"{question} Not counted: {audit['reason']}."
    if not audit["auditable"]:
        return f"{question} Not auditable: {audit['reason']}."
    lost, issued = audit["writes_lost"], audit["writes_issued"]
    of_all = f"{lost:,} of {issued:,} writes in {_updates(audit['updates_issued'])} are lost"
    uncertain = audit["writes_uncertain"]
    if uncertain:
        of_all += f", and up to {uncertain:,} more of an update that was cut off"
    if not lost:
        return f"{question} {'Perhaps' if uncertain else 'No'}: {of_all}."
    return " ".join([f"{question} Yes: {of_all} ({audit['lost_fraction']:.2g}).", *_damage(audit)])


def _damage(audit: Mapping[str, Any]) -> list[str]:
    """Say what the losses hit: elements, updates, and whole updates if whole ones can be among them."""
    sentences = [
        f"{audit['elements_affected']:,} of {audit['elements']:,} elements lost some, the most-hit one "
        f"{audit['worst_element_lost']:,}, so that many updates are damaged at the least."
    ]
    if audit["lost_whole_at_most"]:
        sentences.append(f"Lost whole: at most {_updates(audit['lost_whole_at_most'])}.")
    survivors = zip(audit["survivors_by_worker"], audit["updates_issued_by_worker"], strict=True)
    if sum(audit["survivors_by_worker"]) < audit["updates_issued"]:
        each = ", ".join(
            f"{worker}: {left:,} of {own:,}" for worker, (left, own) in enumerate(survivors)
        )
        sentences.append(f"Survivors by worker: {each}.")
    return sentences


def _updates(number: int) -> str:
    return f"{number:,} update{'' if number == 1 else 's'}"


def optimizer_state_answer(audit: Mapping[str, Any]) -> str:
    """Say what is known of the optimizer's moments and step counts."""
    state = audit["optimizer_state"] or "nothing is known of it"
    return f"Optimizer state: {'each writer has its own' if state == 'local' else state}."
