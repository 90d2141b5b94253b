"""Figures of what happens inside a run: lost writes, ages, shares and time.

Each function returns a matplotlib figure, or None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.figures import NARROW, WIDE, blank_figure, group_styles, new_figure, plain_ticks
from bench.groups import Group, histogram_of
from bench.lost_writes import LostWrites
from bench.palette import ACTIVITY_NAMES, INK, MUTED, SURFACE, activity_style
from bench.saved import SavedRun, field_of, number_of, rows_of
from common.telemetry import ACTIVITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AGES = {
    "policy_lag": "policy lag",
    "acting_lag": "acting lag",
    "gradient_staleness": "gradient staleness",
    "sample_age": "sample age",
}
SHARES = {"share_collected": "collected", "share_consumed": "consumed"}
MOST_PANELS = 12
LABELLED_SHARE = 0.085  # a segment of a bar that is shorter has no room for its name
THIN_ROWS = 16


# --- Lost writes ---


def lost_heat_map(parts: Sequence[LostWrites]) -> Figure | None:
    """Draw how many writes each weight lost: hidden layers above, the thin ones (heads) below."""
    matrices = [(part.name.removesuffix(".weight"), as_matrix(part)) for part in parts]
    matrices = [(name, matrix) for name, matrix in matrices if len(matrix) and not _is_bias(name)]
    if not matrices:
        return None
    thin = [item for item in matrices if len(item[1]) <= THIN_ROWS]
    rows = [row for row in ([item for item in matrices if len(item[1]) > THIN_ROWS], thin) if row]
    heights = [3.0 if len(row[0][1]) > THIN_ROWS else 0.8 for row in rows]
    heights[0] = max(heights[0], 2.0)  # the scale stands beside it
    figure = blank_figure(WIDE, sum(heights) + 0.4)
    bands = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
    most = max(int(matrix.max()) for _, matrix in matrices)
    panels: list[Axes] = []
    for band, row in zip(bands, rows, strict=True):
        widths = [float(np.clip(matrix.shape[1], 32, 160)) for _, matrix in row]
        own = list(band.subplots(1, len(row), squeeze=False, width_ratios=widths).flat)
        for axes, (name, matrix) in zip(own, row, strict=True):
            _draw_matrix(axes, name, matrix, max(1, most))
        panels += own
    _draw_scale(bands[0], panels[: len(rows[0])])
    return figure


def _is_bias(name: str) -> bool:
    return name.endswith(".bias")


def _draw_matrix(axes: Axes, name: str, matrix: Any, most: int) -> None:
    import seaborn

    seaborn.heatmap(matrix, ax=axes, vmin=0, vmax=most, cmap="cividis", cbar=False, rasterized=True)
    axes.set_title(f"{name} ({len(matrix)} x {matrix.shape[1]})", fontsize=8)
    axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)


def _draw_scale(figure: Any, panels: Sequence[Axes]) -> None:
    from matplotlib.ticker import MaxNLocator

    bar = figure.colorbar(panels[0].collections[0], ax=list(panels), pad=0.01, aspect=30)
    bar.set_label("lost writes")
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    plain_ticks(bar.ax.yaxis)
    bar.outline.set_edgecolor(MUTED.light)


def as_matrix(part: LostWrites) -> Any:
    """Return a parameter as outputs by inputs; a convolution's window counts as inputs."""
    return part.lost.reshape(len(part.lost), -1)


def most_lost(runs: Sequence[SavedRun]) -> SavedRun | None:
    """Return the run that lost the largest share of its writes; None if none lost any."""
    found = [(share, i) for i, run in enumerate(runs) if (share := run.number("audit.lost_fraction"))]
    return runs[max(found)[1]] if found else None


# --- Lag, staleness and age ---


def distributions(groups: Sequence[Group]) -> Figure | None:
    """Draw the share of samples up to each age: a panel per kind of age, a line per group."""
    names = [name for name in AGES if any(histogram_of(group.counted, name) for group in groups)]
    if not names:
        return None
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    width = WIDE if columns == 2 else NARROW
    figure, panels = new_figure(rows, columns, width=width, height=2.6 * rows + 0.5)
    for axes, name in zip(panels, names, strict=False):
        _draw_distribution(axes, groups, name)
    for axes in panels[len(names) :]:
        axes.remove()
    handles = {
        label: handle
        for axes in panels[: len(names)]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    most = 4 if columns == 2 else 2
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(most, len(handles))
    )
    return figure


def _draw_distribution(axes: Axes, groups: Sequence[Group], name: str) -> None:
    unit, largest = "", 1.0
    for group, style in zip(groups, group_styles(groups), strict=True):
        histogram = histogram_of(group.counted, name)
        if histogram is None:
            continue
        unit = histogram.unit or unit
        upto = np.cumsum(histogram.counts) / histogram.counts.sum()
        last = int(np.flatnonzero(histogram.counts)[-1])
        largest = max(largest, float(histogram.edges[last]))
        # A step at the first number of each bin, so that quantiles read as in the summary.
        x, y = histogram.edges[[0, *range(last + 1)]], np.concatenate([[0.0], upto[: last + 1]])
        every = max(1, len(x) // 5)
        look = {**style, "drawstyle": "steps-post", "markevery": every, "label": group.label}
        axes.plot(x, y, lw=1.6, ms=4.5, **look)
    axes.set_xscale("symlog", linthresh=1 if largest < 1e4 else 100)
    axes.set(xlim=(0, 1.05 * largest), ylim=(0, 1.02), title=AGES[name], xlabel=unit)
    axes.set_ylabel("share of samples up to it")
    plain_ticks(axes.xaxis)


# --- Shares of experience ---


class ShareBar(NamedTuple):
    """One worker or one range of episode lengths: its shares, the mean over the runs of a group."""

    label: str
    collected: float | None
    consumed: float | None


def shares_by_worker(group: Group) -> list[ShareBar]:
    """Return each worker's shares; nothing for a single worker."""
    rows = [rows_of(run.summary, "experience.workers") for run in group.counted]
    numbers = sorted(
        {int(w) for own in rows for row in own if (w := number_of(row, "worker")) is not None}
    )
    if len(numbers) < 2:
        return []
    return [
        _share_bar(str(number), [row for own in rows for row in own if row.get("worker") == number])
        for number in numbers
    ]


def shares_by_length(group: Group) -> list[ShareBar]:
    """Return the shares of each range of episode lengths, from the first run that has them.

    The ranges are quantiles of each run's own episodes, so runs cannot be put together.
    """
    for run in group.counted:
        rows = rows_of(run.summary, "experience.episode_length")
        if rows:
            return [_share_bar(_range(row), [row]) for row in rows]
    return []


def _share_bar(label: str, rows: Sequence[Mapping[str, Any]]) -> ShareBar:
    means = {}
    for name in SHARES:
        values = [value for row in rows if (value := number_of(row, name)) is not None]
        means[name] = float(np.mean(values)) if values else None
    return ShareBar(label, means["share_collected"], means["share_consumed"])


def _range(row: Mapping[str, Any]) -> str:
    begin, end = number_of(row, "from"), number_of(row, "to")
    parts = ["" if value is None else f"{value:g}" for value in (begin, end)]
    return parts[0] if parts[0] == parts[1] else "-".join(parts)


def shares(bars_by_label: Mapping[str, Sequence[ShareBar]], what: str) -> Figure | None:
    """Draw collected beside consumed shares, a panel per group; a line where all would be equal."""
    drawn = {
        label: bars
        for label, bars in bars_by_label.items()
        if any(value is not None for bar in bars for value in (bar.collected, bar.consumed))
    }
    drawn = dict(list(drawn.items())[:MOST_PANELS])
    if not drawn:
        return None
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    width = NARROW if columns == 1 else WIDE
    figure, panels = new_figure(rows, columns, width=width, height=2.2 * rows + 0.6, sharey=True)
    for axes, (label, bars) in zip(panels, drawn.items(), strict=False):
        _draw_shares(axes, bars)
        axes.set(title=label, xlabel=what)
    for axes in panels[len(drawn) :]:
        axes.remove()
    for axes in panels[::columns]:
        axes.set_ylabel("share")
    legend = panels[0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=3)
    return figure


def _draw_shares(axes: Axes, bars: Sequence[ShareBar]) -> None:
    places = np.arange(len(bars))
    only_one = all(bar.consumed is None for bar in bars)
    looks = (
        ("collected", 0.0 if only_one else -0.2, {"color": activity_style("act").colour.light}),
        ("consumed", 0.2, {"color": activity_style("publish").colour.light, "hatch": "////"}),
    )
    for name, offset, look in looks:
        known = [(place, getattr(bar, name)) for place, bar in zip(places, bars, strict=True)]
        known = [(place, value) for place, value in known if value is not None]
        if known:
            x, y = zip(*known, strict=True)
            axes.bar(np.array(x) + offset, y, width=0.38, label=name, **look)
    axes.axhline(1 / len(bars), color=INK.light, lw=0.9, ls=(0, (4, 3)), label="equal shares")
    axes.set_xticks(places, [bar.label for bar in bars])
    if len(bars) > 8:
        axes.tick_params(axis="x", labelrotation=90)


# --- Time ---


def time_by_role(groups: Sequence[Group]) -> Figure | None:
    """Draw what each role spends its time on, in bars that add up to all of it."""
    bars = role_times(groups)
    if not bars:
        return None
    figure, (axes,) = new_figure(width=WIDE, height=0.34 * len(bars) + 1.5)
    labelled: set[str] = set()
    for place, fractions in enumerate(bars.values()):
        _draw_time(axes, place, fractions, labelled)
    axes.set(yticks=range(len(bars)), xlim=(0, 1), xlabel="share of the role's time")
    axes.set_yticklabels(list(bars))
    axes.grid(False)
    axes.invert_yaxis()
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(handles)))
    return figure


def role_times(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """Return, by "group: role", the share of each activity: the mean over the runs."""
    bars: dict[str, dict[str, float]] = {}
    for group in groups:
        found = [field_of(run.summary, "time.roles") for run in group.counted]
        roles = [roles for roles in found if isinstance(roles, Mapping) and roles]
        for role in dict.fromkeys(role for one in roles for role in one):
            own = [one[role] for one in roles if isinstance(one.get(role), Mapping)]
            names = {name for fractions in own for name in fractions}
            means = {name: sum(number_of(f, name) or 0.0 for f in own) / len(own) for name in names}
            bars[f"{group.label}: {role}"] = dict(sorted(means.items(), key=in_order))
    return bars


def in_order(item: tuple[str, float]) -> tuple[int, str]:
    """Return the place of an (activity, value) among the activities; unknown ones come last."""
    name = item[0]
    return (ACTIVITIES.index(name) if name in ACTIVITIES else len(ACTIVITIES), name)


def _draw_time(axes: Axes, place: int, fractions: Mapping[str, float], labelled: set[str]) -> None:
    left = 0.0
    for name, fraction in fractions.items():
        style, label = activity_style(name), ACTIVITY_NAMES.get(name, name)
        axes.barh(
            place,
            fraction,
            left=left,
            height=0.72,
            color=style.colour.light,
            hatch=style.hatch,
            label="" if name in labelled else label,
        )
        labelled.add(name)
        if fraction >= LABELLED_SHARE:
            axes.text(
                left + fraction / 2, place, f"{label.split(' (')[0]} {fraction:.0%}", **text_box()
            )
        left += fraction


def text_box() -> dict[str, Any]:
    """Return how a name is written onto a bar: on its own ground, so that patterns stay legible."""
    box = {"facecolor": SURFACE.light, "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
    return {"ha": "center", "va": "center", "fontsize": 7.5, "bbox": box}
