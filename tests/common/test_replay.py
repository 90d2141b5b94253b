from __future__ import annotations

import time
from collections import Counter
from typing import Any

import counting_env as ce
import numpy as np
import pytest
import racing
from replay_rig import GAMMA, Key, Rig, expected_transition, first_priority, keys
from scipy import stats

import common.replay
from common.config import Config
from common.envs import EnvInfo
from common.experience import ExperienceBuffer
from common.probe import Probe
from common.telemetry import Telemetry
from common.types import Batch

BOTH = pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritized"])
SHAPES = pytest.mark.parametrize(
    ("env_id", "workers", "envs_per_worker"),
    [(ce.PLAIN, 1, 1), (ce.PLAIN, 3, 1), (ce.NEXT_STEP, 1, 5), (ce.SAME_STEP, 2, 3)],
)


@BOTH
@SHAPES
@pytest.mark.parametrize("n_step", [1, 5])
def test_every_sampled_transition_is_right(
    prioritized: bool, env_id: str, workers: int, envs_per_worker: int, n_step: int
) -> None:
    rig = Rig(
        env_id,
        workers=workers,
        envs_per_worker=envs_per_worker,
        n_step=n_step,
        prioritized=prioritized,
        priority_exponent=0.2,
    )
    ends = {"terminated": 0, "truncated": 0, "both": 0, None: 0}
    steps = 4 * rig.buffer.num_rows // 24 + 1
    for worker in range(workers):
        rig.run(worker, n_step + 2)
    for _ in range(24):  # four times around the ring
        for worker in range(workers):
            rig.run(worker, steps + worker)
        rig.replay.take_in()
        for _ in range(2):
            for stream, episode, at in rig.check(rig.replay.sample()):
                last = ce.length(stream, episode) - at <= n_step
                ends[ce.ending(stream, episode) if last else None] += 1
    assert min(ends.values()) > 0
    assert min(rig.buffer.writing(w) for w in range(workers)) > 4 * rig.buffer.num_rows
    assert rig.count("dropped") == 0
    assert rig.sample_all() == rig.stored()


@BOTH
@SHAPES
@pytest.mark.parametrize("n_step", [1, 5])
def test_the_last_transitions_bootstrap_where_the_run_stopped(
    prioritized: bool, env_id: str, workers: int, envs_per_worker: int, n_step: int
) -> None:
    num_cut = 0
    for steps in (1, 2, 3, 4, 6, 29, 130):
        rig = Rig(
            env_id,
            seed=steps,
            workers=workers,
            envs_per_worker=envs_per_worker,
            n_step=n_step,
            prioritized=prioritized,
            priority_exponent=0.0,
        )
        for worker in range(workers):
            rig.run(worker, steps)
        rig.flush()
        rig.replay.take_in()
        stored = rig.stored()
        assert rig.sample_all(60) == stored
        assert {rig.buffer.published(worker) for worker in range(workers)} == {steps}
        total = sum(rig.env_steps(worker, 0, steps) for worker in range(workers))
        assert rig.telemetry.total("env_steps") == total
        assert rig.count("stored") + rig.count("dropped") == total
        for key in stored:
            cut = expected_transition(key, n_step, 0.9, rig.stopped_at[key[0]])
            num_cut += cut != expected_transition(key, n_step, 0.9)
    assert num_cut > 0 or n_step == 1


@BOTH
@pytest.mark.parametrize("n_step", [1, 5])
def test_env_steps_are_stored_dropped_or_in_flight(prioritized: bool, n_step: int) -> None:
    rig = Rig(workers=2, envs_per_worker=2, n_step=n_step, prioritized=prioritized)
    generator = np.random.default_rng(n_step)
    taken = [0, 0]
    for turn in range(60):
        worker = int(generator.integers(2))
        rings = 3.7 if turn % 12 == 11 else generator.random() / 4
        rig.run(worker, int(rings * rig.buffer.num_rows))
        published = [rig.buffer.published(w) for w in range(2)]
        in_flight = sum(rig.env_steps(w, taken[w], published[w]) for w in range(2))
        total = rig.telemetry.total("env_steps")
        assert total == sum(rig.env_steps(w, 0, published[w]) for w in range(2))
        assert rig.count("stored") + rig.count("dropped") + in_flight == total
        if turn % 3 == 2:
            rig.replay.take_in()
            taken = published
    assert rig.count("dropped") > 0


@BOTH
@pytest.mark.parametrize("envs_per_worker", [1, 4])
def test_what_a_slow_learner_misses_is_counted_exactly(prioritized: bool, envs_per_worker: int) -> None:
    rig = Rig(envs_per_worker=envs_per_worker, n_step=3, prioritized=prioritized, priority_exponent=0.0)
    rig.run(0, rig.buffer.num_rows // 2)
    rig.replay.take_in()
    stored_before = rig.count("stored")
    assert (stored_before, rig.count("dropped")) == (rig.telemetry.total("env_steps"), 0)

    rig.run(0, 5 * rig.buffer.num_rows + 7)  # nothing of the first half is left
    rig.replay.take_in()

    found = rig.sample_all()
    assert found == rig.stored()
    assert rig.count("stored") - stored_before == len(found)
    assert rig.count("dropped") == rig.telemetry.total("env_steps") - rig.count("stored")
    if prioritized:
        assert rig.replay.num_transitions == len(found)
    rig.replay.take_in()
    assert rig.count("stored") - stored_before == len(found)


@BOTH
@pytest.mark.parametrize("extra_rows", [0, 25, 200])
def test_counts_hold_when_a_worker_comes_round_while_they_are_read(
    prioritized: bool, extra_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner loses the processor in the middle of ``take_in``, the worker goes on."""
    for interrupted, call in (("published", 1), ("writing", 1), ("writing", 2), ("writing", 3)):
        rig = Rig(n_step=2, prioritized=prioritized, priority_exponent=0.0)
        rig.run(0, 150)
        rig.replay.take_in()
        rig.run(0, 12)
        original, calls = getattr(rig.buffer, interrupted), []

        def read_and_lose_time(
            worker: int,
            rig: Rig = rig,
            original: Any = original,
            calls: list[int] = calls,
            call: int = call,
        ) -> int:
            before: int = original(worker)
            calls.append(before)
            if len(calls) == call:
                rig.run(0, extra_rows)
            return before if call == 1 else original(worker)

        monkeypatch.setattr(rig.buffer, interrupted, read_and_lose_time)
        dropped, stored = rig.count("dropped"), rig.count("stored")
        rig.replay.take_in()
        assert calls
        oldest = rig.oldest(0)
        assert rig.count("dropped") >= dropped
        assert rig.count("stored") + rig.count("dropped") <= rig.telemetry.total("env_steps")
        monkeypatch.undo()
        rig.run(0, 9)
        rig.replay.take_in()
        assert rig.count("stored") + rig.count("dropped") == rig.telemetry.total("env_steps")
        found = rig.sample_all(40)
        assert found == rig.stored()
        if extra_rows == 200 and call < 3:  # several times around: what it began with is gone
            until = rig.buffer.published(0)
            assert rig.count("stored") - stored == rig.env_steps(0, oldest, until)
        if prioritized:
            assert rig.replay.num_transitions == len(found)


@BOTH
def test_a_batch_that_was_overwritten_during_the_copy_is_drawn_anew(
    prioritized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(n_step=3, prioritized=prioritized)
    rig.run(0, 100)
    rig.replay.take_in()
    window, calls = common.replay.n_step_window, []

    def overwrite(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            rig.run(0, 2 * rig.buffer.num_rows)  # between the copy of rewards and of observations
        return window(*arguments)

    monkeypatch.setattr(common.replay, "n_step_window", overwrite)
    batch = rig.replay.sample()
    assert len(rig.check(batch)) == 32
    assert set(keys(batch.observation)) <= rig.stored()
    assert rig.count("samples_retried") == 1
    assert len(calls) == 2


@BOTH
def test_a_learner_that_slept_between_take_in_and_sample_recovers(prioritized: bool) -> None:
    rig = Rig(n_step=3, prioritized=prioritized)
    rig.run(0, 100)
    rig.replay.take_in()
    rig.run(0, 3 * rig.buffer.num_rows)
    sampled = rig.check(rig.replay.sample())
    assert set(sampled) <= rig.stored()
    assert rig.count("samples_retried") >= 1


@BOTH
@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch_can_be_drawn_from_one_or_two_transitions(prioritized: bool, steps: int) -> None:
    rig = Rig(prioritized=prioritized, chunk_steps=1, seed=3, priority_exponent=0.1)
    with pytest.raises(RuntimeError):
        rig.replay.sample()
    while len(rig.stored()) < steps:
        rig.run(0, 1)
    rig.replay.take_in()
    assert rig.sample_all(20) == rig.stored()
    assert len(rig.stored()) == rig.count("stored") == steps


def chi_square(counts: Counter[Key], expected: dict[Key, float]) -> float:
    assert set(counts) <= set(expected)
    total, mass = sum(counts.values()), sum(expected.values())
    observed = np.array([counts[key] for key in expected])
    return float(stats.chisquare(observed, np.array(list(expected.values())) / mass * total).pvalue)


def draw(rig: Rig, batches: int) -> Counter[Key]:
    counts: Counter[Key] = Counter()
    for _ in range(batches):
        counts.update(keys(rig.replay.sample().observation))
    return counts


@pytest.mark.parametrize("choices", [{}, {"prioritized": True, "priority_exponent": 0.0}])
def test_uniform_draws_are_uniform(choices: dict[str, Any]) -> None:
    rig = Rig(workers=2, envs_per_worker=2, n_step=3, seed=5, **choices)
    rig.run(0, 140)
    rig.run(1, 11)  # a worker with few rows, and more autoreset rows than others
    rig.replay.take_in()
    stored = rig.stored()
    assert set(rig.check(rig.replay.sample())) <= stored
    assert chi_square(draw(rig, 2000), dict.fromkeys(stored, 1.0)) > 1e-3
    assert rig.replay.sample().importance_weight.tolist() == [1.0] * 32


def importance_weights(batch_keys: list[Key], priority: dict[Key, float]) -> np.ndarray:
    """(N P)^-0.4 / max, by the formula."""
    mass = {key: p**0.6 for key, p in priority.items()}
    total = sum(mass.values())
    weight = np.array([(len(mass) * mass[key] / total) ** -0.4 for key in batch_keys])
    return weight / weight.max()


@pytest.mark.parametrize(("workers", "envs_per_worker"), [(1, 1), (2, 3)])
def test_prioritized_draws_follow_the_priorities(workers: int, envs_per_worker: int) -> None:
    n_step = 3
    rig = Rig(workers=workers, envs_per_worker=envs_per_worker, n_step=n_step, prioritized=True)
    for worker in range(workers):
        rig.run(worker, 150)
    rig.replay.take_in()
    priority = {key: first_priority(key, n_step) + 1e-6 for key in rig.stored()}
    assert rig.replay.num_transitions == len(priority)

    def follows() -> float:
        for _ in range(5):
            batch = rig.replay.sample()
            expected = importance_weights(rig.check(batch), priority)
            np.testing.assert_allclose(batch.importance_weight, expected, rtol=2e-3)
        return chi_square(draw(rig, 1500), {key: p**0.6 for key, p in priority.items()})

    assert follows() > 1e-3
    # New errors, both signs, replace the first priorities of the transitions that were sampled.
    for _ in range(10):
        batch = rig.replay.sample()
        error = np.random.default_rng(len(priority)).normal(0, 20, 32).astype(np.float32)
        rig.replay.update_priorities(batch, error)
        priority |= {
            key: abs(float(e)) + 1e-6 for key, e in zip(keys(batch.observation), error, strict=True)
        }
    assert follows() > 1e-3
    assert rig.count("priorities_dropped") == 0


def test_a_transition_without_error_can_still_be_drawn() -> None:
    rig = Rig(prioritized=True, chunk_steps=1)
    rig.run(0, 6)
    rig.buffer["priority"][...] = 0  # the worker saw none either
    rig.replay.take_in()
    stored = rig.stored()
    assert rig.sample_all(50) == stored
    for _ in range(50):
        rig.replay.update_priorities(rig.replay.sample(), np.zeros(32, dtype=np.float32))
    assert rig.sample_all(50) == stored
    assert rig.replay.num_transitions == len(stored)


@pytest.mark.parametrize("rows_later", [0, 12, 60, 500])
def test_priorities_of_replaced_rows_are_dropped_and_counted(rows_later: int) -> None:
    n_step = 2
    rig = Rig(envs_per_worker=2, n_step=n_step, prioritized=True, batch_size=48)
    rig.run(0, 160)
    rig.replay.take_in()
    batch = rig.replay.sample()
    old = rig.check(batch)
    rig.run(0, rows_later)
    rig.replay.take_in()
    stored = rig.stored()
    gone = sum(key not in stored for key in old)
    assert (gone == 0) == (rows_later == 0)
    assert (gone < 48) == (rows_later < 40)

    rig.replay.update_priorities(batch, np.full(48, 50.0, dtype=np.float32))

    assert rig.count("priorities_dropped") == gone
    priority = {key: first_priority(key, n_step) + 1e-6 for key in stored}
    priority |= {key: 50.0 + 1e-6 for key in old if key in stored}
    assert rig.replay.num_transitions == len(stored)
    for _ in range(20):
        after = rig.replay.sample()
        expected = importance_weights(rig.check(after), priority)
        np.testing.assert_allclose(after.importance_weight, expected, rtol=2e-3)


class Race:
    """A writer in another process whose every field follows from the row number, and its checks."""

    WIDTH, LANES = 64, 2

    def __init__(self, prioritized: bool, n_step: int) -> None:
        self.config = Config(
            envs_per_worker=self.LANES, n_step=n_step, gamma=GAMMA, warmup_env_steps=0,
            steps=10**9, chunk_steps=2, batch_size=64, replay_capacity=200, prioritized=prioritized,
        )  # fmt: skip
        info = EnvInfo("any", (self.WIDTH,), "<i4", racing.NUM_ACTIONS, 0, None)
        self.buffer = ExperienceBuffer(self.config, info)
        self.telemetry = Telemetry(2)
        self.flags = racing.make_flags()
        self.probe = Probe(self.telemetry, 1, self.config)
        self.replay = common.replay.make_replay(
            self.config, self.buffer, np.random.default_rng(0), self.probe
        )

    def writer(self) -> tuple[Any, ...]:
        probe = Probe(self.telemetry, 0, self.config)
        return racing.write_rows, self.flags, self.buffer, self.config, probe, self.WIDTH

    def wrong(self, batch: Batch, stopped_at: int | None = None) -> int:
        """Count transitions that are not wholly those of their row and lane, by brute force."""
        n_step, lanes = self.config.n_step, self.LANES
        row, lane = batch.row, batch.place % lanes
        at = row % 5  # rows 0 to 3 are an episode, row 4 is its autoreset row
        horizon = np.minimum(n_step, 4 - at)
        if stopped_at is not None:
            horizon = np.minimum(horizon, stopped_at - row)
        total = np.zeros(len(row))
        for k in range(n_step):
            total += (k < horizon) * GAMMA**k * (((row + k) * lanes + lane) % 1024)
        terminates = (at + horizon == 4) & ((row // 5) % 3 != 1)
        code = row * lanes + lane
        good = (
            (at != 4)
            & (batch.observation == code[:, None]).all(axis=1)
            & (batch.action == code % racing.NUM_ACTIONS)
            & (batch.weights_version == row)
            & (np.abs(batch.n_step_return - total) < 1e-2)
            & np.isclose(batch.bootstrap_discount, np.where(terminates, 0, GAMMA**horizon))
            & (batch.bootstrap_observation == (code + horizon * lanes)[:, None]).all(axis=1)
        )
        return int((~good).sum())


@pytest.mark.multiprocess
@pytest.mark.parametrize("n_step", [pytest.param(1, marks=pytest.mark.slow), 5])
@BOTH
def test_no_transition_is_torn_while_workers_write_at_full_speed(
    prioritized: bool, n_step: int
) -> None:
    race = Race(prioritized, n_step)
    replay, buffer = race.replay, race.buffer
    batches, wrong, dropped_before = 0, 0, 0
    with racing.children(race.writer()) as processes:
        racing.wait_until(lambda: buffer.published(0) > buffer.num_rows)
        started = time.perf_counter()
        while batches < 2000 and time.perf_counter() < started + 5:
            replay.take_in()
            for _ in range(4):
                batch = replay.sample()
                wrong += race.wrong(batch)
                batches += 1
                replay.update_priorities(batch, batch.n_step_return)
            dropped = race.telemetry.word(1, "dropped")
            assert dropped >= dropped_before
            dropped_before = dropped
        race.flags["flags"][racing.STOP] = 1
    assert processes[0].exitcode == 0
    assert wrong == 0
    assert batches > 200
    written = buffer.published(0)
    assert written > 20 * buffer.num_rows
    # At rest everything is accounted for, and the last windows are right.
    replay.take_in()
    total = race.telemetry.total("env_steps")
    assert total == race.LANES * (written - written // 5)
    counts = [race.telemetry.word(1, name) for name in ("stored", "dropped")]
    assert sum(counts) == total
    assert counts[0] > 0
    batches_at_rest = [replay.sample() for _ in range(50)]
    assert sum(race.wrong(batch, written) for batch in batches_at_rest) == 0


@pytest.mark.multiprocess
@BOTH
def test_the_same_check_finds_what_no_guard_would_let_through(
    prioritized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positive control: rows are copied wherever the worker is, and not looked at again."""
    race = Race(prioritized, n_step=5)
    reader = common.replay._Reader
    monkeypatch.setattr(reader, "is_intact", lambda self, place, row: np.array([True]))
    monkeypatch.setattr(
        reader, "first_safe_row", lambda self, w: max(0, self._buffer.writing(w) - self.num_rows)
    )
    wrong = 0
    with racing.children(race.writer()):
        racing.wait_until(lambda: race.buffer.published(0) > race.buffer.num_rows)
        end = time.perf_counter() + 20
        while wrong < 10 and time.perf_counter() < end:
            race.replay.take_in()
            for _ in range(5):
                wrong += race.wrong(race.replay.sample())
        race.flags["flags"][racing.STOP] = 1
    assert wrong >= 10
    assert race.buffer.published(0) > race.buffer.num_rows


def test_the_configuration_chooses_the_kind() -> None:
    assert isinstance(Rig().replay, common.replay.UniformReplay)
    assert isinstance(Rig(prioritized=True).replay, common.replay.PrioritizedReplay)
