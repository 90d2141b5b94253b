from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
import racing
from racing import constant, is_torn

import common.weights
from common.acting import NetworkSpec
from common.weights import SharedWeights

SPEC = NetworkSpec((4,), "<f4", 2, hidden_size=128, layer_norm=False)


def make_weights() -> SharedWeights:
    return SharedWeights(SPEC, constant(SPEC, 0))


def test_what_was_published_last_is_pulled() -> None:
    generator = np.random.default_rng(0)
    initial = generator.normal(size=SPEC.num_parameters).astype(np.float32)
    weights = SharedWeights(SPEC, initial)
    held, version = weights.latest()
    assert version == weights.version == 0
    assert held.tolist() == initial.tolist()
    for expected_version in range(1, 6):
        vector = generator.normal(size=SPEC.num_parameters).astype(np.float32)
        assert weights.publish(vector) == expected_version == weights.version
        original = vector.tolist()
        vector[:] = 0  # the caller goes on training in its own vector
        assert weights.pull(held, version) == expected_version
        assert held.tolist() == original
        version = expected_version


def test_nothing_is_copied_when_nothing_is_newer() -> None:
    weights = make_weights()
    weights.publish(constant(SPEC, 1))
    mine = constant(SPEC, -7)
    assert weights.pull(mine, 1) == 1
    assert (mine == -7).all()
    assert weights.pull(mine, 0) == 1
    assert (mine == 1).all()


class Interrupted:
    """Numpy, but some copies stop half-way for something else to happen."""

    def __init__(self, happens: Any) -> None:
        self.happens = happens
        self.copies = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def copyto(self, target: np.ndarray, source: np.ndarray) -> None:
        self.copies += 1
        half = len(target) // 2
        target[:half] = source[:half]
        self.happens(self.copies)
        target[half:] = source[half:]


def publish_unnoticed(weights: SharedWeights, times: int) -> None:
    """Publish as ``publish`` does, without coming back into the interrupted copy."""
    arrays = weights._arrays
    for _ in range(times):
        new = weights.version + 1
        arrays["version"][0] = new
        arrays["slots"][new % 2] = new
        arrays["version"][1] = new


@pytest.mark.parametrize(("times", "copies"), [(0, 1), (1, 1), (2, 2), (5, 2)])
def test_a_copy_that_was_overtaken_is_repeated(
    times: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = make_weights()
    weights.publish(constant(SPEC, 1))
    slow = Interrupted(lambda copy: publish_unnoticed(weights, times) if copy == 1 else None)
    monkeypatch.setattr(common.weights, "np", slow)
    mine = constant(SPEC, -1)
    version = weights.pull(mine, 0)
    assert slow.copies == copies
    assert not is_torn(mine, version)
    assert version == (1 if times < 2 else 1 + times)


def test_half_of_a_publish_is_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights()
    seen: list[tuple[int, bool]] = []
    announced: list[int] = []

    def look(copy: int) -> None:
        vector = constant(SPEC, -1)
        # Said before the slot is touched, so that a slow reader of that slot finds out.
        announced.append(int(weights._arrays["version"][common.weights.WRITING]))
        monkeypatch.undo()
        version = weights.pull(vector, -1)
        seen.append((version, is_torn(vector, version)))
        monkeypatch.setattr(common.weights, "np", slow)

    slow = Interrupted(look)
    monkeypatch.setattr(common.weights, "np", slow)
    for version in range(1, 5):
        weights.publish(constant(SPEC, version))
    assert seen == [(0, False), (1, False), (2, False), (3, False)]
    assert announced == [1, 2, 3, 4]
    assert weights.version == 4


def test_a_reader_that_can_get_no_whole_copy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights()
    slow = Interrupted(lambda copy: publish_unnoticed(weights, 2))
    monkeypatch.setattr(common.weights, "np", slow)
    with pytest.raises(RuntimeError, match="no whole copy"):
        weights.pull(constant(SPEC, 0), -1)
    assert slow.copies == common.weights.MAX_COPIES


@pytest.mark.multiprocess
def test_no_pull_is_torn_at_full_speed() -> None:
    weights, flags = make_weights(), racing.make_flags()
    words = flags["flags"]
    pulls, torn, unguarded_torn = 0, 0, 0
    vector, version = weights.latest()
    with racing.children((racing.publish, flags, weights), (racing.pull_and_check, flags, weights)):
        racing.wait_until(lambda: words[racing.READY] and words[racing.DONE] > 100)
        end = time.perf_counter() + 4
        while min(pulls, words[racing.DONE]) < 1500 and time.perf_counter() < end:
            newer = weights.pull(vector, version)
            torn += is_torn(vector, newer) or newer < version
            pulls += newer > version
            version = newer
        # Positive control: the same check on a copy that nothing guards, and that takes its time.
        for _ in range(20):
            published = weights.version
            slot = weights._arrays["slots"][published % 2]
            copy = slot.copy()
            racing.wait_until(lambda published=published: weights.version > published + 2)
            copy[len(copy) // 2 :] = slot[len(copy) // 2 :]
            unguarded_torn += is_torn(copy, published)
        words[racing.STOP] = 1
    assert torn == 0
    assert words[racing.VIOLATIONS] == 0
    assert unguarded_torn == 20
    assert pulls > 150
    assert words[racing.DONE] > 150
    assert weights.version > 500
    last, version = weights.latest()
    assert not is_torn(last, version)


@pytest.mark.multiprocess
def test_a_publisher_killed_half_way_leaves_the_last_whole_version() -> None:
    weights, flags = make_weights(), racing.make_flags()
    with racing.children((racing.publish_half, flags, weights, 7)) as (process,):
        racing.wait_until(lambda: flags["flags"][racing.READY])
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
    assert process.exitcode == -signal.SIGKILL
    vector, version = weights.latest()
    assert version == 7
    assert not is_torn(vector, 7)
    # It really was in the middle of the next one.
    assert len(np.unique(weights._arrays["slots"][8 % 2])) == 2
    # Whoever goes on in its place begins with the next version.
    assert weights.publish(constant(SPEC, 8)) == 8
    assert weights.pull(vector, 7) == 8
    assert not is_torn(vector, 8)


@pytest.mark.multiprocess
def test_a_publisher_killed_at_full_speed_leaves_a_whole_version() -> None:
    for delay in (0.0, 0.013):
        weights, flags = make_weights(), racing.make_flags()
        with racing.children((racing.publish, flags, weights)) as (process,):
            racing.wait_until(lambda weights=weights: weights.version > 50)
            time.sleep(delay)
            os.kill(process.pid, signal.SIGKILL)
            process.join(10)
        vector, version = weights.latest()
        assert version > 50
        assert not is_torn(vector, version)
