"""The site: every page in the navigation, no dead link or anchor, nothing fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate.pages import DOCS
from docs.navigation import FIRST, KINDS, navigation

ROOT = DOCS.parent
LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:)?//", re.IGNORECASE)


def test_known_pages_come_first_and_new_ones_are_not_forgotten() -> None:
    names = ["zebra", "add-a-strategy", "choose-a-strategy"]
    reference = ["reference/strategies/apex.md", "reference/strategies/single.md", "reference/cli.md"]
    nav = navigation(["index.md", *reference, *(f"how-to/{name}.md" for name in names)])
    how_to = ["how-to/choose-a-strategy.md", "how-to/add-a-strategy.md", "how-to/zebra.md"]
    strategies = {"Strategies": ["reference/strategies/single.md", "reference/strategies/apex.md"]}
    assert nav == [
        {"Start": "index.md"},
        {"How-to": how_to},
        {"Reference": ["reference/cli.md", strategies]},
    ]
    assert navigation(["index.md"]) == [{"Start": "index.md"}]


def test_every_page_is_of_one_of_the_four_kinds() -> None:
    pages = [path.relative_to(DOCS) for path in DOCS.rglob("*.md")]
    assert len(pages) > 15
    assert {page.parts[0] for page in pages} <= {*KINDS, "index.md"}
    assert {folder.split("/")[0] for folder in FIRST} <= set(KINDS)


def build(folder: Path, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout into a folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=100
    )


def test_the_site_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    done = build(tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(list(DOCS.rglob("*.md")))
    for path in pages:
        assert LOADED.search(path.read_text(encoding="utf-8")) is None, path
    assert LOADED.search('<script src="https://example.org/a.js">') is not None


def test_dead_links_and_anchors_end_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[A](nowhere.md) [B](#no-such-anchor)\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    hook = "- docs/navigation.py"
    assert hook in settings
    (tmp_path / "mkdocs.yml").write_text(settings.replace(hook, f"- {DOCS}/navigation.py"))
    done = build(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr and "#no-such-anchor" in done.stderr
