"""Which figures a page shows of which runs, in what order, and what stands under each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from bench import captions, figure_sweep, figure_timeline, figures, figures_inside
from bench.groups import Group
from bench.lost_writes import load_lost_writes
from bench.saved import SavedRun, SavedRuns, read_object
from bench.svg import inline_svg, save_figure
from bench.timeline import TIMELINE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Shown(NamedTuple):
    """A figure on the page."""

    name: str
    title: str
    svg: Markup
    caption: Markup
    is_wide: bool


class Plan(NamedTuple):
    """A figure to be drawn. ``caption`` is asked only if there was something to draw."""

    name: str
    title: str
    draw: Callable[[], Figure | None]
    caption: Callable[[], Markup]


def draw_all(plans: Sequence[Plan], folder: Path, prefix: str) -> Iterator[Shown]:
    """Draw the planned figures into a folder and yield those that there was something to draw for."""
    for plan in plans:
        name = f"{prefix}{plan.name}"
        with figures.drawing_style():
            figure = plan.draw()
            if figure is None:
                continue
            is_wide = bool(figure.get_figwidth() > figures.NARROW)
            svg = save_figure(figure, folder, name)
        caption = plan.caption()
        label = Markup.escape(f"{plan.title}. {caption.striptags()}")
        yield Shown(name, plan.title, Markup(inline_svg(svg, name, label)), caption, is_wide)


def plans_for(groups: Sequence[Group], saved: SavedRuns) -> list[Plan]:
    """Return the figures of groups of one environment under one budget, the outcome first."""
    is_sweep = saved.comparison is not None and saved.comparison.get("kind") == "sweep"
    plans = [_sweep(groups)] if is_sweep else []
    plans += [_learning(groups, clock) for clock in figures.CLOCKS]
    plans.append(_throughput(groups, saved.profile))
    plans += [_lost(group) for group in groups]
    plans += [_distributions(groups), *_shares(groups), _q(groups), _time(groups)]
    return plans + [_timeline(group) for group in _one_per_strategy(groups)]


def _one_per_strategy(groups: Sequence[Group]) -> list[Group]:
    """Return the first group of each strategy: of a sweep, one timeline is enough."""
    return list({group.strategy: group for group in reversed(groups)}.values())[::-1]


def _sweep(groups: Sequence[Group]) -> Plan:
    draw, caption = (lambda: figure_sweep.sweep(groups)), (lambda: captions.sweep(groups))
    return Plan("sweep", "What the swept option does", draw, caption)


def _learning(groups: Sequence[Group], clock: str) -> Plan:
    title = f"Learning, by {figures.CLOCKS[clock]}"
    draw, caption = (
        lambda: figures.learning(groups, clock),
        lambda: captions.learning(groups, clock),
    )
    return Plan(f"learning-{clock.replace('_', '-')}", title, draw, caption)


def _throughput(groups: Sequence[Group], profile: Any) -> Plan:
    env_id = groups[0].env_id
    num_ceilings = sum(len(figures.ceilings(profile, path, env_id)) for path in figures.RATES)
    draw, caption = (
        lambda: figures.throughput(groups, profile),
        lambda: captions.throughput(groups, num_ceilings),
    )
    return Plan("throughput", "Throughput", draw, caption)


def _lost(group: Group) -> Plan:
    run = figures_inside.most_lost(group.counted)
    parts = load_lost_writes(run.folder) if run is not None else []

    def caption() -> Markup:
        assert run is not None  # else nothing was drawn
        return captions.lost_heat_map(run, parts)

    title = f"Where writes were lost: {group.label}"
    return Plan(
        f"lost-writes-{slug(group)}", title, lambda: figures_inside.lost_heat_map(parts), caption
    )


def _distributions(groups: Sequence[Group]) -> Plan:
    draw, caption = (
        lambda: figures_inside.distributions(groups),
        lambda: captions.distributions(groups),
    )
    return Plan("lag-and-staleness", "Lag, staleness and age", draw, caption)


def _shares(groups: Sequence[Group]) -> Iterator[Plan]:
    kinds = (
        ("worker", "Experience by worker", figures_inside.shares_by_worker),
        ("episode length", "Experience by length of the episode", figures_inside.shares_by_length),
    )
    for what, title, shares_of in kinds:
        bars = {group.label: shares_of(group) for group in groups}
        yield Plan(
            f"shares-by-{what.replace(' ', '-')}",
            title,
            lambda bars=bars, what=what: figures_inside.shares(bars, what),  # type: ignore[misc]
            lambda bars=bars, what=what: captions.shares(bars, groups, what),  # type: ignore[misc]
        )


def _q(groups: Sequence[Group]) -> Plan:
    draw, caption = (
        lambda: figures.q_against_bound(groups),
        lambda: captions.q_against_bound(groups),
    )
    return Plan("q-against-bound", "Q values against their bound", draw, caption)


def _time(groups: Sequence[Group]) -> Plan:
    draw, caption = (
        lambda: figures_inside.time_by_role(groups),
        lambda: captions.time_by_role(groups),
    )
    return Plan("time-by-role", "What each role spends its time on", draw, caption)


def _timeline(group: Group) -> Plan:
    run, saved = _first_timeline(group.counted)

    def caption() -> Markup:
        assert run is not None  # else nothing was drawn
        return captions.timeline(run, saved)

    title = f"The last moments: {group.label}"
    return Plan(f"timeline-{slug(group)}", title, lambda: figure_timeline.timeline(saved), caption)


def _first_timeline(runs: Sequence[SavedRun]) -> tuple[SavedRun | None, Any]:
    for run in runs:
        saved, _ = read_object(run.folder / TIMELINE)
        if saved:
            return run, saved
    return None, {}


def slug(group: Group) -> str:
    """Return a group's label as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", group.label.lower()).strip("-.")
