"""The tables of ``bench/suite``, from the session that is kept in ``docs/data/suite.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.machine import too_busy
from bench.suite.growth import HEADERS as GROWTH_HEADERS
from bench.suite.growth import lines_of
from bench.suite.growth import row as growth_row
from bench.suite.ratios import RUN_HEADERS, ratio_rows, run_rows, whole_runs
from bench.suite.saved import Result, Saved, duration, read
from docs.generate.markdown import code, named_versions, table

KEPT = Path(__file__).parents[1] / "data" / "suite.json"
RATIO_HEADERS = ("measured", "aim", "what")
PART_HEADERS = ("benchmark", "median", "middle half", "times the fastest", "rounds")


def render() -> str:
    """Return where it was measured, the ratios, whole runs, the growth, and every table."""
    saved = read(KEPT)
    sections = {
        "The promised ratios": table(RATIO_HEADERS, ratio_rows(each.extra for each in saved.results)),
        "Whole runs": table(RUN_HEADERS, run_rows(_runs(saved))),
        "How it grows": table(GROWTH_HEADERS, map(growth_row, lines_of(saved.results))),
        "Part by part": "\n\n".join(_group(name, each) for name, each in saved.groups.items()),
    }
    return "\n\n".join([_where(saved), *(f"## {name}\n\n{text}" for name, text in sections.items())])


def _where(saved: Saved) -> str:
    toolkit: dict[str, Any] = saved.machine["toolkit"]
    commit = str(saved.commit.get("toolkit") or saved.commit.get("id"))[:10]
    cores = f"{toolkit['usable_cores']} shared {saved.machine['machine'].replace('_', '-')} cores"
    return (
        f"Measured on {saved.measured_at[:10]} at commit {code(commit)}, on {cores}, one thread per "
        f"process, with Python {toolkit['python']}, {named_versions(toolkit['versions'])}."
        f"{_busy(saved.cpu_in_use_before)}"
    )


def _busy(cpu_in_use: float | None) -> str:
    """Say so if the machine was not quiet."""
    if cpu_in_use is None or not too_busy(cpu_in_use):
        return ""
    return (
        f" **Other programs used {cpu_in_use:.0%} of the machine when it began, so the times are too "
        "long and their ratios uncertain.**"
    )


def _runs(saved: Saved) -> dict[str, Any]:
    return whole_runs((each.name, each.median_seconds, each.extra) for each in saved.results)


def _group(name: str, results: list[Result]) -> str:
    """Return one table; whole runs have one of their own."""
    fastest = results[0].median_seconds
    rows = [
        (
            code(each.name.removeprefix("test_")),
            duration(each.median_seconds),
            duration(each.iqr_seconds) if each.rounds > 1 else "",
            f"{each.median_seconds / fastest:.2f}",
            f"{each.rounds:,}",
        )
        for each in results
    ]
    return f"### {name}\n\n{table(PART_HEADERS, rows)}"
