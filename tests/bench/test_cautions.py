"""When runs are not to be compared as they stand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.cautions import ratio_caution
from bench.machine import differences
from bench.tabulate import notes


@pytest.mark.parametrize(
    "ratios, is_said",
    [
        ({}, False),
        ({"single": 0.25}, False),
        ({"single": 0.25, "vector": 0.24}, False),
        ({"single": 0.25, "vector": 0.22}, True),
        ({"single": 0.25, "stopped": 0.0}, False),  # no update was made: nothing to compare
    ],
)
def test_ratios_more_than_a_tenth_apart_are_named(ratios: dict[str, float], is_said: bool) -> None:
    assert bool(ratio_caution(ratios)) == is_said


def test_the_caution_names_both_ends() -> None:
    (caution,) = ratio_caution({"vector": 1 / 64, "single": 0.25, "apex": 1 / 128})
    assert "0.00781 updates per env step in apex, 0.25 in single" in caution


def table(param: str, ratios: dict[int, float], solved: dict[int, Any]) -> dict[str, Any]:
    rows = [
        {
            "strategy": "apex",
            "param": {param: value},
            "runs": 4,
            "completed": 4,
            "solved": sum(seconds is not None for seconds in solved[value]),
            "metrics": {
                "replay_ratio": {"median": ratio},
                "wall_seconds_to_solve": {"values": solved[value]},
            },
        }
        for value, ratio in ratios.items()
    ]
    budgets = [{"name": "seconds", "rows": rows}]
    common: dict[str, Any] = {"seeds": [0, 1, 2, 3], "level": 0.95, "baseline": "apex"}
    return {**common, "budgets": budgets, "failed": [], "scalability": []}


YES, NO = [3.0, 4.0, 5.0, None], [3.0, None, None, None]


def test_notes_caution_unless_the_ratio_is_what_was_varied() -> None:
    for param, is_said in (("n_step", True), ("replay_ratio", False)):
        text = " ".join(notes(table(param, {1: 0.25, 2: 0.5}, {1: YES, 2: YES})))
        assert ("Replay ratios differ" in text) == is_said


def test_solving_that_stops_with_more_workers_is_named() -> None:
    same = dict.fromkeys((1, 2, 8), 0.25)
    text = " ".join(notes(table("workers", same, {1: YES, 2: YES, 8: NO})))
    assert "Unstable under seconds: with 8 workers fewer than half of the seeds solved, with 1" in text
    for solved in ({1: YES, 2: YES, 8: YES}, {1: NO, 2: NO, 8: NO}, {1: NO, 2: YES, 8: YES}):
        assert "Unstable" not in " ".join(notes(table("workers", same, solved)))
    assert "Unstable" not in " ".join(notes(table("n_step", same, {1: YES, 2: YES, 8: NO})))


def test_machines_differ_by_what_sets_their_speed() -> None:
    here = {"cpu": "A", "usable_cores": 2, "os": "one", "memory_mib": 1}
    assert differences(here, {**here, "os": "another"}) is None
    assert differences(here, {**here, "usable_cores": 4}) == "usable cores 2 there, 4 here"
    assert differences({}, here) is None  # an older folder does not say
