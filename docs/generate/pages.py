"""Finds the generated parts of the pages and fills them.

A generated part stands between two comments; everything around it is kept by hand:

    <!-- generated: NAME ARGUMENT -->
    ...
    <!-- end of generated -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import strategies
from docs.generate import (
    benchmarks,
    cli,
    comparison,
    config,
    excerpts,
    lesson,
    measured,
    strategy,
    summary,
    traits,
)

DOCS = Path(__file__).parents[1]
PART = re.compile(
    r"<!-- generated: (?P<name>[\w-]+)(?: (?P<argument>[\w./-]+))? -->\n"
    r".*?"
    r"<!-- end of generated -->",
    re.DOTALL,
)

PARTS: dict[str, Callable[..., str]] = {
    "cli": cli.render,
    "measurements": cli.render_measurements,
    "choices": cli.render_choices,
    "config-common": config.render_common,
    "config-own": config.render_own,
    "config-presets": config.render_presets,
    "summary": summary.render,
    "traits": traits.render,
    "family": traits.family,
    "benchmarks": benchmarks.render,
    "comparison": comparison.render,
    "comparison-front": comparison.front,
    "excerpt": excerpts.excerpt,
    "lessons": lesson.contents,
    "replay-ratio": measured.render_replay_ratio,
    "alarm-limits": measured.render_alarm_limits,
    "strategy-idea": strategy.idea,
    "strategy-diff": strategy.difference,
    "strategy-choices": strategy.choices_of,
    "strategy-traits": strategy.traits_of,
    "strategy-results": comparison.of_strategy,
}


def filled(text: str, parts: Mapping[str, Callable[..., str]] = PARTS) -> str:
    """Return a page's text with every generated part made anew.

    Raises:
        KeyError: a part has a name that nothing makes.
    """

    def fill(match: re.Match[str]) -> str:
        first = match[0].split("\n", 1)[0]
        arguments = [match["argument"]] if match["argument"] else []
        content = parts[match["name"]](*arguments)
        return f"{first}\n\n{content}\n\n<!-- end of generated -->"

    return PART.sub(fill, text)


def part_names(text: str) -> list[str]:
    """Return which generated parts a page has, each with its argument."""
    return [" ".join(filter(None, (m["name"], m["argument"]))) for m in PART.finditer(text)]


def missing_pages() -> dict[Path, str]:
    """Return the pages of strategies that have none, with what to begin them with."""
    folder = DOCS / "reference" / "strategies"
    wanted = {folder / f"{name}.md": name for name in strategies.STRATEGIES}
    return {
        path: strategy.SKELETON.format(name=name) for path, name in wanted.items() if not path.exists()
    }


def stale(folder: Path = DOCS, front: Path = DOCS.parent / "README.md") -> dict[Path, str]:
    """Return the pages that are not what the code makes of them now, with what they should be."""
    found = {}
    for path in [front, *sorted(folder.rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            found[path] = new
    return found
