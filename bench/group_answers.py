"""The six answers for several runs at once: their own words where one run speaks, else the fields.

A question is answered with numbers and with what they mean; a field that was not measured is said to
be so, never taken as zero.
"""

from __future__ import annotations

from collections import Counter

from markupsafe import Markup

from bench.answers import QUESTIONS
from bench.figures_inside import AGES, role_times, shares_by_length, shares_by_worker
from bench.groups import Group, alarms_of, health_was_measured
from bench.saved import SavedRun, field_of
from bench.wording import (
    mean_of,
    of_group,
    of_run,
    percent,
    plain,
    sentences,
    sum_of,
    text_of_run,
)


def answers_of(group: Group) -> list[Markup]:
    """Return the answers to the six questions: a single run's own words, else made from the fields."""
    own = own_answers(group.counted[0]) if group.counted else {}
    composed = (overwritten, stale, drowned, stuck, bottleneck, gpu)
    if not group.counted:
        return [Markup("No run left any numbers.")] * len(composed)
    if len(group.counted) == 1:
        return [own.get(i, make(group)) for i, make in enumerate(composed)]
    texts = [make(group) for make in composed]
    if len(texts) - 1 in own:  # what a GPU could do is worked out run by run
        texts[-1] = Markup("{} (seed {})").format(own[len(texts) - 1], group.counted[0].seed)
    return texts


def own_answers(run: SavedRun) -> dict[int, Markup]:
    """Return the answers that a run's summary holds, by the number of the question."""
    rows = field_of(run.summary, "answers")
    found = {}
    for i, row in enumerate(rows[: len(QUESTIONS)] if isinstance(rows, list) else []):
        if isinstance(field_of(row, "answer"), str):
            found[i] = text_of_run(run, f"answers.{i}.answer")
    return found


def overwritten(group: Group) -> Markup:
    """Answer the first question from the audit."""
    share = group.spread("audit.lost_fraction")
    if share is None:
        reasons = [field_of(run.summary, "audit.reason") for run in group.counted]
        return Markup("Not counted: {}.").format(next(filter(None, reasons), "there is no audit"))
    issued, lost = (sum_of(group, f"audit.{name}") for name in ("writes_issued", "writes_lost"))
    where = f" in {len(share.by_run)} runs" if len(share.by_run) > 1 else ""
    if not any(value for _, value in share.by_run):
        return Markup("No: {} of {} writes were lost{}.").format(lost, issued, where)
    return Markup(
        "Yes: {} of the writes were lost ({} of {}{}); at least {} of {} updates were damaged."
    ).format(
        of_group(group, "audit.lost_fraction", percent),
        *(lost, issued, where),
        sum_of(group, "audit.damaged_updates_at_least"),
        sum_of(group, "audit.updates_issued"),
    )


def stale(group: Group) -> Markup:
    """Answer the second question from the lags."""
    parts = []
    for name, title in AGES.items():
        if group.spread(f"{name}.p95") is None:
            continue
        units = [field_of(run.summary, f"{name}.unit") for run in group.counted]
        parts.append(
            Markup("{}: 95% within {} {}, half within {}").format(
                title,
                of_group(group, f"{name}.p95", plain),
                next(filter(None, units), "updates"),
                of_group(group, f"{name}.p50", plain, brief=True),
            )
        )
    return sentences(Markup("; ").join(parts) if parts else "no lag, staleness or age was recorded")


def drowned(group: Group) -> Markup:
    """Answer the third question from the shares of experience."""
    parts = []
    if shares_by_worker(group):
        for name in ("collected", "consumed"):
            index = of_group(group, f"experience.jain_{name}", plain)
            if group.spread(f"experience.jain_{name}") is not None:
                parts.append(Markup("{} {}").format(index, name))
        if parts:
            parts = [Markup("Jain's index over workers (1 is even): ") + Markup(", ").join(parts)]
    elif group.spread("experience.jain_collected") is not None:
        parts.append(Markup("there is one worker"))
    worst = _most_uneven(group)
    if worst:
        parts.append(worst)
    return sentences(Markup("; ").join(parts) if parts else "no shares of experience were recorded")


def _most_uneven(group: Group) -> Markup | None:
    """Return the worker or range of episode lengths that is consumed most unlike it is collected."""
    found = [("worker", bar) for bar in shares_by_worker(group)]
    found += [("episodes of length", bar) for bar in shares_by_length(group)]
    known = [
        (abs(bar.consumed - bar.collected), what, bar)
        for what, bar in found
        if bar.collected is not None and bar.consumed is not None
    ]
    if not known:
        return None
    _, what, bar = max(known, key=lambda item: item[0])
    shares = [
        mean_of(group, f"{what} {bar.label} {name}", value or 0.0)
        for name, value in (("collected", bar.collected), ("consumed", bar.consumed))
    ]
    return Markup(
        "the largest difference: {} {}, {} of what was collected and {} of what was learned from"
    ).format(what, bar.label, *shares)


def stuck(group: Group) -> Markup:
    """Answer the fourth question from the replay ratio and the alarms."""
    first_run = group.counted[0]
    requested = field_of(first_run.summary, "replay_ratio.requested")
    asked = Markup("derived") if requested is None else Markup("asked {}").format(requested)
    if first_run.number("replay_ratio.requested") is not None:
        asked = Markup("asked {}").format(of_run(first_run, "replay_ratio.requested", plain))
    achieved = of_group(group, "replay_ratio.achieved", plain)
    text = Markup("Replay ratio {}, achieved {} updates per env step; ").format(asked, achieved)
    alarmed = [run for run in group.counted if alarms_of(run)]
    if not any(health_was_measured(run) for run in group.counted):
        return text + Markup("learning health was not measured.")
    if not alarmed:
        return text + Markup("no alarm of learning health.")
    names = Counter(str(alarm.get("name")) for run in alarmed for alarm in alarms_of(run))
    first = alarms_of(alarmed[0])[0]
    raised = f"{len(alarmed)} of {len(group.counted)} runs raised an alarm ({', '.join(names)})"
    return (
        text
        + Markup.escape(f"{raised}. ")
        + sentences(*(first[name] for name in ("meaning", "remedy") if first.get(name)))
    )


def bottleneck(group: Group) -> Markup:
    """Answer the fifth question: the verdict that most runs share, else where most time goes."""
    verdicts = Counter(
        str(verdict) for run in group.counted if (verdict := field_of(run.summary, "time.verdict"))
    )
    if verdicts:
        verdict = verdicts.most_common(1)[0][0]
        run = next(r for r in group.counted if str(field_of(r.summary, "time.verdict")) == verdict)
        suggestion = str(field_of(run.summary, "time.suggestion") or "")
        text = _ended(verdict, text_of_run(run, "time.verdict"))
        if not suggestion:
            return text
        start = " " if suggestion.lower().startswith("try ") else " Try "
        return text + start + _ended(suggestion, text_of_run(run, "time.suggestion"))
    parts = []
    for bar, fractions in role_times([group]).items():
        name, share = max(fractions.items(), key=lambda item: item[1], default=("nothing", 0.0))
        role = bar.removeprefix(f"{group.label}: ")
        share_text = mean_of(group, f"time.roles.{role}.{name}", share)
        role, name = role.replace("_", "-"), name.replace("_", " ")
        parts.append(Markup("the {} spends {} on {}").format(role, share_text, name))
    return sentences(Markup("; ").join(parts) if parts else "no times were recorded")


def _ended(raw: str, text: Markup) -> Markup:
    return text if raw.endswith((".", "!", "?")) else text + "."


def gpu(group: Group) -> Markup:
    """Answer the sixth question where no run does."""
    return Markup("Not measured with this run; <code>bench profile --device</code> measures it.")
