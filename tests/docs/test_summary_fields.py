"""Every field of ``summary.json`` is in the list of fields, and every listed field is there."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from strategy_runs import train

from bench.summary_fields import FIELDS, SummaryField, differences, section_of

# What only runs of another kind have: the list says what its parts are called.
MADE = {
    "a": 1,
    "rows": [{"x": 1, "y": None}, {"x": 2, "y": 3}],
    "by_role": {"actor": {"wait": 0.5}, "learner": {"update": 1.0}},
    "nothing": None,
    "empty": [],
    "pairs": [[1, 2], [3, 4]],
}
LIST = dict.fromkeys(
    ["a", "rows[].x", "rows[].y", "by_role.*.*", "nothing.p50", "empty[].z", "pairs"],
    SummaryField("number", "Something."),
)


def summary_of(name: str) -> dict[str, Any]:
    """Return a real run's summary as a reader of the file gets it."""
    summary: dict[str, Any] = json.loads(json.dumps(train(name).summary))
    return summary


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", ["single", "hogwild"])
def test_a_real_summary_has_the_listed_fields_and_no_others(name: str) -> None:
    undocumented, missing = differences(summary_of(name))
    assert undocumented == set()
    assert missing == set()


@pytest.mark.multiprocess
def test_a_field_that_is_renamed_is_noticed_twice() -> None:
    summary = copy.deepcopy(summary_of("hogwild"))
    summary["audit"]["writes_gone"] = summary["audit"].pop("writes_lost")
    summary["experience"]["workers"][1]["mood"] = "good"
    undocumented, missing = differences(summary)
    assert undocumented == {"audit.writes_gone", "experience.workers[].mood"}
    assert missing == {"audit.writes_lost"}


def test_lists_keys_and_nulls_are_looked_into() -> None:
    assert differences(MADE, LIST) == (set(), set())
    without = {name: field for name, field in LIST.items() if name not in ("rows[].y", "pairs")}
    assert differences(MADE, without) == ({"rows[].y", "pairs"}, set())
    more = {**LIST, **dict.fromkeys(("rows[].w", "by_role.*.z", "b"), LIST["a"])}
    assert differences(MADE, more) == (set(), {"rows[].w", "by_role.actor.z", "by_role.learner.z", "b"})
    assert differences({**MADE, "nothing": {"p95": 1}}, LIST) == ({"nothing.p95"}, {"nothing.p50"})


def test_every_field_has_a_unit_and_a_sentence() -> None:
    for name, field in FIELDS.items():
        assert field.unit and field.meaning.endswith("."), name
        assert section_of(name) and "|" not in field.unit
    assert section_of("env_steps") == "The run" and section_of("answers[].answer") == "answers"
