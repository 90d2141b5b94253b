"""The tables of measurements that take long, from the rows that are kept of one run of each.

python -m bench.replay_ratio --output replay-ratio
cp replay-ratio/replay-ratio.json docs/data/
cp replay-ratio/replay-ratio.png docs/tutorial/figures/7-replay-ratio.png

python -m bench.alarm_limits --output alarm-limits
cp alarm-limits/alarm-limits.json docs/data/
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import alarm_limits, replay_ratio

DATA = Path(__file__).parents[1] / "data"


def kept(name: str) -> list[dict[str, Any]]:
    """Return the rows that are kept of a measurement, one per run."""
    rows: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def render_replay_ratio() -> str:
    """Return the table of ``bench.replay_ratio``."""
    return replay_ratio.table(kept("replay-ratio"))


def render_alarm_limits() -> str:
    """Return the tables of ``bench.alarm_limits``."""
    return alarm_limits.tables(kept("alarm-limits"))
