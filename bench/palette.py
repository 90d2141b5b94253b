"""One colour and one marker per strategy, one colour and one pattern per activity, in every figure.

The colours start from those of Okabe and Ito and were moved until every two of them differ for
readers with any of the three colour blindnesses, and each stands out from the page (contrast 3 and
more), on white and on dark. A test measures both. No figure relies on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Colour(NamedTuple):
    """One colour on a light and on a dark page."""

    light: str
    dark: str


@dataclass(frozen=True)
class StrategyStyle:
    """How a strategy is drawn, everywhere."""

    colour: Colour
    marker: str


@dataclass(frozen=True)
class ActivityStyle:
    """How an activity is drawn: its kind decides the pattern."""

    colour: Colour
    kind: str

    @property
    def hatch(self) -> str:
        """The pattern of its kind, in matplotlib's notation."""
        return HATCHES[self.kind]


INK = Colour("#1b1f24", "#f0f3f6")
MUTED = Colour("#57606a", "#9aa4ae")
GRID = Colour("#d5dae0", "#343b43")
SURFACE = Colour("#ffffff", "#14181d")
ALARM = Colour("#c3123f", "#ff6b81")

STRATEGY_STYLES: Mapping[str, StrategyStyle] = {
    "single": StrategyStyle(Colour("#1b1f25", "#f0f3f5"), "o"),
    "vector": StrategyStyle(Colour("#1657a7", "#086fc9"), "s"),
    "sync": StrategyStyle(Colour("#2f9dd5", "#46a1f0"), "D"),
    "hogwild": StrategyStyle(Colour("#6b2207", "#e5511f"), "X"),
    "a3c": StrategyStyle(Colour("#d07f13", "#eba10f"), "^"),
    "impala": StrategyStyle(Colour("#f5499d", "#b0347a"), "v"),
    "apex": StrategyStyle(Colour("#078f72", "#66d7bf"), "P"),
    "pqn": StrategyStyle(Colour("#786d02", "#f6db1e"), "*"),
}
# A strategy of another package, or another library's code in a comparison.
PEER_COLOUR = Colour("#565656", "#959595")
PEER_MARKERS = "<>hpd8"

HATCHES = {"compute": "", "read": "---", "write": "////", "wait": "xx", "other": ""}
ACTIVITY_STYLES: Mapping[str, ActivityStyle] = {
    "env_step": ActivityStyle(Colour("#9cc3e6", "#7fb2e0"), "compute"),
    "act": ActivityStyle(Colour("#4f8fc9", "#4a8ac8"), "compute"),
    "update": ActivityStyle(Colour("#1d4f8a", "#2b62a6"), "compute"),
    "pull": ActivityStyle(Colour("#1f7a50", "#2f9c69"), "read"),
    "sample": ActivityStyle(Colour("#86cba8", "#86cca9"), "read"),
    "write": ActivityStyle(Colour("#f4b183", "#f0a873"), "write"),
    "priorities": ActivityStyle(Colour("#e8853d", "#e8853e"), "write"),
    "publish": ActivityStyle(Colour("#c1540c", "#cf6218"), "write"),
    "wait": ActivityStyle(Colour("#c9ced4", "#6d7681"), "wait"),
    "lock": ActivityStyle(Colour("#a9a1b8", "#8b7fa3"), "wait"),
    "barrier": ActivityStyle(Colour("#b8a99a", "#8d7b69"), "wait"),
    "evaluation": ActivityStyle(Colour("#e3dfd7", "#4e4b46"), "wait"),
    "other": ActivityStyle(Colour("#e9ecef", "#3f4650"), "other"),
}
# What the names of the program say too shortly to a reader.
ACTIVITY_NAMES = {
    "env_step": "env step",
    "pull": "pull (read weights)",
    "publish": "publish (write weights)",
    "sample": "sample (read rows)",
    "write": "write (rows)",
}


def strategy_style(name: str) -> StrategyStyle:
    """Return a strategy's colour and marker; one of another package is grey, with its own marker."""
    if name in STRATEGY_STYLES:
        return STRATEGY_STYLES[name]
    return StrategyStyle(PEER_COLOUR, PEER_MARKERS[sum(name.encode()) % len(PEER_MARKERS)])


def activity_style(name: str) -> ActivityStyle:
    """Return an activity's colour and kind; that of ``other`` for one that is not known."""
    return ACTIVITY_STYLES.get(name, ACTIVITY_STYLES["other"])


def variables() -> dict[str, Colour]:
    """Return every colour by the name of its CSS variable. No two share a light value."""
    named = {"ink": INK, "muted": MUTED, "grid": GRID, "surface": SURFACE, "alarm": ALARM}
    named |= {f"strategy-{name}": style.colour for name, style in STRATEGY_STYLES.items()}
    named["strategy-peer"] = PEER_COLOUR
    return named | {f"activity-{name}": style.colour for name, style in ACTIVITY_STYLES.items()}


def variable_of(name: str) -> str:
    """Return the name of a strategy's CSS variable."""
    return f"strategy-{name if name in STRATEGY_STYLES else 'peer'}"
