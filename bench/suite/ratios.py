"""What the tables of pytest-benchmark have no column for: the promised ratios, and whole runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# What is remembered, what it is, and what is aimed at.
AIMS = {
    "collection_efficiency": (
        "env steps/s of the actors of a running apex, over the same actors alone",
        ">= 0.85",
    ),
    "learning_efficiency": (
        "updates/s of the running learner, over the same update in a bare loop",
        ">= 0.90",
    ),
    "audit_ratio": ("updates/s with the audit, over without", ">= 0.90"),
    "actor_rss_mib": ("MiB of private memory of an actor of apex", "<= 80"),
    "observations_stored": ("times that the replay stores an observation", "1"),
}
RUN_HEADERS = (
    "strategy",
    "seconds",
    "env steps/s",
    "updates/s",
    "updates per env step",
    "writes lost",
    "policy lag, p50",
    "staleness, p50",
)
RUN_FIELDS = {
    "env_steps_per_second": ",.0f",
    "updates_per_second": ",.0f",
    "replay_ratio_achieved": ".4g",
    "audit_writes_lost": ",",
    "policy_lag_p50": ",",
    "gradient_staleness_p50": ",",
}

Extra = Mapping[str, Any]


def ratio_rows(extras: Iterable[Extra]) -> list[tuple[str, str, str]]:
    """Return (measured, aim, what) of each promise that some benchmarks measured."""
    found = []
    for extra in extras:
        for name in AIMS.keys() & extra.keys():
            meaning, aim = AIMS[name]
            found.append((list(AIMS).index(name), (f"{extra[name]:.2f}", aim, meaning)))
    return [line for _, line in sorted(found)]


def run_rows(runs: Mapping[str, tuple[float, Extra]]) -> list[tuple[str, ...]]:
    """Return a row per whole run, from its training seconds and what it remembered, by strategy."""
    rows = []
    for name, (seconds, extra) in runs.items():
        cells = [format(extra[key], form) if key in extra else "" for key, form in RUN_FIELDS.items()]
        rows.append((name, f"{seconds:.2f}", *cells))
    return rows


def whole_runs(results: Iterable[tuple[str, float, Extra]]) -> dict[str, tuple[float, Extra]]:
    """Return the whole runs among (benchmark, seconds, remembered), by strategy."""
    return {extra["strategy"]: (seconds, extra) for _, seconds, extra in results if "strategy" in extra}
