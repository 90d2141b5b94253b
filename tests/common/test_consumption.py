"""What a learner consumes, against a count by hand of every draw."""

from __future__ import annotations

from collections import Counter
from typing import Any

import counting_env as ce
import numpy as np
import pytest
from replay_rig import Rig

from bench.summary import _by_episode_length, _draws_are_whole, _experience
from common.config import Config
from common.consumption import CLOCK_SIZE, Consumption, UpdateClock
from common.probe import Moment, Probe
from common.telemetry import LENGTHS, Telemetry
from common.types import RoleReport, RunResult


def result_of(telemetry: Telemetry, **counters: int) -> RunResult:
    """A result that holds what was counted, and a report per collecting process."""
    nothing: dict[str, Any] = dict.fromkeys(RunResult.__dataclass_fields__)
    nothing |= {"lengths": {name: telemetry.lengths(name) for name in LENGTHS}, "in_flight_at_end": 0}
    workers = range(telemetry.arrays["consumed"].shape[1])
    reports = [
        RoleReport("actor", worker, counters={"env_steps": telemetry.word(worker, "env_steps")})
        for worker in workers
    ]
    return RunResult(
        **{**nothing, "roles": reports, "consumed_by_worker": telemetry.consumed_by_worker()}
    )


def lengths_of(places: np.ndarray) -> dict[int, int]:
    return {int(length): int(places[length]) for length in np.flatnonzero(places[:64])}


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("env_id", [ce.PLAIN, ce.NEXT_STEP])
def test_shares_by_worker_and_by_episode_length_equal_a_count_by_hand(
    env_id: str, prioritized: bool
) -> None:
    # Short rings: rows are overwritten many times over and slots of episodes used again.
    rig = Rig(env_id, workers=2, envs_per_worker=2, prioritized=prioritized, replay_capacity=64)
    drawn: Counter[tuple[int, int, int]] = Counter()
    for _ in range(40):
        rig.run(0, 6)
        rig.run(1, 2)
        rig.replay.take_in()
        for _ in range(3):
            drawn.update(rig.check(rig.replay.sample()))
    rig.replay.take_in()
    rig.probes[-1].finish()
    by_worker = Counter({0: 0, 1: 0})
    for (stream, _, _), number in drawn.items():
        by_worker[rig.home[stream][0]] += number
    assert rig.telemetry.consumed_by_worker() == [by_worker[0], by_worker[1]]
    assert sum(by_worker.values()) == 40 * 3 * 32

    # The episodes that had not ended count by the steps they had so far.
    taken = Counter(
        (stream, episode)
        for worker in range(2)
        for stream, episode, _ in rig.transitions(worker, 0, rig.buffer.published(worker))
    )
    collected: Counter[int] = Counter()
    consumed: Counter[int] = Counter()
    for (stream, episode), steps in taken.items():
        collected[steps] += steps
        consumed[steps] += sum(n for (s, e, _), n in drawn.items() if (s, e) == (stream, episode))
        assert steps <= ce.length(stream, episode)
    assert lengths_of(rig.telemetry.lengths("taken_in")) == dict(collected)
    assert lengths_of(rig.telemetry.lengths("consumed")) == {k: v for k, v in consumed.items() if v}


def consumption(workers: int, rows: int, lanes: int = 1) -> tuple[Telemetry, Probe, Consumption]:
    telemetry = Telemetry(workers + 1, workers)
    probe = Probe(telemetry, workers, Config())
    return telemetry, probe, Consumption(workers, rows, lanes, 0, probe)


def take_in_all(kept: Consumption, worker: int, rows: int, length: int) -> None:
    """Fill one lane with episodes of one length; each is followed by a row that is no step."""
    at = np.arange(rows) % (length + 1)
    place = worker * rows + np.arange(rows)
    kept.take_in(worker, place, (at == length - 1)[:, None], (at != length)[:, None])


def test_ten_steps_in_one_worker_and_a_thousand_in_another_give_the_known_shares() -> None:
    rows = 3_003  # 273 episodes of 10, and 3 of 1,000
    telemetry, probe, kept = consumption(2, rows)
    take_in_all(kept, 0, rows, 10)
    take_in_all(kept, 1, rows, 1_000)
    telemetry.arrays["words"][0, 0], telemetry.arrays["words"][1, 0] = 2_730, 3_000
    short, long = np.arange(11 * 273), rows + np.arange(3_003)
    kept.draw(np.resize(short[short % 11 != 10], 1_000), np.zeros(1_000, dtype=np.int64))
    kept.draw(np.resize(long[(long - rows) % 1_001 != 1_000], 3_000), np.zeros(3_000, dtype=np.int64))
    probe.finish()
    result = result_of(telemetry)
    bins = _by_episode_length(result, True, True)
    assert bins is not None and (bins[0]["from"], bins[-1]["to"]) == (10, 1_000)
    assert bins[-1]["share_collected"] == pytest.approx(3_000 / 5_730)
    assert bins[-1]["share_consumed"] == pytest.approx(0.75)
    workers = _experience(Config(workers=2), result, True, True)["workers"]
    assert [each["share_consumed"] for each in workers] == [0.25, 0.75]
    assert workers[1]["share_collected"] == pytest.approx(3_000 / 5_730)


def test_a_worker_that_is_never_drawn_has_no_share() -> None:
    telemetry, probe, kept = consumption(2, 100)
    for worker in range(2):
        take_in_all(kept, worker, 100, 9)
    for _ in range(20):
        kept.draw(np.arange(9), np.zeros(9, dtype=np.int64))
    probe.finish()
    block = _experience(Config(workers=2), result_of(telemetry), True, True)
    assert [each["share_consumed"] for each in block["workers"]] == [1.0, 0.0]
    assert block["jain_consumed"] == 0.5


@pytest.mark.parametrize("held_back", [0, 3, 40])
def test_an_actor_held_back_k_updates_shows_lag_k(held_back: int) -> None:
    telemetry, probe, kept = consumption(1, 100)
    take_in_all(kept, 0, 100, 9)
    for update in range(200):
        version = np.full(9, update - min(update, held_back))
        kept.draw(np.arange(9), version)
        probe.count_update()
    lag = telemetry.histogram("policy_lag")
    batches = 13  # one in sixteen of 200
    assert int(lag[:-1].sum()) == 9 * batches
    assert int(lag[held_back]) >= 9 * (batches - 3) and int(lag[-1]) == held_back


def test_the_most_drawn_transition_and_the_age_of_rows_are_found() -> None:
    telemetry, probe, kept = consumption(1, 100)
    take_in_all(kept, 0, 100, 9)
    probe.count("env_steps", 77)
    for _ in range(17):
        kept.draw(np.array([5, 5, 6]), np.zeros(3, dtype=np.int64))
    assert probe.gauges()["most_sampled"] == 34
    age = telemetry.histogram("sample_age")
    assert int(age[-1]) == 77 and int(age[:-1].sum()) == 6
    kept.draw(np.array([5, 5, 6]), np.zeros(3, dtype=np.int64))  # not one that is looked at
    kept.flush()
    assert telemetry.most_sampled() == 36
    take_in_all(kept, 0, 100, 9)  # the same places anew: nothing of the old rows is left
    assert kept._draws_of_place.max() == 0


def test_the_clock_knows_when_a_version_was_new_also_when_it_has_forgotten_half() -> None:
    clock = UpdateClock()
    for update in range(3 * CLOCK_SIZE):
        clock.note(Moment(update, 10 * update, 1_000 * update))
    wanted = np.array([0, 7, CLOCK_SIZE, 3 * CLOCK_SIZE - 1])
    found = clock.when(wanted)
    assert (np.abs(found[:, 0] - wanted) <= 4).all()
    assert (found[:, 1] == 10 * found[:, 0]).all() and (found[:, 2] == 1_000 * found[:, 0]).all()


def test_draws_that_nobody_lived_to_tell_are_null_and_not_made_up() -> None:
    telemetry, _, kept = consumption(2, 100)
    for worker in range(2):
        take_in_all(kept, worker, 100, 9)
    kept.draw(np.arange(9), np.zeros(9, dtype=np.int64))
    for worker in range(2):
        telemetry.arrays["words"][worker, 0] = 90
        Probe(telemetry, worker, Config(workers=2)).record_episodes([(1.0, 9)])
    result = result_of(telemetry)  # the learner was killed: it has not told its counts
    learner = RoleReport("learner", 0)
    result.roles.append(learner)
    assert not _draws_are_whole(result), "it did not end by itself"
    block = _experience(Config(workers=2), result, True, False)
    assert [each["share_consumed"] for each in block["episode_length"]] == [None]
    assert [each["share_consumed"] for each in block["workers"]] == [None, None]
    assert block["jain_consumed"] is None
    learner.imports_torch = True
    assert _draws_are_whole(result)
    learner.restarts = 1
    assert not _draws_are_whole(result), "the one before it was killed"
    # Where each transition is learned from once, nothing has to be told at the end.
    once = _experience(Config(workers=2), result, False, True)["episode_length"]
    assert [each["share_consumed"] for each in once] == [1.0]
