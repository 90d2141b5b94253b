"""What a reader has to know before numbers of several runs are compared."""

from __future__ import annotations

from collections.abc import Mapping

# As far as a held ratio may be from what was asked, on both sides.
SAME_RATIO = 1.1


def ratio_caution(ratios: Mapping[str, float]) -> list[str]:
    """Return a sentence if what is compared did not make about as many updates per env step.

    Args:
        ratios: the achieved replay ratio by name.
    """
    reached = {name: ratio for name, ratio in ratios.items() if ratio > 0}
    if not reached:
        return []
    low = min(reached, key=lambda name: reached[name])
    high = max(reached, key=lambda name: reached[name])
    if reached[high] <= SAME_RATIO * reached[low]:
        return []
    return [
        f"Replay ratios differ: {reached[low]:.3g} updates per env step in {low}, {reached[high]:.3g} "
        f"in {high}. So env steps/s and env steps to solve do not compare by themselves: with fewer "
        "updates for each, env steps are cheaper and teach less."
    ]
