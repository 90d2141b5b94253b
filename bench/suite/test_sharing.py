"""What processes share: publishing weights, pulling them, a lock."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest

from bench import parts
from bench.suite.rig import Benchmark, measure, quick

pytestmark = quick

WIDTHS = (32, 128, 512)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("way", ["publish", "pull"])
def test_weights(benchmark: Benchmark, way: str, width: int) -> None:
    """One flat copy to shared memory, and one back."""
    part = {"publish": parts.publishing, "pull": parts.pulling}[way](width)
    group, series = f"weights: width {width}", f"weights, {way}"
    measure(benchmark, group, part, series=series, axis="width", at=width)


def test_weights_pickled(benchmark: Benchmark) -> None:
    """A state_dict made into bytes and back: the least that a queue or a pipe does with it."""
    from common.acting import initial_weights
    from common.network import QNetwork

    spec = parts.network_spec_of(parts.WIDTH)
    network = QNetwork(spec, initial_weights(spec, 0))
    part = lambda: pickle.loads(pickle.dumps(network.state_dict()))  # noqa: E731
    measure(benchmark, f"weights: width {parts.WIDTH}", part)


def test_lock_file(benchmark: Benchmark) -> None:
    """Our lock, which a killed process cannot keep, with nobody else about."""
    measure(benchmark, "lock: take and give back", parts.locking())


def test_lock_multiprocessing(benchmark: Benchmark) -> None:
    """A lock of multiprocessing, which a killed process keeps for ever."""
    lock = multiprocessing.get_context("spawn").Lock()

    def take() -> None:
        with lock:
            pass

    measure(benchmark, "lock: take and give back", take)
