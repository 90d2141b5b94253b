"""Figures that compare strategies: learning, throughput, Q values against their bound, sweeps.

Each function takes groups of runs and returns a matplotlib figure, or None where there is nothing to
draw. Figures of what happens inside a run are in ``bench.figures_inside``. Nothing is imported from
matplotlib, seaborn or scipy before a function draws.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.groups import Array, Band, Group, band_of, evaluation_curve, q_curve
from bench.palette import ALARM, GRID, INK, MUTED, SURFACE, strategy_style
from bench.saved import field_of, number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches. A narrow figure fits a phone, a wide one is as wide as the page.
NARROW, WIDE = 4.7, 9.6
HEIGHT = 3.1
CLOCKS = {"env_steps": "env steps", "seconds": "seconds of training"}
MOST_TOGETHER = 4  # groups in one panel; the curves of more cannot be told apart
PANELS_PER_ROW = 4
MARKERS = "osDX^vP*<>hd"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
DECADES_FOR_LOG = (
    30.0  # from this ratio of the largest to the smallest value on, an axis is logarithmic
)
RATES = {"env_steps_per_second": "env steps/s", "updates_per_second": "updates/s"}


@contextlib.contextmanager
def drawing_style() -> Iterator[None]:
    """Set seaborn's look and this project's colours for the figures made and saved inside."""
    import matplotlib
    import seaborn

    look: dict[Any, Any] = {
        **seaborn.axes_style("ticks"),
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "font.sans-serif": ["DejaVu Sans"],
        "svg.fonttype": "none",
        "text.parse_math": False,  # a name may hold a dollar sign
        "svg.hashsalt": "bench",
        "hatch.linewidth": 0.6,
        "figure.facecolor": SURFACE.light,
        "axes.facecolor": SURFACE.light,
        "grid.color": GRID.light,
        "axes.edgecolor": MUTED.light,
        "patch.edgecolor": SURFACE.light,
    }
    coloured = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor")
    with matplotlib.rc_context({**look, **dict.fromkeys(coloured, INK.light)}):
        yield


def blank_figure(width: float, height: float) -> Figure:
    """Return a figure that belongs to no window; sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def new_figure(
    rows: int = 1, columns: int = 1, width: float = NARROW, height: float = HEIGHT, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a blank figure with axes, and these in a list."""
    figure = blank_figure(width, height)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def short(value: float, _: Any = None) -> str:
    """Return a number as an axis shows it: 20k, 1.5M, 0.001."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"


def plain_ticks(axis: Any) -> None:
    """Label an axis, also a logarithmic one, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(short))
    axis.set_minor_formatter(NullFormatter())


def group_styles(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return line styles: the strategy's colour and marker, and a dash per group of a strategy."""
    seen: dict[str, int] = {}
    styles = []
    for group in groups:
        number = seen[group.strategy] = seen.get(group.strategy, -1) + 1
        style = strategy_style(group.strategy)
        styles.append(
            {
                "color": style.colour.light,
                "marker": style.marker if number == 0 else MARKERS[number % len(MARKERS)],
                "linestyle": DASHES[number % len(DASHES)],
            }
        )
    return styles


def legend_below(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Put the legend under the axes, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(handles)))


def draw_curves(
    axes: Axes, groups: Sequence[Group], curve_of: Callable[[Any], Array]
) -> list[Band | None]:
    """Draw every seed thin, their median bold and its interval shaded; return the medians."""
    bands = []
    for group, style in zip(groups, group_styles(groups), strict=True):
        curves = [curve for run in group.counted if len(curve := curve_of(run))]
        band = band_of(curves)
        bands.append(band)
        if len(curves) > 1:
            thin = {"color": style["color"], "lw": 0.6, "alpha": 0.45}
            for i, curve in enumerate(curves):
                # Curves without a moment in common have no median, and a place in the legend anyway.
                label = group.label if band is None and i == 0 else "_seed"
                axes.plot(curve[:, 0], curve[:, 1], **thin, label=label)
        if band is None:
            continue
        every = max(1, len(band.x) // 6)
        axes.plot(
            band.x, band.median, **style, lw=1.9, markersize=5, markevery=every, label=group.label
        )
        if band.low is not None and band.high is not None:
            axes.fill_between(band.x, band.low, band.high, color=style["color"], alpha=0.15, lw=0)
    return bands


def are_apart(groups: Sequence[Group]) -> bool:
    """Return whether so many groups are drawn that each needs a panel of its own."""
    return len(groups) > MOST_TOGETHER


def curve_panels(
    groups: Sequence[Group], curve_of: Callable[[Any], Array], width: float = NARROW
) -> tuple[Figure, list[Axes], list[Band | None]]:
    """Draw curves, all in one panel or each group in its own, with the medians of the others in grey.

    Args:
        groups: what is compared.
        curve_of: gives a run's curve.
        width: of the figure if there is one panel.

    Returns:
        The figure, its panels, and each group's median.
    """
    if not are_apart(groups):
        figure, panels = new_figure(width=width)
        return figure, panels, draw_curves(panels[0], groups, curve_of)
    rows = -(-len(groups) // PANELS_PER_ROW)
    figure, all_panels = new_figure(
        rows, PANELS_PER_ROW, width=WIDE, height=0.5 + 1.75 * rows, sharex=True, sharey=True
    )
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(wspace=0.05)  # the last tick of a panel must not meet the first of the next
    panels, spare = all_panels[: len(groups)], all_panels[len(groups) :]
    bands = [
        draw_curves(axes, [group], curve_of)[0] for axes, group in zip(panels, groups, strict=True)
    ]
    for axes, group, own in zip(panels, groups, bands, strict=True):
        for band in bands:
            if band is not None and band is not own:
                axes.plot(band.x, band.median, color=MUTED.light, alpha=0.4, lw=0.7, zorder=0)
        axes.set_title(group.label)
    for axes in spare:
        axes.set_axis_off()
    return figure, panels, bands


def finish_panels(figure: Figure, panels: Sequence[Axes], clock: str, ylabel: str) -> None:
    """Name the axes of curves; of several panels the outer ones. A legend is for one panel only."""
    if len(panels) == 1:
        panels[0].set(xlabel=CLOCKS[clock], ylabel=ylabel)
        legend_below(figure, panels[0], columns=2 if figure.get_figwidth() == NARROW else 5)
    else:
        figure.supxlabel(CLOCKS[clock], fontsize=9)
        figure.supylabel(ylabel, fontsize=9)
    for axes in panels:
        plain_ticks(axes.xaxis)


def learning(groups: Sequence[Group], clock: str) -> Figure | None:
    """Draw the evaluations' mean return against ``env_steps`` or ``seconds``."""
    curves = [evaluation_curve(run, clock) for group in groups for run in group.counted]
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return None
    figure, panels, _ = curve_panels(groups, lambda run: evaluation_curve(run, clock))
    found = [run.number("returns.threshold") for group in groups for run in group.counted]
    ends = [float(curve[-1, 0]) for curve in curves]
    for axes in panels:
        for threshold in {value for value in found if value is not None}:
            axes.axhline(threshold, color=MUTED.light, lw=0.9, ls=(0, (4, 3)), label="solved")
        if max(ends) > DECADES_FOR_LOG * min(ends) > 0:  # one is done when others have hardly begun
            axes.set_xscale("log")
        else:
            axes.set_xlim(0, None)
    finish_panels(figure, panels, clock, "mean return")
    return figure


def q_against_bound(groups: Sequence[Group]) -> Figure | None:
    """Draw the largest Q value over the largest possible return, against env steps."""
    if not any(len(q_curve(run)) for group in groups for run in group.counted):
        return None
    figure, panels, bands = curve_panels(groups, q_curve, width=WIDE)
    top = max((float(band.median.max()) for band in bands if band is not None), default=1.0)
    for axes in panels:
        axes.axhline(1.0, color=ALARM.light, lw=1.0, ls=(0, (4, 3)), label="bound")
        axes.set_xlim(0, None)
        if top > DECADES_FOR_LOG:
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
    finish_panels(figure, panels, "env_steps", "largest Q / bound")
    return figure


# --- Throughput ---


# What `bench profile` measures alone, and with how many processes a strategy can use it.
CEILINGS = {
    "env_steps_per_second": ("environment", "acting"),
    "updates_per_second": ("update", "learning"),
}


def ceilings(profile: Mapping[str, Any] | None, path: str, env_id: str) -> list[tuple[str, float]]:
    """Return (what, value per second) of the machine's ceilings for ``path``, the lowest first.

    Environments and acting with as many processes as were measured, updates with one.
    """
    if field_of(profile, "env_id") not in (None, env_id):
        return []
    found = []
    for part in CEILINGS[path]:
        rates = field_of(profile, f"ceilings.{part}.by_processes")
        known = rates if isinstance(rates, Mapping) else {}
        numbers = sorted(int(name) for name in known if name.isdecimal())
        number = numbers[0 if path == "updates_per_second" else -1] if numbers else 0
        rate = number_of(known, str(number))
        if rate is not None and rate > 0:
            processes = "1 process" if number == 1 else f"{number} processes"
            found.append((f"{part} alone, {processes}", float(rate)))
    return sorted(found, key=lambda item: item[1])


def throughput(groups: Sequence[Group], profile: Mapping[str, Any] | None = None) -> Figure | None:
    """Draw env steps/s and updates/s: medians as bars, seeds as dots, intervals as lines."""
    drawn = [group for group in groups if any(group.spread(path) for path in RATES)]
    if not drawn:
        return None
    height = 1.3 + 0.3 * len(drawn)
    height += 0.13 * sum(len(ceilings(profile, path, drawn[0].env_id)) for path in RATES)
    figure, panels = new_figure(1, 2, width=WIDE, height=height, sharey=True)
    for axes, (path, title) in zip(panels, RATES.items(), strict=True):
        for place, group in enumerate(drawn):
            _draw_bar(axes, place, group, path)
        widest = 1.15 * axes.get_xlim()[1]
        found = ceilings(profile, path, drawn[0].env_id)
        for i, (name, value) in enumerate(found):
            _draw_ceiling(axes, name, value, widest, place=-0.62 - 0.42 * (len(found) - i))
        axes.set(title=title, xlim=(0, widest), yticks=range(len(drawn)))
        axes.set_ylim(len(drawn) - 0.5, -0.62 - 0.42 * len(found))
        axes.set_yticklabels([group.label for group in drawn])
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        plain_ticks(axes.xaxis)
    return figure


def _draw_ceiling(axes: Axes, name: str, value: float, widest: float, place: float) -> None:
    """Draw a ceiling as a line; one far above all bars is only named, or the bars would vanish."""
    text = f"{name}: {short(float(f'{value:.3g}'))}"
    if value > widest:
        text, value = f"{text} \u2192", widest
    else:
        axes.axvline(value, color=MUTED.light, lw=1.0, ls=(0, (4, 3)), label="_ceiling")
    side = "right" if value > widest / 2 else "left"
    axes.text(value, place, f" {text} ", ha=side, va="top", fontsize=7.5, color=MUTED.light)


def _draw_bar(axes: Axes, place: int, group: Group, path: str) -> None:
    spread = group.spread(path)
    if spread is None:
        return
    style = strategy_style(group.strategy)
    axes.barh(place, spread.median, color=style.colour.light, height=0.62, alpha=0.55, lw=0)
    values = [value for _, value in spread.by_run]
    end = max(values)
    if spread.interval is not None:
        interval = (spread.interval.low, spread.interval.high)
        axes.plot(interval, (place, place), color=INK.light, lw=1.2, label="_interval")
        end = max(end, spread.interval.high)
    axes.plot(
        values,
        [place] * len(values),
        ls="",
        marker=style.marker,
        ms=3.5,
        color=INK.light,
        label="_seeds",
    )
    axes.annotate(
        short(float(f"{spread.median:.3g}")),
        (end, place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )
