"""The figure of a run's last moments: what every process did, and where updates met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figures import WIDE, new_figure
from bench.figures_inside import in_order, text_box
from bench.palette import ACTIVITY_NAMES, ALARM, SURFACE, activity_style
from bench.saved import field_of, number_of, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SPANS_DRAWN = 320
LABELLED_SPAN = 0.05  # of the window: a shorter one has no room for its name
PATTERNED_SPAN = 0.01


def timeline(saved: Mapping[str, Any]) -> Figure | None:
    """Draw what each process did in a short window: read, compute, write and wait, and what met."""
    roles = rows_of(saved, "roles")
    window = timeline_window(saved)
    if window is None:
        return None
    figure, (axes,) = new_figure(width=WIDE, height=0.62 * len(roles) + 1.6)
    drawn: set[str] = set()
    for place, role in enumerate(roles):
        drawn |= _draw_role(axes, place, spans_of(role), window)
    _draw_meetings(axes, rows_of(saved, "meetings"), window)
    axes.set(yticks=range(len(roles)), xlim=window, ylim=(len(roles) - 0.45, -0.55))
    axes.set_yticklabels([f"{role.get('name')} {role.get('worker')}" for role in roles])
    axes.set_xlabel("milliseconds, in the last moments of the run")
    axes.xaxis.set_major_formatter(lambda value, _: f"{(value - window[0]) / 1e3:g}")
    _millisecond_ticks(axes, window)
    axes.grid(False)
    _timeline_legend(figure, axes, drawn)
    return figure


def _timeline_legend(figure: Figure, axes: Axes, drawn: set[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(
            facecolor=activity_style(name).colour.light,
            hatch=activity_style(name).hatch,
            label=ACTIVITY_NAMES.get(name, name),
        )
        for name in sorted(drawn, key=lambda name: in_order((name, 0.0)))
    ]
    marks, _ = axes.get_legend_handles_labels()
    figure.legend(handles=[*patches, *marks], loc="outside lower center", ncols=5)


def spans_of(role: Mapping[str, Any]) -> list[tuple[float, float, str]]:
    """Return the whole spans of a saved role."""
    found = role.get("spans")
    spans = []
    for span in found if isinstance(found, list) else []:
        begin, end = number_of({"s": span}, "s.0"), number_of({"s": span}, "s.1")
        if begin is not None and end is not None and begin < end:
            spans.append((float(begin), float(end), str(field_of({"s": span}, "s.2"))))
    return spans


def timeline_window(saved: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return what is drawn, in us: at most 320 spans, around the last place where updates met."""
    begins = sorted(span[0] for role in rows_of(saved, "roles") for span in spans_of(role))
    whole = number_of(saved, "window_us")
    if not begins or whole is None:
        return None
    length = whole - begins[max(0, len(begins) - MOST_SPANS_DRAWN)]
    met = [at for mark in rows_of(saved, "meetings") if (at := number_of(mark, "by_at")) is not None]
    end = min(whole, max(met) + 0.2 * length) if met else whole
    return max(0.0, end - length), end


def _draw_role(
    axes: Axes, place: int, spans: Sequence[tuple[float, float, str]], window: tuple[float, float]
) -> set[str]:
    """Draw one process. What interrupted an activity comes before it in the list, and lies on top."""
    length = window[1] - window[0]
    ranges: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for begin, end, activity in spans:
        if end > window[0] and begin < window[1]:
            is_long = end - begin > PATTERNED_SPAN * length
            ranges.setdefault((activity, is_long), []).append((begin, end - begin))
            if end - begin > LABELLED_SPAN * length:
                middle = (max(begin, window[0]) + min(end, window[1])) / 2
                axes.text(middle, place, activity.replace("_", " "), zorder=5, **text_box())
    for (activity, is_long), places in ranges.items():
        style = activity_style(activity)
        waits = style.kind == "wait"
        # A wait is thin: it is told from work by its height, too.
        axes.broken_barh(
            places,
            (place - 0.14, 0.28) if waits else (place - 0.38, 0.76),
            facecolor=style.colour.light,
            edgecolor=SURFACE.light,
            lw=0.2,
            hatch=style.hatch if is_long else "",
            zorder=4 if waits else 2,
            label=f"_{activity}",
        )
    return {activity for activity, _ in ranges}


def _draw_meetings(axes: Axes, marks: Sequence[Mapping[str, Any]], window: tuple[float, float]) -> None:
    """Draw a cross where an undone write ended, and an arrow to it from what copied over it."""
    label = "undone" if any(mark.get("kind") == "undone" for mark in marks) else "overlap"
    for mark in marks:
        at, by_at = number_of(mark, "at"), number_of(mark, "by_at")
        role, by = number_of(mark, "role"), number_of(mark, "by")
        if (
            at is None
            or by_at is None
            or role is None
            or by is None
            or not window[0] <= at <= window[1]
        ):
            continue
        axes.annotate(
            "",
            (at, role),
            xytext=(by_at, by),
            arrowprops={"arrowstyle": "->", "color": ALARM.light, "lw": 0.8, "alpha": 0.8},
            zorder=6,
        )
        axes.plot(
            [at],
            [role],
            "X",
            color=ALARM.light,
            mec=SURFACE.light,
            ms=7,
            zorder=7,
            label=label,
        )
        label = "_met"


def _millisecond_ticks(axes: Axes, window: tuple[float, float]) -> None:
    length = window[1] - window[0]
    step = next(s for s in (10, 50, 100, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e9) if length / s <= 10)
    axes.set_xticks(np.arange(window[0], window[1], step))
