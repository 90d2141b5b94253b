"""The order of the site's pages: a hook of mkdocs.

Four kinds, each a folder. Within a kind the pages named here come first, in this order, and all others
after them by name, so that a new page is in the navigation without being entered anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

KINDS = {
    "tutorial": "Tutorial",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
}
# Folders inside a kind that are a section of their own.
SECTIONS = {"reference/strategies": "Strategies"}
FIRST = {
    "tutorial": ("index",),
    "how-to": (
        "choose-a-strategy",
        "bring-your-own-environment",
        "set-the-replay-ratio",
        "find-the-bottleneck",
        "compare-strategies",
        "read-a-report",
        "audit-your-own-loop",
        "stop-and-resume",
        "debug-a-hang",
        "benchmark-reports",
        "reproduce-our-numbers",
        "add-a-strategy",
    ),
    "reference": ("cli", "config", "summary", "traits", "glossary", "comparison", "benchmarks"),
    "reference/strategies": ("single", "vector", "sync", "hogwild", "a3c", "impala", "apex", "pqn"),
    "explanation": ("how-it-works", "six-answers", "lost-updates", "statistics", "presets"),
}

Nav = list[Any]


def navigation(pages: Iterable[str]) -> Nav:
    """Return mkdocs' ``nav`` for some pages, given by their path below ``docs``."""
    folders: dict[str, list[str]] = {}
    for page in sorted(pages):
        folders.setdefault(Path(page).parent.as_posix(), []).append(page)
    nav: Nav = [{"Start": "index.md"}]
    for kind, title in KINDS.items():
        entries: Nav = _ordered(kind, folders.get(kind, []))
        for folder, section in SECTIONS.items():
            if folder.startswith(f"{kind}/") and folder in folders:
                entries.append({section: _ordered(folder, folders[folder])})
        if entries:
            nav.append({title: entries})
    return nav


def _ordered(folder: str, pages: Iterable[str]) -> list[str]:
    names = FIRST.get(folder, ())
    places = {name: place for place, name in enumerate(names)}
    return sorted(pages, key=lambda page: (places.get(Path(page).stem, len(names)), page))


def on_config(config: Any) -> Any:
    """Set the navigation from the files that there are."""
    folder = Path(config["docs_dir"])
    config["nav"] = navigation(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    return config
