"""The files about the project say the same as the project."""

from __future__ import annotations

import re
import tomllib

from docs.generate.pages import DOCS

ROOT = DOCS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^([a-z-]+): *(.*)$", text, re.MULTILINE))
    assert {"cff-version", "message", "title", "authors", "version"} <= set(entries)
    assert entries["version"] == PROJECT["version"] and entries["title"] == PROJECT["name"]
    assert entries["license"] == PROJECT["license"]


def test_the_changelog_has_this_version_and_only_known_sections() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "Unreleased"
    assert PROJECT["version"] in [title.split(" - ")[0] for title in titles]
    sections = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Results"}


def test_what_a_page_needs_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    wanted = [*PROJECT["dependencies"]]
    for extra, packages in PROJECT["optional-dependencies"].items():
        wanted += [] if extra == "suite" else packages
    names = {re.split(r"[\[>=<]", each)[0].lower() for each in wanted}
    pinned = {line.split("==")[0].lower() for line in pins.split("\n") if "==" in line}
    assert names - pinned == set() and "mkdocs" in names
