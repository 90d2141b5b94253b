"""Measurements apart: begun together, with limits or without, and nobody left behind."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

import bench.aside
from bench.aside import AsideError, measure_aside
from bench.machine import usable_cores

pytestmark = pytest.mark.multiprocess


def test_limits_are_kept_or_lifted_before_the_libraries_are_loaded() -> None:
    name = {"name": "OPENBLAS_NUM_THREADS"}
    (limited,) = measure_aside("asides:limits", name, seconds=1)
    (lifted,) = measure_aside("asides:limits", name, seconds=1, with_limits=False)
    assert (limited["variable"], limited["threads"]) == ("1", 1)
    assert lifted["variable"] is None
    # What a library takes by default is its own affair, but with several cores it is not one.
    assert lifted["threads"] > 1 or usable_cores() == 1


def test_all_begin_when_the_slowest_is_ready_and_may_print() -> None:
    found = measure_aside("asides:when", {"pause": 0.2}, seconds=1, number=2)
    assert len(found) == 2
    assert min(each["began"] for each in found) >= max(each["ready"] for each in found)
    assert measure_aside("asides:prints", {}, seconds=1) == [7]


@pytest.mark.parametrize("where", ["preparing", "measuring"])
@pytest.mark.slow
def test_a_failure_is_one_sentence(where: str) -> None:
    with pytest.raises(AsideError) as caught:
        measure_aside("asides:raises", {"where": where}, seconds=1, number=2)
    assert caught.value.message == f"asides:raises failed: ValueError: it went wrong in {where}"
    assert caught.value.exit_code == 1


@pytest.mark.slow
def test_one_that_fails_ends_all_and_is_the_one_that_is_quoted(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(AsideError, match="ValueError: it went wrong in one"):
        measure_aside("asides:raises_in_one", {"folder": str(tmp_path / "first")}, seconds=1, number=3)
    assert time.monotonic() - began < bench.aside.START_SECONDS / 2


def sleeping() -> list[int]:
    """Return the processes that ``asides:sleeps`` has left."""
    own = psutil.Process().children(recursive=True)
    return [child.pid for child in own if "asides:sleeps" in child.cmdline()]


@pytest.mark.slow
def test_what_takes_far_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.aside, "START_SECONDS", 3.0)
    began = time.monotonic()
    with pytest.raises(AsideError, match="asides:sleeps did not end in time"):
        measure_aside("asides:sleeps", {}, seconds=0.01, number=2)
    assert 3 < time.monotonic() - began < 30
    assert sleeping() == []
