"""Numbers as a page shows them.

Every number is a ``data`` element that carries the value as it is in the JSON and says which field of
which run it is (``data-field``, ``data-run``), or which statistic over which group (``data-stat``,
``data-group``). So the page can be compared with the files, and a test does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from markupsafe import Markup

from bench.groups import Group, Spread
from bench.saved import SavedRun, field_of

TAG = re.compile(r"(<[^>]*>)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
NONE = Markup('<span class="none" title="not measured">-</span>')


def count(value: float) -> str:
    """Return a whole number with separators."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Return a number per second."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plain(value: float) -> str:
    """Return a number with three digits, a large one without decimals."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def decimal(value: float) -> str:
    """Return a number with one decimal."""
    return f"{value:,.1f}"


def percent(value: float) -> str:
    """Return a share in percent, with two digits where it is small."""
    return f"{value:.0%}" if value >= 0.1 or value == 0 else f"{100 * value:.2g}%"


Style = Callable[[float], str]


def datum(value: float | int, style: Style, **about: str) -> Markup:
    """Return a number that says where it comes from."""
    attributes = Markup("").join(
        Markup(' data-{}="{}"').format(name, text) for name, text in about.items()
    )
    return Markup('<data value="{}"{}>{}</data>').format(repr(value), attributes, style(value))


def of_run(run: SavedRun, path: str, style: Style) -> Markup:
    """Return a field of a run's summary; a dash where it is not measured."""
    value = run.number(path)
    return NONE if value is None else datum(value, style, field=path, run=run.name)


def key_of(group: Group) -> str:
    """Return what names a group on the page."""
    return " / ".join(part for part in (group.env_id, group.budget, group.label) if part)


def of_group(
    group: Group, path: str, style: Style, spread: Spread | None = None, brief: bool = False
) -> Markup:
    """Return a field over a group: the value of a single run, else the median and its interval.

    Args:
        group: whose runs.
        path: the field.
        style: how the number is written.
        spread: of what ``path`` is the name, if that is no field.
        brief: leave the interval out.
    """
    spread = spread or group.spread(path)
    if spread is None:
        return NONE
    if len(spread.by_run) == 1:
        ((run, value),) = spread.by_run
        return datum(value, style, field=path, run=run.name)
    about = {"field": path, "group": key_of(group)}
    text = datum(spread.median, style, stat="median", **about)
    if spread.interval is None or brief:
        return text
    low, high = spread.interval.low, spread.interval.high
    return Markup('{} <span class="interval">[{}, {}]</span>').format(
        text,
        datum(low, style, stat="low", **about),
        datum(high, style, stat="high", **about),
    )


def text_of_run(run: SavedRun, path: str) -> Markup:
    """Return a text of a run's summary."""
    text = field_of(run.summary, path)
    return Markup('<span data-field="{}" data-run="{}">{}</span>').format(path, run.name, text)


def with_whole_options(text: str) -> Markup:
    """Keep an option on one line: a browser would break ``--batch-size`` after any hyphen."""
    pieces = TAG.split(str(Markup.escape(text)))
    pieces[::2] = [OPTION.sub(r'<span class="option">\g<0></span>', piece) for piece in pieces[::2]]
    return Markup("".join(pieces))


def sum_of(group: Group, path: str) -> Markup:
    """Return the sum of a count over all runs of a group that have it."""
    spread = group.spread(path)
    if spread is None:
        return NONE
    if len(spread.by_run) == 1:
        return of_group(group, path, count, spread)
    total = sum(value for _, value in spread.by_run)
    return datum(total, count, field=path, stat="sum", group=key_of(group))


def sentences(*texts: object) -> Markup:
    """Return texts as sentences: each with a capital and a full stop."""
    made = []
    for text in texts:
        whole = text if isinstance(text, Markup) else Markup.escape(str(text).strip())
        if whole:
            first = whole[:1].upper() + whole[1:]
            made.append(first if whole.endswith((".", "!", "?")) else first + ".")
    return Markup(" ").join(made)


def mean_of(group: Group, field: str, value: float) -> Markup:
    """Return a share that is the mean over a group's runs."""
    return datum(value, percent, field=field, stat="mean", group=key_of(group))
