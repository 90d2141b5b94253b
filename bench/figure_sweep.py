"""The figure of a sweep: what was measured against the option that was varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bench.figures import DECADES_FOR_LOG, WIDE, group_styles, legend_below, new_figure
from bench.groups import Group, alarms_of
from bench.palette import ALARM
from bench.saved import number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SWEPT = {
    "returns.eval_mean": "final return",
    "env_steps_per_second": "env steps/s",
    "updates_per_second": "updates/s",
    "audit.lost_fraction": "share of writes lost",
}


def sweep(groups: Sequence[Group]) -> Figure | None:
    """Draw what a sweep measured against the varied choice, and where alarms fired."""
    names = list(dict.fromkeys(name for group in groups for name in group.param))
    if not names or not any(group.counted for group in groups):
        return None
    metrics = {
        path: title
        for path, title in SWEPT.items()
        if any((spread := group.spread(path)) and spread.median for group in groups)
    }
    if not metrics:
        return None
    rows = -(-len(metrics) // 2)
    figure, panels = new_figure(rows, 2, width=WIDE, height=2.6 * rows + 0.4)
    positions = sweep_positions(groups, names[0])
    for axes, (path, title) in zip(panels, metrics.items(), strict=False):
        _draw_sweep(axes, groups, names, positions, path)
        axes.set(xlabel=names[0].replace("_", " "), title=title)
        _set_positions(axes, positions)
        _shade_alarms(axes, groups, names[0], positions)
    for axes in panels[len(metrics) :]:
        axes.remove()
    legend_below(figure, panels[0], columns=4)
    return figure


def sweep_positions(groups: Sequence[Group], name: str) -> dict[str, float]:
    """Return where each value of a choice stands on the axis: itself, or its number in the order."""
    values = {str(group.param.get(name)): number_of(group.param, name) for group in groups}
    numbers = [value for value in values.values() if value is not None]
    if len(numbers) == len(values):
        return {text: float(value) for text, value in values.items() if value is not None}
    return {text: float(place) for place, text in enumerate(values)}


def _draw_sweep(
    axes: Axes, groups: Sequence[Group], names: Sequence[str], positions: Mapping[str, float], path: str
) -> None:
    """Draw a line per strategy, and per value of a second choice."""
    lines: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        second = ", ".join(f"{name} {group.param.get(name)}" for name in names[1:])
        lines.setdefault((group.strategy, second), []).append(group)
    styles = group_styles([members[0] for members in lines.values()])
    for ((strategy, second), members), style in zip(lines.items(), styles, strict=True):
        points = [(positions[str(group.param.get(names[0]))], group.spread(path)) for group in members]
        known = sorted(((x, spread) for x, spread in points if spread), key=lambda point: point[0])
        label = ", ".join(part for part in (strategy, second) if part)
        axes.plot(
            [x for x, _ in known], [spread.median for _, spread in known], **style, lw=1.6, label=label
        )
        for x, spread in known:
            values = [value for _, value in spread.by_run]
            axes.plot(
                [x] * len(values), values, ".", color=style["color"], ms=4, alpha=0.6, label="_seeds"
            )
            if spread.interval is not None:
                ends = (spread.interval.low, spread.interval.high)
                axes.plot((x, x), ends, color=style["color"], lw=1, label="_interval")


def _set_positions(axes: Axes, positions: Mapping[str, float]) -> None:
    places = sorted(positions.values())
    if places[0] > 0 and places[-1] / places[0] >= DECADES_FOR_LOG:
        axes.set_xscale("log")
    labels = {place: text for text, place in positions.items()}
    axes.set_xticks(places, [labels[place] for place in places])
    axes.minorticks_off()


def _shade_alarms(
    axes: Axes, groups: Sequence[Group], name: str, positions: Mapping[str, float]
) -> None:
    """Mark the values at which a learning-health alarm fired in at least one run."""
    fired = {
        positions[str(group.param.get(name))]
        for group in groups
        if any(alarms_of(run) for run in group.counted)
    }
    places = np.array(sorted(set(positions.values())))
    is_log = axes.get_xscale() == "log"
    scaled = np.log(places) if is_log else places
    middles = (scaled[1:] + scaled[:-1]) / 2
    margin = (middles[0] - scaled[0]) if len(middles) else 0.5
    ends = np.concatenate([[scaled[0] - margin], middles, [scaled[-1] + margin]])
    ends = np.exp(ends) if is_log else ends
    label = "alarms"
    for place, begin, end in zip(places, ends[:-1], ends[1:], strict=True):
        if place in fired:
            axes.axvspan(begin, end, color=ALARM.light, alpha=0.14, lw=0, label=label)
            label = "_alarms"
    axes.set_xlim(ends[0], ends[-1])
