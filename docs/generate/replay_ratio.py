"""The table of ``python -m bench.replay_ratio``, from the rows that are kept of one run of it.

python -m bench.replay_ratio --output replay-ratio
cp replay-ratio/replay-ratio.json docs/data/
cp replay-ratio/replay-ratio.png docs/tutorial/figures/7-replay-ratio.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.replay_ratio import table

KEPT = Path(__file__).parents[1] / "data" / "replay-ratio.json"


def kept() -> list[dict[str, Any]]:
    """Return the rows that are kept, one per run."""
    rows: list[dict[str, Any]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return rows


def render() -> str:
    """Return the table."""
    return table(kept())
