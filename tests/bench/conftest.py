"""Runs commands in this process, for what needs no process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import HERE


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a command in this process, in an empty folder."""
    from bench.cli import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    return lambda *arguments: CliRunner().invoke(cli, list(arguments))
