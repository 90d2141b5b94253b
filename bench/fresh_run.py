"""A run in a process of its own, for measurements that are made of many."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click


def fresh_run(choices: Sequence[str], output: Path) -> dict[str, Any]:
    """Train once as ``bench run`` with some choices does, and return the summary, also of a failed run.

    Args:
        choices: options of ``bench run``.
        output: the run folder.

    Raises:
        click.ClickException: it ended without a summary; the message is what it said last.
    """
    command = [sys.executable, "-m", "bench", "run", *choices, "--quiet", "--json"]
    command += ["--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise click.ClickException(done.stderr.strip()[-2000:])
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary
