"""What stands under each figure: its main number, and how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bench.figure_timeline import spans_of, timeline_window
from bench.figures import are_apart
from bench.figures_inside import AGES, ShareBar, role_times
from bench.groups import Group, alarms_of, q_curve
from bench.lost_writes import LostWrites
from bench.palette import activity_style
from bench.saved import SavedRun, field_of, number_of, rows_of
from bench.wording import Style, count, datum, decimal, mean_of, of_group, of_run, plain, rate

OTHERS = "Grey: the medians of the others."
SEEDS = (
    "Bold: the median over seeds; thin: each seed; shaded: the 95% bootstrap interval of the median, "
    "where all seeds have points. "
)
LAST_POINT = "The last point of a completed run is its final weights."


def span_over(groups: Sequence[Group], path: str, style: Style) -> Markup | None:
    """Return "from single 12 to apex 30" over the groups; None if none has the number."""
    found = [(group, spread) for group in groups if (spread := group.spread(path)) is not None]
    if not found:
        return None
    ordered = sorted(found, key=lambda item: item[1].median)
    least, most = (
        Markup("{} {}").format(group.label, of_group(group, path, style, spread))
        for group, spread in (ordered[0], ordered[-1])
    )
    return least if len(ordered) == 1 else Markup("from {} to {}").format(least, most)


def several_seeds(groups: Sequence[Group]) -> bool:
    """Return whether any group has more than one run."""
    return any(len(group.counted) > 1 for group in groups)


def learning(groups: Sequence[Group], clock: str) -> Markup:
    """Say who reached which return and who solved it when, and what the lines are."""
    style, unit = (decimal, "s of training") if clock == "seconds" else (count, "env steps")
    final = span_over(groups, "returns.eval_mean", decimal)
    solved = span_over(groups, f"returns.solved_at_{clock}", style)
    text = Markup("")
    if final:
        text += Markup("Final mean return: {}. ").format(final)
    if solved:
        text += Markup("Solved, in {} and by the runs that did: {}. ").format(unit, solved)
    elif any(group.spread("returns.threshold") for group in groups):
        text += Markup("No run solved the environment. ")
    others = f"{OTHERS} " if are_apart(groups) else ""
    return text + (SEEDS if several_seeds(groups) else "") + others + LAST_POINT


def throughput(groups: Sequence[Group], num_ceilings: int) -> Markup:
    """Say who is fastest and slowest."""
    text = Markup("")
    for path, unit in (("env_steps_per_second", "Env steps/s"), ("updates_per_second", "Updates/s")):
        found = span_over(groups, path, rate)
        text += Markup("{}: {}. ").format(unit, found) if found else ""
    text += Markup("Measured from the first update to the stop, without evaluations. ")
    if several_seeds(groups):
        text += Markup("Dots: seeds; line: 95% bootstrap interval of the median. ")
    if num_ceilings:
        return text + "Dashed: ceilings of this machine, from its profile."
    return text + "No profile.json here, so no ceilings are drawn."


def lost_heat_map(run: SavedRun, parts: Sequence[LostWrites]) -> Markup:
    """Say how much of the run was lost, where most, and that this is a count."""
    names = ("writes_lost", "writes_issued", "elements_affected", "elements")
    numbers = [of_run(run, f"audit.{name}", count) for name in names]
    worst = [of_run(run, f"audit.{n}", count) for n in ("worst_element_lost", "updates_issued")]
    text = Markup(
        "{} of {} writes were lost, and {} of {} weights lost at least one; the worst lost {} of {} "
        "updates. "
    ).format(*numbers, *worst)
    most = max(parts, key=lambda part: part.lost.mean())
    about = {"field": f"lost_writes.{most.name}", "stat": "mean", "run": run.name}
    mean = datum(float(most.lost.mean()), plain, **about)
    text += Markup("Most per weight in {}: {} on average. ").format(most.name, mean)
    return text + Markup(
        "Every loss is counted, none is estimated. Run {}, which lost the largest share."
    ).format(run.name)


def distributions(groups: Sequence[Group]) -> Markup:
    """Say where 95% of the samples lie."""
    text = Markup("")
    for name, title in AGES.items():
        found = span_over(groups, f"{name}.p95", plain)
        if found:
            text += Markup("95% of the samples are within, {}: {}. ").format(title, found)
    return text + "The further right a line rises, the staler."


def shares(
    bars_by_label: Mapping[str, Sequence[ShareBar]], groups: Sequence[Group], what: str
) -> Markup:
    """Say who has the largest share, and what equal shares would be."""
    by_label = {group.label: group for group in groups}
    found = [
        (value * len(bars), label, bar.label, kind, value, len(bars))
        for label, bars in bars_by_label.items()
        for bar in bars
        for kind, value in (("collected", bar.collected), ("consumed", bar.consumed))
        if value is not None
    ]
    _, label, name, kind, value, number = max(found)
    share = mean_of(by_label[label], f"{what} {name} {kind}", value)
    return Markup(
        "The largest share: {} {} of {} with {} of what was {}; equal shares would be {}. "
        "Consumed is what updates were made of, counted as often as it was sampled."
    ).format(what, name, label, share, kind, f"{100 / number:.3g}%")


def q_against_bound(groups: Sequence[Group]) -> Markup:
    """Say how far the largest Q value went, and how many runs raised an alarm."""
    found = [
        (float(curve[:, 1].max()), group.label, run)
        for group in groups
        for run in group.counted
        if len(curve := q_curve(run))
    ]
    ratio, label, run = max(found, key=lambda item: item[0])
    highest = datum(ratio, plain, field="q_max / q_bound", stat="max", run=run.name)
    runs = [run for group in groups for run in group.counted]
    alarmed = sum(bool(alarms_of(run)) for run in runs)
    return Markup(
        "The largest Q value was {} times the largest possible return, in {} (seed {}). Far above 1 "
        "the values are impossible: training diverges. {} of {} runs raised an alarm of their health."
    ).format(highest, label, run.seed, alarmed, len(runs)) + (f" {OTHERS}" if are_apart(groups) else "")


def time_by_role(groups: Sequence[Group]) -> Markup:
    """Say which role waits most; if none waits, what takes most of a role's time."""
    waits, works = [], []
    for group in groups:
        for bar, fractions in role_times([group]).items():
            role = bar.removeprefix(f"{group.label}: ")
            own = [share for name, share in fractions.items() if activity_style(name).kind == "wait"]
            waits.append((sum(own), "waiting", role, group))
            works += [(share, name, role, group) for name, share in fractions.items()]
    share, name, role, group = max(waits, key=lambda item: item[0])
    if not share:
        share, name, role, group = max(works, key=lambda item: item[0])
    return Markup(
        "Most time {}: the {} of {}, {}. Each bar is all of a role's time, the mean over runs. "
        "Patterns: lines read, strokes write, crosses wait."
    ).format(
        name if name == "waiting" else f"on {name.replace('_', ' ')}",
        role.replace("_", "-"),
        group.label,
        mean_of(group, f"time.roles.{role}.{name}", share),
    )


def sweep(groups: Sequence[Group]) -> Markup:
    """Say between which returns the values lie, and at which alarms fired."""
    found = span_over(groups, "returns.eval_mean", decimal)
    text = Markup("Final mean return: {}. ").format(found) if found else Markup("")
    fired = [group.label for group in groups if any(alarms_of(run) for run in group.counted)]
    if not fired:
        return text + "No run raised an alarm of learning health."
    return text + Markup("Shaded: an alarm of learning health fired in at least one run ({}).").format(
        "; ".join(fired)
    )


def timeline(run: SavedRun, saved: Mapping[str, Any]) -> Markup:
    """Say what the window shows, which marks are derived, and what was counted over the whole run."""
    begin, end = timeline_window(saved) or (0.0, 0.0)
    window = datum((end - begin) / 1e3, plain, field="timeline.window", unit="ms", run=run.name)
    text = Markup("{} milliseconds near the end of run {}. ").format(window, run.name)
    marks = rows_of(saved, "meetings")
    if marks:
        inside = sum(begin <= (number_of(mark, "at") or -1.0) <= end for mark in marks)
        text += _marks(str(field_of(marks[0], "kind")), inside, run)
    if not all(spans_of(role) for role in rows_of(saved, "roles")):
        text += Markup("Not all processes were at work at the same time. ")
    if run.number("audit.writes_lost") is not None:
        text += Markup("In the whole run {} of {} writes were lost; that is counted.").format(
            of_run(run, "audit.writes_lost", count), of_run(run, "audit.writes_issued", count)
        )
    return text


def _marks(kind: str, number: int, run: SavedRun) -> Markup:
    marked = datum(number, count, field="timeline.meetings", run=run.name)
    if kind == "undone":
        return Markup(
            "Crosses ({}): an update that was copied over by another process that had read the weights "
            "before it; the arrow comes from that copy. Derived from when each process read and wrote. "
        ).format(marked)
    return Markup(
        "Crosses ({}): two processes added to the weights at the same time, so single weights may be "
        "lost there. Derived from when each process wrote. "
    ).format(marked)
