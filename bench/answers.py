"""The six questions, each answered in words and numbers from a run's summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Block = Mapping[str, Any]

QUESTIONS = (
    "Are updates overwritten?",
    "Are updates or data stale?",
    "Do fast workers or short episodes drown the others?",
    "Is it stuck because of too many gradient steps per collected batch?",
    "What is the bottleneck, and what should I change?",
    "Would a GPU help?",
)

# Shares that differ by less are called even.
EVEN_WITHIN = 0.05


def answers(summary: Block) -> list[dict[str, str]]:
    """Return the six questions with their answers, in order."""
    lost = f"{lost_updates_answer(summary['audit'])} {optimizer_state_answer(summary['audit'])}"
    texts = (
        lost,
        staleness_answer(summary),
        fairness_answer(summary["experience"]),
        learning_answer(summary["replay_ratio"], summary["health"], summary["config"]),
        bottleneck_answer(summary["time"]),
        gpu_answer(summary),
    )
    return [
        {"question": question, "answer": text} for question, text in zip(QUESTIONS, texts, strict=True)
    ]


def lost_updates_answer(audit: Block) -> str:
    """Answer from an ``audit`` block whether updates were overwritten.

    Writes are counted exactly. Of updates only bounds are known: those that the worst element lost are
    all damaged, and an update that was lost whole was lost in the least hit element, too.
    """
    if not audit["enabled"]:
        return f"Not counted: {audit['reason']}."
    if not audit["auditable"]:
        return f"Not auditable: {audit['reason']}."
    lost, issued = audit["writes_lost"], audit["writes_issued"]
    of_all = f"{lost:,} of {issued:,} writes in {_updates(audit['updates_issued'])} are lost"
    uncertain = audit["writes_uncertain"]
    if uncertain:
        of_all += f", and up to {uncertain:,} more of an update that was cut off"
    if not lost:
        return f"{'Perhaps' if uncertain else 'No'}: {of_all}."
    return " ".join([f"Yes: {of_all} ({audit['lost_fraction']:.2g}).", *_damage(audit)])


def _damage(audit: Block) -> list[str]:
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


def optimizer_state_answer(audit: Block) -> str:
    """Say what is known of the optimizer's moments and step counts."""
    state = audit["optimizer_state"] or "nothing is known of it"
    return f"Optimizer state: {'each writer has its own' if state == 'local' else state}."


def staleness_answer(summary: Block) -> str:
    """Say how old gradients, acting weights and replayed rows were, each in its own unit."""
    parts = [
        _span(summary["gradient_staleness"], "gradients land {} after the weights they were made at"),
        _span(summary["acting_lag"], "actors act {} behind the newest weights"),
        _span(summary["policy_lag"], "what is learned from was chosen {} ago"),
        _span(summary["sample_age"], "and lay in replay for {}"),
    ]
    told = [part for part in parts if part]
    if not told:
        return "Not measured."
    text = f"{'; '.join(told)} (median, 95th percentile, most)"
    torn = summary["audit"]["torn_reads_at_most"]
    if torn:
        text += f"; at most {torn:,} reads mixed two versions of the weights (torn)"
    return f"{text[0].upper()}{text[1:]}."


def _span(block: Block | None, sentence: str) -> str | None:
    if block is None:
        return None
    span = f"{block['p50']:,} / {block['p95']:,} / {block['max']:,} {block['unit']}"
    times = block.get("milliseconds")
    if times is not None:
        span += f" ({times['p50']:,.0f} / {times['p95']:,.0f} / {times['max']:,.0f} ms)"
    return sentence.format(span)


def fairness_answer(experience: Block) -> str:
    """Say who gets more than their share of what is learned from, and by how much."""
    return f"{_worker_shares(experience)} {_length_shares(experience['episode_length'])}"


def _worker_shares(experience: Block) -> str:
    workers = experience["workers"]
    if len(workers) < 2:
        return "One worker collects everything."
    if experience["jain_collected"] is None:
        return "Nothing was collected."
    most = max(workers, key=lambda each: each["share_collected"])
    even = 1 / len(workers)
    who = f"Worker {most['worker']} collected the most, {most['share_collected']:.0%} of all"
    if most["share_collected"] - even < 0.005:
        who = "All workers collected the same"
    text = f"{who} where an even share is {even:.0%} (Jain's index {experience['jain_collected']:.3f}"
    if experience["jain_consumed"] is not None:
        text += f", of what was learned from {experience['jain_consumed']:.3f}"
    updates = sum(each["updates"] for each in workers)
    if updates:
        busiest = max(workers, key=lambda each: each["updates"])
        text += f"; worker {busiest['worker']} made {busiest['updates'] / updates:.0%} of the updates"
    return f"{text})."


def _length_shares(rows: Sequence[Block] | None) -> str:
    if not rows or rows[0]["share_consumed"] is None:
        return "Shares by episode length were not measured."
    first, last = rows[0], rows[-1]
    ratio = first["share_consumed"] / first["share_collected"]
    if len(rows) == 1:
        return f"All episodes were of {_range(first)} env steps."
    if abs(ratio - 1) <= EVEN_WITHIN:
        verdict = "Short episodes get their share"
    else:
        verdict = f"Short episodes get {'more' if ratio > 1 else 'less'} than their share"
    return (
        f"{verdict}: {_shares(first)}, a factor of {ratio:.2f}; {_shares(last)}, a factor of "
        f"{last['share_consumed'] / last['share_collected']:.2f}."
    )


def _range(row: Block) -> str:
    return f"{row['from']}" if row["from"] == row["to"] else f"{row['from']} to {row['to']}"


def _shares(row: Block) -> str:
    return (
        f"those of {_range(row)} env steps are {row['share_collected']:.0%} of what was collected and "
        f"{row['share_consumed']:.0%} of what was learned from"
    )


def learning_answer(ratio: Block, health: Block, config: Block) -> str:
    """Say which replay ratio was reached, and whether the network shows signs of too much of it."""
    if ratio["achieved"] is None:
        return "No update was made."
    asked = "" if ratio["requested"] is None else f" (asked: {ratio['requested']})"
    text = f"{ratio['achieved']:.4g} updates per env step{asked}"
    if ratio["samples_per_insert"] is not None:
        text += f"; the average transition was learned from {ratio['samples_per_insert']:.3g} times"
    if health["most_sampled"] is not None:
        text += f" (the most used one {health['most_sampled']:.0f} times)"
    alarms = health["alarms"]
    if alarms:
        since = "; ".join(
            f"{each['name'].upper()} since {each['at_env_steps']:,} env steps: {each['meaning']}; try: "
            f"{each['remedy']}"
            for each in alarms
        )
        return f"{text}. {since}."
    if not config["instruments"] or health["q_max"] is None:
        return f"{text}. The network's health was not measured."
    return f"{text}. No alarm: {_q_text(health)}."


def _q_text(health: Block) -> str:
    bound = health["q_bound"]
    beside = f" (no discounted return can exceed {bound:.4g})" if bound else ""
    return (
        f"estimates reach {health['q_max']:.4g}{beside}, {health['dormant_fraction']:.0%} of the units "
        "are dormant"
    )


def bottleneck_answer(time: Block) -> str:
    """Return the verdict on where time goes, and what to change."""
    if time["verdict"] is None:
        return "Not known."
    suggestion = f" Try {time['suggestion']}." if time["suggestion"] else ""
    return f"{time['verdict'][0].upper()}{time['verdict'][1:]}.{suggestion}"


def gpu_answer(summary: Block) -> str:
    """Say what a faster device could save at the most: the learner's share of time in updates."""
    learns = {"learner", "actor_learner"} & set(summary["time"]["roles"])
    if not learns or not summary["updates"]:
        return "Not known: nothing learned."
    (role,) = learns
    fractions = summary["time"]["roles"][role]
    working = 1.0 - fractions.get("evaluation", 0.0)
    share = fractions.get("update", 0.0) / working if working > 0 else 0.0
    return (
        f"At most {1 / max(1e-9, 1 - share):.1f} times as fast: updates are {share:.0%} of the "
        f"{role.replace('_', '-')}'s time, and the rest stays on the CPU. 'bench profile --device' "
        "measures from which network and batch size on an accelerator saves more than its transfers "
        "cost."
    )
