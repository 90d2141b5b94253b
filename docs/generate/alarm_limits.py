"""The tables of ``python -m bench.alarm_limits``, from the rows that are kept of one run of it.

python -m bench.alarm_limits --output alarm-limits
cp alarm-limits/alarm-limits.json docs/data/
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.alarm_limits import tables

KEPT = Path(__file__).parents[1] / "data" / "alarm-limits.json"


def kept() -> list[dict[str, Any]]:
    """Return the rows that are kept, one per run."""
    rows: list[dict[str, Any]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return rows


def render() -> str:
    """Return the tables."""
    return tables(kept())
