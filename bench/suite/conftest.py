"""Threads, and what a saved result says of where it was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.machine import commit, cpu_in_use, machine, versions
from bench.suite.ratios import RUN_HEADERS, ratio_rows, run_rows, whole_runs
from common.processes import limit_threads, thread_limits

# Two results are compared by their machine; what differs from minute to minute is left out.
STABLE = ("brand_raw", "arch", "count")

CPU_IN_USE_BEFORE = cpu_in_use()  # by other programs, when the session began


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Limit every numeric library to one thread, as in every process of a run.

    Torch, which is loaded later, reads the variables that ``bench`` has set.
    """
    limit_threads()
    yield


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """Say which machine, versions and thread limits a result is of."""
    cpu = machine_info.get("cpu", {})
    machine_info["cpu"] = {name: cpu[name] for name in STABLE if name in cpu}
    machine_info["toolkit"] = {**machine(), "versions": versions(), "threads": thread_limits()}


def pytest_benchmark_update_commit_info(config: Any, commit_info: dict[str, Any]) -> None:
    """Say which commit of the toolkit."""
    commit_info["toolkit"] = commit()


def pytest_benchmark_update_json(config: Any, benchmarks: Any, output_json: dict[str, Any]) -> None:
    """Say how busy the machine was. Not with the machine: it would differ in every comparison."""
    output_json["cpu_in_use_before"] = CPU_IN_USE_BEFORE


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """Print the promised ratios, and of whole runs what the tables have no column for."""
    session = getattr(config, "_benchmarksession", None)
    measured = [each for each in session.benchmarks if each.stats.rounds] if session else []
    ratios = ratio_rows(each.extra_info for each in measured)
    if ratios:
        terminalreporter.section("ratios")
        for value, aim, meaning in ratios:
            terminalreporter.write_line(f"{value:>8}  aim {aim:8} {meaning}")
    runs = run_rows(whole_runs((each.name, each.stats.median, each.extra_info) for each in measured))
    if runs:
        terminalreporter.section("whole runs")
        for row in (RUN_HEADERS, *runs):
            terminalreporter.write_line(" ".join(cell.rjust(16) for cell in row))
