"""A run in parts equals a run in one piece: to the last bit where one process acts at a time, and in
every counter, schedule and priority elsewhere.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resume_rig import SMALL, Part, differences, first_part, role_states
from strategy_runs import TRAITS, WITH_REPLAY, InProcess, run_here

import strategies
from bench.resuming import session_config
from common.saved_run import load_saved_run
from common.state_files import State
from common.telemetry import COUNTERS

EXACT = [name for name in TRAITS if TRAITS[name].single_process or "barrier" in TRAITS[name].guard]
# What only depends on the weights, rows and numbers, not on the time of day.
TIMELESS = ("env_steps", "updates", "episodes", "stored", "dropped", "samples_retried")
TIMELESS += ("priorities_dropped", "target_copies", "weights_version")
# How often the stop check of the role that is interrupted is asked in the whole run, at the least.
CALLS = {"single": 700, "vector": 80, "sync": 18, "pqn": 150}


def in_parts(name: str, folder: Path, number: int, seed: int, **choices: Any) -> tuple[Part, int]:
    """Run with interruptions at random moments; return the last part and how many there were."""
    rng = random.Random(seed)
    calls = max(2, CALLS[name] // number)
    part = first_part(name, folder, **choices).run(interrupt_at=rng.randint(2, calls))
    done = 0
    while load_saved_run(folder).contents["ended"] == "interrupted":
        done += 1
        at = rng.randint(1, calls) if done < number else None
        part = part.following().run(interrupt_at=at)
    return part, done


def assert_the_same(part: Part, whole: InProcess) -> None:
    assert part.weights.tobytes() == whole.weights.tobytes()
    assert part.evaluations == whole.evaluations and len(whole.evaluations) >= 2
    assert part.shared.master.weights.tobytes() == whole.shared.master.weights.tobytes()
    assert part.audit_report == whole.audit and whole.audit["updates_issued"] > 0
    for counter in TIMELESS:
        if counter != "weights_version" or "learner" in [role.name for role in part.roles]:
            assert part.telemetry.total(counter) == whole.telemetry.total(counter), counter
    for kind in ("episodes", "taken_in", "consumed"):
        assert (part.telemetry.lengths(kind) == whole.telemetry.lengths(kind)).all(), kind
    for name in ("policy_lag", "sample_age", "sample_age_updates"):
        assert (part.telemetry.histogram(name) == whole.telemetry.histogram(name)).all(), name
    assert part.telemetry.last_returns(100) == whole.telemetry.last_returns(100)
    if part.kept is not None and whole.kept is not None:
        for field in ("observation", "action", "reward", "valid", "truncated", "priority", "header"):
            assert part.kept[field].tobytes() == whole.kept[field].tobytes(), field


@pytest.mark.parametrize(
    "name, number, choices",
    [
        ("single", 3, {}),
        ("vector", 3, {"prioritized": True}),
        *(
            pytest.param(name, 20, choices, marks=pytest.mark.slow)
            for name in EXACT
            for choices in ({}, {"prioritized": True}, {"audit": False}, {"reset_interval": 40})
            if not choices or set(choices) - set(TRAITS[name].unused_options)
        ),
    ],
)
def test_interruptions_at_random_moments_change_nothing(
    name: str, number: int, choices: dict[str, Any], tmp_path: Path
) -> None:
    whole = run_here(name, **{**SMALL, **choices})
    part, done = in_parts(name, tmp_path, number, seed=number, **choices)
    assert done == number or (name != "single" and done >= 3)
    assert_the_same(part, whole)


@pytest.mark.slow
def test_another_seed_is_another_run(tmp_path: Path) -> None:
    """The comparison above would notice."""
    whole = run_here("single", **SMALL, seed=1)
    part, _ = in_parts("single", tmp_path, 1, seed=0)
    with pytest.raises(AssertionError):
        assert_the_same(part, whole)
    assert (part.weights != whole.weights).any()


def timeless(value: Any, key: str = "") -> Any:
    """Return a state without what the time of day, or having been resumed, changes."""
    if isinstance(value, dict):
        return {k: timeless(v, k) for k, v in value.items() if k not in ("now_ns", "num_resumptions")}
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if key in ("moments", "taken_in"):
        return value[:, :2]  # the third is nanoseconds
    return value


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("single", "sync", "a3c", "apex")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in strategies.STRATEGIES
    ],
)
def test_what_is_loaded_and_saved_again_is_what_was_saved(name: str, tmp_path: Path) -> None:
    calls = {"sync": 8, "vector": 40, "impala": 60, "single": 250}.get(name, 100)
    part = first_part(name, tmp_path, prioritized=True).run(interrupt_at=calls)
    first = load_saved_run(tmp_path)
    states = role_states(first)
    again = part.following().save_at_once()
    second = load_saved_run(tmp_path)
    assert second.number == first.number + 1
    found = differences(timeless(role_states(second)), timeless(states))
    for what in ("telemetry", "shared"):
        found += differences(second.run[what], first.run[what], what)
    # A worker of a3c begins by looking for a newer target than it had, and worker 0 by making it.
    looked_at = ("learner.target", "num_target_copies", "3-SharedWeights") if name == "a3c" else ()
    assert [each for each in found if not any(part in each for part in looked_at)] == []
    same = ("env_steps", "updates", "replay", "strategy", "warmup_env_steps")
    assert [second.contents[key] for key in same] == [first.contents[key] for key in same]
    assert first.contents["updates"] > 0 and first.contents["env_steps"] > 0
    assert again.telemetry.before[:2] == (first.contents["env_steps"], first.contents["updates"])


def test_apex_goes_on_with_the_same_priorities_and_counters(tmp_path: Path) -> None:
    part = first_part("apex", tmp_path, steps=900).run(interrupt_at=60)
    saved = load_saved_run(tmp_path)
    replay = role_states(saved)[0]["replay"]
    leaves = replay["priorities"]
    assert replay["total"] == pytest.approx(leaves.sum()) and replay["total"] > 0
    assert replay["num_transitions"] == np.count_nonzero(leaves) > 50
    again = part.following().save_at_once()
    resumed = role_states(load_saved_run(tmp_path))[0]["replay"]
    assert resumed["total"] == replay["total"] and (resumed["priorities"] == leaves).all()
    assert again.telemetry.total("env_steps") >= saved.contents["env_steps"]
    counted = saved.run["telemetry"]["counters"]
    assert counted[:, COUNTERS.index("env_steps")].sum() == saved.contents["env_steps"]
    whole = part.following().run()
    assert whole.telemetry.total("env_steps") >= 900
    assert_adds_up(whole)
    assert whole.audit_report["writes_lost"] == 0 and whole.audit_report["auditable"]
    assert whole.audit_report["updates_issued"] == whole.telemetry.total("updates")


def assert_adds_up(part: Part) -> None:
    """collected = stored + dropped + in flight."""
    assert part.kept is not None
    total = part.telemetry.total
    published = sum(
        part.kept.env_steps_until(worker, part.kept.published(worker))
        for worker in range(part.config.workers)
    )
    assert published == total("env_steps") >= total("stored") + total("dropped")
    assert published - total("stored") - total("dropped") <= 2 * part.config.num_lanes * 12


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_REPLAY)
def test_without_replay_it_is_warmed_up_again(name: str, tmp_path: Path) -> None:
    calls = {"sync": 12, "vector": 50}.get(name, 150)
    part = first_part(name, tmp_path, checkpoint_replay=False, steps=1_500, replay_capacity=5_000)
    part.run(interrupt_at=calls)
    saved = load_saved_run(tmp_path)
    at, updates = saved.contents["env_steps"], saved.contents["updates"]
    assert updates > 0 and not saved.contents["replay"]
    (rows,) = [each for each in saved.run["shared"].values() if "tails" in each]
    assert all(len(tail["action"]) < 30 for tail in rows["tails"])
    session = session_config(part.config, saved)
    warm_up = part.config.warmup_env_steps
    assert session.warmup_env_steps == 2 * warm_up
    # As much is owed at the end of the second warm-up as was at the end of the first part.
    assert session.owed_updates(at + warm_up) == part.config.owed_updates(at)
    again = part.following(warmup_env_steps=session.warmup_env_steps).run()
    dropped = again.telemetry.total("dropped")
    assert dropped <= 30 * again.config.num_lanes
    assert_adds_up(again)
    learned = again.telemetry.total("updates") - updates
    owed = session.owed_updates(again.telemetry.total("env_steps")) - updates
    assert 0 < learned <= owed + 1 and learned >= 0.8 * owed - 3
    third = session_config(part.config, load_saved_run(tmp_path))
    assert third.warmup_env_steps == 3 * warm_up


def test_a_second_warm_up_that_was_cut_short_is_not_counted_twice(tmp_path: Path) -> None:
    part = first_part("single", tmp_path, checkpoint_replay=False, warmup_env_steps=400)
    part.run(interrupt_at=150)
    saved = load_saved_run(tmp_path)
    at = saved.contents["env_steps"]
    assert 100 < at < 200 and saved.contents["updates"] == 0
    session = session_config(part.config, saved)
    assert session.warmup_env_steps == 400 + at  # what was collected is gone
    again = part.following(warmup_env_steps=session.warmup_env_steps).run(interrupt_at=100)
    later = load_saved_run(tmp_path)
    gone = later.contents["env_steps"] - at
    assert 50 < gone < 150
    assert session_config(part.config, later).warmup_env_steps == 400 + at + gone
    assert again.telemetry.total("updates") == 0


def test_with_replay_nothing_is_warmed_up_again(tmp_path: Path) -> None:
    part = first_part("single", tmp_path).run(interrupt_at=300)
    saved = load_saved_run(tmp_path)
    assert session_config(part.config, saved) == part.config
    state: State = role_states(saved)[0]
    assert state["replay"]["reader"]["with_rows"] and state["replay"]["reader"]["first_row"] == [0]
    assert session_config(part.config, None) is part.config
