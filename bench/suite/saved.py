"""Reads what ``--benchmark-json`` or ``--benchmark-save`` has written."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config import ConfigError


@dataclass(frozen=True)
class Result:
    """One benchmark of a saved session.

    Attributes:
        name: as pytest calls it.
        group: its table.
        median_seconds: over rounds.
        iqr_seconds: the range of the middle half.
        rounds: how often it was measured.
        extra: what it remembered.
        seconds: every round, if the file has them.
    """

    name: str
    group: str
    median_seconds: float
    iqr_seconds: float
    rounds: int
    extra: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Saved:
    """A saved session: where it was measured, what, and how busy the machine was before."""

    machine: dict[str, Any]
    commit: dict[str, Any]
    measured_at: str
    results: list[Result]
    cpu_in_use_before: float | None = None

    @property
    def groups(self) -> dict[str, list[Result]]:
        """The results by table, fastest first; batch 8 comes before batch 64."""
        found: dict[str, list[Result]] = {}
        for result in sorted(self.results, key=lambda each: each.median_seconds):
            found.setdefault(result.group, []).append(result)
        return {name: found[name] for name in sorted(found, key=_naturally)}


def _naturally(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts numbers in a name by their size."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def read(path: Path) -> Saved:
    """Return a saved session.

    Raises:
        ConfigError: the file is not there or not of that kind.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = [_result(each) for each in content["benchmarks"]]
        machine, commit = content["machine_info"], content["commit_info"]
        in_use = content.get("cpu_in_use_before")
        return Saved(machine, commit, content["datetime"], results, in_use)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path} is no file of pytest-benchmark; make one with --benchmark-json FILE"
        ) from None


def _result(entry: dict[str, Any]) -> Result:
    stats = entry["stats"]
    return Result(
        name=entry["name"],
        group=entry["group"] or "",
        median_seconds=float(stats["median"]),
        iqr_seconds=float(stats["iqr"]),
        rounds=int(stats["rounds"]),
        extra=entry["extra_info"],
        seconds=[float(each) for each in stats.get("data", [])],
    )


def duration(seconds: float) -> str:
    """Return a time with three digits and a fitting unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
