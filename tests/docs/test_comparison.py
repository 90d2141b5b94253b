"""The kept comparison: the pages say what its table says, and what is claimed of it holds."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import click
import pytest

import strategies
from docs.generate import comparison
from docs.generate.comparison import (
    KEPT,
    REPORT_FIGURES,
    SHOWN_FIGURES,
    front,
    keep,
    kept,
    of_strategy,
    render,
    slower_rows,
)
from docs.generate.pages import DOCS

README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
STEPS, SECONDS = kept()["budgets"]


def row_of(name: str, budget: dict[str, Any] = SECONDS) -> dict[str, Any]:
    found: dict[str, Any] = {row["strategy"]: row for row in budget["rows"]}[name]
    return found


def middle(name: str, metric: str, budget: dict[str, Any] = SECONDS) -> float:
    values = row_of(name, budget)["metrics"][metric]["values"]
    return statistics.median(math.inf if value is None else value for value in values)


def shown(name: str, metric: str, budget: dict[str, Any]) -> bool:
    versus = row_of(name, budget)["metrics"][metric]["versus_baseline"]
    return bool(versus["difference_shown"])


def test_the_front_page_has_every_strategy_with_its_median_speed() -> None:
    lines = front().splitlines()[2:]
    assert len(lines) == len(strategies.STRATEGIES)
    for line, name in zip(lines, strategies.STRATEGIES, strict=True):
        speed = statistics.median(row_of(name)["metrics"]["env_steps_per_second"]["values"])
        assert f"[`{name}`]" in line and f"| {speed:,.0f} |" in line
        can_lose = strategies.traits_of(name).can_lose_updates
        assert ("can be lost" in line) == can_lose


def test_what_the_front_page_claims_holds() -> None:
    ratio = middle("apex", "env_steps_per_second") / middle("single", "env_steps_per_second")
    assert f"`apex` makes {ratio:.0f} times the env steps" in README
    vector = middle("vector", "env_steps_per_second") / middle("single", "env_steps_per_second")
    assert f"`vector` {vector:.0f} times in one process" in README
    fewer = [middle("single", "replay_ratio") / middle(n, "replay_ratio") for n in ("apex", "vector")]
    assert f"they make {fewer[0]:.0f} and {fewer[1]:.0f} times fewer updates" in README
    updates = middle("apex", "updates_per_second") / middle("single", "updates_per_second")
    assert f"`apex` makes {updates:.1f} times those of `single`" in README
    several = [name for name in strategies.STRATEGIES if name != "single"]
    for name in several:
        assert not shown(name, "wall_seconds_to_solve", SECONDS)
        assert not shown(name, "final_return", SECONDS)
    for name in ("sync", "hogwild"):
        assert middle(name, "env_steps_per_second") < middle("vector", "env_steps_per_second")
    below = [
        name
        for name in several
        if shown(name, "final_return", STEPS)
        and middle(name, "final_return", STEPS) < middle("single", "final_return", STEPS)
    ]
    assert below == ["sync", "a3c", "impala", "apex"]
    assert "`sync`, `a3c`, `impala` and `apex` end below `single`" in README
    assert f"on {kept()['machine']['usable_cores']} shared cores" in README


def test_every_place_where_several_processes_are_slower_is_listed() -> None:
    """Against a second way to find them: medians of every pair."""
    expected = set()
    for budget, said in ((STEPS, "100,000 env steps"), (SECONDS, "12 s")):
        for name in ("sync", "hogwild", "a3c", "impala", "apex"):
            for other in ("single", "vector"):
                for metric, words, sign in (
                    ("env_steps_per_second", "env steps/s", -1),
                    ("updates_per_second", "updates/s", -1),
                    ("wall_seconds_to_solve", "wall seconds to solve", 1),
                ):
                    if sign * middle(name, metric, budget) > sign * middle(other, metric, budget):
                        expected.add((f"`{name}`", f"`{other}`", words, said))
    found = list(slower_rows(kept()))
    assert {(row[0], row[1], row[2], row[5]) for row in found} == expected
    assert len(found) == len(expected) > 10
    assert all(re.search(r"\d|never", row[3]) for row in found)


def test_the_page_has_the_tables_and_names_machine_and_commit() -> None:
    text = render()
    assert kept()["commit"][:10] in text and kept()["machine"]["cpu"] in text
    assert text.count("\n## ") == 7 and "difference shown" in text
    for name in strategies.STRATEGIES:
        assert text.count(f"\n| {name} |") == 6


def test_a_strategy_that_was_not_compared_says_so() -> None:
    assert of_strategy("nobody") == "Not measured yet."
    text = of_strategy("pqn")
    speed = statistics.median(row_of("pqn")["metrics"]["env_steps_per_second"]["values"])
    assert f"{speed:,.0f} [" in text and "bench compare --strategies single,pqn" in text


def test_a_comparison_is_kept_only_if_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(comparison, "FIGURES", tmp_path / "figures")
    folder = tmp_path / "compared"
    (folder / REPORT_FIGURES).mkdir(parents=True)
    with pytest.raises(click.ClickException, match=r"table\.json is not there; bench compare"):
        keep(folder)
    table = json.loads(KEPT.read_text(encoding="utf-8"))
    (folder / "table.json").write_text(json.dumps(table))
    with pytest.raises(click.ClickException, match=r"1-learning-env-steps\.png is not there"):
        keep(folder)
    for name in SHOWN_FIGURES:
        (folder / REPORT_FIGURES / name).write_bytes(b"figure")
    written = keep(folder)
    assert [path.name for path in written] == ["kept.json", *SHOWN_FIGURES.values()]
    assert json.loads(written[0].read_text()) == table
    for budget in table["budgets"]:
        budget["rows"] = [row for row in budget["rows"] if row["strategy"] != "apex"]
    (folder / "table.json").write_text(json.dumps(table))
    with pytest.raises(click.ClickException, match="lacks apex"):
        keep(folder)
