"""The diagnosis against planted attributions of time, and against runs that are slow on purpose."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import strategies
from bench.answers import bottleneck_answer
from bench.diagnosis import NOTHING, diagnose
from bench.runner import run

Shares = dict[str, float]


def summary_of(
    strategy: str, processes: dict[str, Shares], cores: int = 8, **choices: Any
) -> dict[str, Any]:
    """Return as much of a summary as a diagnosis looks at; roles are the means of their processes."""
    config = strategies.load(strategy).Config(**choices)
    roles: dict[str, Shares] = {}
    for role in {name.rpartition("-")[0] for name in processes}:
        own = [shares for name, shares in processes.items() if name.startswith(role)]
        keys = {key for shares in own for key in shares}
        roles[role] = {key: sum(each.get(key, 0.0) for each in own) / len(own) for key in keys}
    return {
        "strategy": strategy,
        "config": dataclasses.asdict(config),
        "machine": {"usable_cores": cores},
        "updates": 100,
        "time": {"roles": roles, "processes": processes},
    }


def actors(learner: Shares, *actor: Shares) -> dict[str, Shares]:
    return {"learner-0": learner, **{f"actor-{i}": each for i, each in enumerate(actor)}}


def workers(*shares: Shares) -> dict[str, Shares]:
    return {f"actor_learner-{i}": each for i, each in enumerate(shares)}


BUSY = {"env_step": 0.5, "act": 0.3, "write": 0.1, "pull": 0.09, "other": 0.01}
HUNGRY = {"update": 0.3, "sample": 0.09, "wait": 0.61}
WAITING = {"env_step": 0.3, "act": 0.15, "wait": 0.55}
LEARNING = {"update": 0.7, "sample": 0.2, "priorities": 0.07, "wait": 0.03}
DRAWING = {"update": 0.3, "sample": 0.45, "priorities": 0.2, "wait": 0.05}
FAST_AT_BARRIER = {"env_step": 0.03, "act": 0.02, "barrier": 0.95}
SLOW_AT_BARRIER = {"env_step": 0.85, "act": 0.02, "barrier": 0.13}
STANDING_STILL = {"evaluation": 0.4, "checkpoint": 0.1}
BLOCKED = {"env_step": 0.2, "update": 0.4, "lock": 0.38, "other": 0.02}

PLANTED = {
    "collection": (
        summary_of("apex", actors(HUNGRY, BUSY, BUSY)),
        "the learner waits 61% of its time for data",
        ["--workers 3", "--envs-per-worker 64"],
    ),
    "learning": (
        summary_of("apex", actors(LEARNING, WAITING, WAITING), replay_ratio=0.5),
        "the actors wait 55% of their time for the learner",
        ["--replay-ratio 0.25", "--batch-size 64", "--hidden-size 64", "would only wait longer"],
    ),
    "sampling": (
        summary_of("apex", actors(DRAWING, WAITING, WAITING)),
        "the actors wait 55% of their time for the learner, which spends 65% of its own on batches",
        ["--batch-size 64", "would only wait longer"],
    ),
    "balanced": (
        summary_of("apex", actors({**LEARNING, "wait": 0.03}, BUSY, BUSY)),
        "the learner waits 3% of its time and the actors 0%",
        ["faster parts or more cores"],
    ),
    "barrier": (
        summary_of(
            "sync",
            actors({"update": 0.1, "barrier": 0.9}, FAST_AT_BARRIER, SLOW_AT_BARRIER, FAST_AT_BARRIER),
            workers=3,
            straggler="1:5",
        ),
        "the others wait 85% of their time for worker 1",
        ["--straggler", "--strategy apex"],
    ),
    "lock": (
        summary_of("hogwild", workers(BLOCKED, BLOCKED), lock=True, write="copy-back"),
        "the workers wait 38% of their time for the lock",
        ["--write in-place", "--no-lock", "--workers 1"],
    ),
    "staleness": (
        summary_of(
            "a3c",
            workers({"env_step": 0.9, "update": 0.1}, {"env_step": 0.2, "wait": 0.8}),
            max_staleness=1,
        ),
        "the workers wait 40% of their time for the slowest",
        ["--max-staleness", "makes worker 0 as fast"],
    ),
    "environment": (
        summary_of("single", workers({"env_step": 0.54, "act": 0.2, "update": 0.26}), cores=4),
        "stepping the environment takes 54% of the time",
        ["--strategy apex --workers 3"],
    ),
    "acting": (
        summary_of("single", workers({"env_step": 0.2, "act": 0.5, "update": 0.3})),
        "choosing actions takes 50% of the time",
        ["--strategy vector --envs-per-worker 8"],
    ),
    "update": (
        summary_of("vector", workers({"env_step": 0.2, "act": 0.1, "update": 0.7})),
        "updates take 70% of the time",
        ["--replay-ratio", "--batch-size 64", "--strategy apex"],
    ),
    "writing": (
        summary_of("vector", workers({"env_step": 0.2, "act": 0.1, "write": 0.6}), envs_per_worker=8),
        "writing rows takes 67% of the time",
        ["--envs-per-worker 16"],
    ),
    "sharing": (
        summary_of("hogwild", workers(*[{"publish": 0.3, "pull": 0.3, "update": 0.4}] * 2)),
        "copying weights takes 60% of the time",
        ["--replay-ratio"],
    ),
    "core": (
        summary_of("hogwild", workers(*[{"env_step": 0.3, "update": 0.7}] * 8), cores=2, workers=8),
        "8.0 of 8 processes are at work at a time, on 2 cores",
        ["--workers 2"],
    ),
}


@pytest.mark.parametrize("bottleneck", PLANTED)
def test_a_planted_attribution_gets_its_verdict_number_and_flags(bottleneck: str) -> None:
    summary, sentence, flags = PLANTED[bottleneck]
    found = diagnose(summary)
    assert found["bottleneck"] == bottleneck
    assert found["verdict"] is not None and found["suggestion"] is not None
    label = bottleneck if bottleneck == "balanced" else f"{bottleneck}-bound"
    assert found["verdict"].startswith(f"{label}: {sentence}")
    assert [flag for flag in flags if flag not in found["suggestion"]] == []


def test_the_answer_of_a_run_is_two_sentences() -> None:
    answer = bottleneck_answer(diagnose(PLANTED["collection"][0]))
    assert answer.startswith(
        "Collection-bound: the learner waits 61% of its time for data. Try more actors"
    )
    assert answer.endswith(".") and ".." not in answer
    assert bottleneck_answer(NOTHING) == "Not known."


@pytest.mark.parametrize("bottleneck", PLANTED)
def test_standing_still_changes_nothing(bottleneck: str) -> None:
    summary = PLANTED[bottleneck][0]
    evaluated = {
        group: {
            name: {**{key: value / 2 for key, value in shares.items()}, **STANDING_STILL}
            for name, shares in summary["time"][group].items()
        }
        for group in ("roles", "processes")
    }
    assert diagnose({**summary, "time": evaluated}) == diagnose(summary)


@pytest.mark.parametrize("bottleneck", PLANTED)
def test_every_flag_is_one_that_the_strategy_takes(bottleneck: str) -> None:
    summary = PLANTED[bottleneck][0]
    suggestion = diagnose(summary)["suggestion"] or ""
    unused = strategies.traits_of(summary["strategy"]).unused_options
    if "--strategy" in suggestion:
        suggestion = suggestion[: suggestion.index("--strategy")]
    named = [name.replace("-", "_") for name in re.findall(r"--(?:no-)?([a-z-]+)", suggestion)]
    assert [name for name in named if name not in summary["config"] or name in unused] == []
    assert named or "--strategy" in (diagnose(summary)["suggestion"] or "") or bottleneck == "balanced"


def test_actors_are_never_recommended_to_a_learner_that_is_behind_or_to_cores_that_are_taken() -> None:
    behind = diagnose(PLANTED["learning"][0])["suggestion"] or ""
    assert "--workers" not in behind
    full = diagnose(summary_of("apex", actors(HUNGRY, BUSY, BUSY), cores=2))
    assert full["bottleneck"] == "collection" and "--workers" not in (full["suggestion"] or "")
    assert "3 processes share 2 cores; more workers would only take turns" in (full["suggestion"] or "")
    free = diagnose(summary_of("apex", actors(HUNGRY, BUSY, BUSY), cores=4))
    assert "--workers 3" in (free["suggestion"] or "")


def test_a_barrier_without_a_slow_worker_asks_for_longer_rounds() -> None:
    alike = {"env_step": 0.2, "act": 0.1, "barrier": 0.7}
    found = diagnose(summary_of("sync", actors({"update": 0.2, "barrier": 0.8}, alike, alike)))
    assert found["bottleneck"] == "barrier" and "50% of their time at the barrier" in (
        found["verdict"] or ""
    )
    suggestion = found["suggestion"] or ""
    assert suggestion.startswith(
        "longer rounds, over which slow steps even out: --chunk-steps 8 or --env"
    )
    assert suggestion.endswith(
        "--envs-per-worker 16; or a strategy without a barrier (--strategy apex)"
    )
    learning = diagnose(summary_of("sync", actors({"update": 0.6, "barrier": 0.4}, alike, alike)))
    assert learning["bottleneck"] == "learning" and "60% of the time" in (learning["verdict"] or "")
    collecting = {"env_step": 0.5, "act": 0.25, "barrier": 0.25}
    slow = diagnose(summary_of("sync", actors({"update": 0.2, "barrier": 0.8}, collecting, collecting)))
    assert slow["bottleneck"] == "collection" and "waits 80%" in (slow["verdict"] or "")


def test_a_slow_worker_without_a_barrier_is_named_if_it_collects_less_than_its_share() -> None:
    planted = summary_of("apex", actors(HUNGRY, BUSY, {"env_step": 0.95, "act": 0.05}))
    even = {"workers": [{"worker": i, "share_collected": 0.5} for i in range(2)]}
    starved = {
        "workers": [{"worker": 0, "share_collected": 0.97}, {"worker": 1, "share_collected": 0.03}]
    }
    assert "makes worker 1 as fast" in (
        diagnose({**planted, "experience": starved})["suggestion"] or ""
    )
    assert "as fast as" not in (diagnose({**planted, "experience": even})["suggestion"] or "")


def test_two_long_waits_that_are_alike_blame_neither_side() -> None:
    found = diagnose(
        summary_of("apex", actors({"update": 0.6, "wait": 0.4}, {"act": 0.63, "wait": 0.37}))
    )
    assert found["bottleneck"] == "balanced" and "40%" in (found["verdict"] or "")
    assert "--chunk-steps 16 or --envs-per-worker 64" in (found["suggestion"] or "")


def test_what_is_not_known_gets_no_verdict() -> None:
    known = PLANTED["collection"][0]
    assert diagnose({**known, "updates": 0}) == NOTHING
    assert diagnose({**known, "time": None}) == NOTHING
    assert (
        diagnose({**known, "time": {"roles": {"learner": {}, "actor": {"evaluation": 1.0}}}}) == NOTHING
    )
    assert diagnose({"strategy": "apex"}) == NOTHING
    elsewhere = diagnose({**known, "strategy": "of-another-package"})
    assert elsewhere["bottleneck"] == "collection"
    assert "machine" in known and diagnose({**known, "machine": None})["bottleneck"] == "collection"


CHEAP = {"steps": 10**6, "seconds": 1.0, "evaluate_every_env_steps": 10**6, "warmup_env_steps": 100}


def real_run(strategy: str, folder: Any, **choices: Any) -> dict[str, Any]:
    config = strategies.load(strategy).Config(**{**CHEAP, **choices})
    return run(strategy, config, folder)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_real_straggler_is_found_and_named(tmp_path: Any) -> None:
    # Hardly any learning, so that the delay stands out on a busy machine, too.
    choices = {"straggler": "1:20", "replay_ratio": 0.01, "hidden_size": 16, "batch_size": 16}
    summary = real_run("sync", tmp_path / "run", **choices)
    time = summary["time"]
    assert summary["status"] == "completed" and time["bottleneck"] == "barrier"
    assert "worker 1" in time["verdict"] and "without --straggler" in time["suggestion"]
    assert time["processes"]["actor-1"]["env_step"] > 0.5 > time["processes"]["actor-0"]["env_step"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_real_learner_that_is_slow_is_blamed_and_no_actor_is_recommended(tmp_path: Any) -> None:
    slow = {"hidden_size": 512, "batch_size": 512, "replay_ratio": 1.0, "replay_capacity": 2_000}
    time = real_run("apex", tmp_path / "run", workers=1, **slow)["time"]
    assert time["bottleneck"] == "learning" and time["verdict"].startswith(
        "learning-bound: the actors wait"
    )
    assert "--workers" not in time["suggestion"] and "--replay-ratio 0.5" in time["suggestion"]
    assert "bench profile --device" in time["suggestion"]
