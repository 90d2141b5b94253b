from __future__ import annotations

import os
import pickle
import signal
import sys
from itertools import pairwise
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
import racing

import common.shared_memory
from common.config import Config, ConfigError
from common.envs import inspect_env
from common.experience import ExperienceBuffer
from common.shared_memory import (
    ALIGNMENT_BYTES,
    SharedArrays,
    free_bytes,
    require_room_for_processes,
)

FIELDS = {
    "bytes": ((3,), np.uint8),
    "numbers": ((5, 7), np.float64),
    "flags": ((1,), np.bool_),
    "empty": ((0, 4), np.float32),
    "pid": ((2,), np.int64),
}
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def named_mappings(pid: int) -> list[str]:
    """Return what a process has mapped from /dev/shm under a name that still exists."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in maps if "/dev/shm/" in line and not line.endswith("(deleted)")]


def deleted_mappings(pid: int) -> int:
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum(line.endswith("(deleted)") for line in maps)


def test_arrays_are_apart_aligned_and_zero() -> None:
    arrays = SharedArrays(FIELDS)
    spans = []
    for name, (shape, dtype) in FIELDS.items():
        array = arrays[name]
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert not array.any()
        if array.size:  # numpy gives no address of an empty array
            assert array.ctypes.data % 64 == 0
            spans.append((array.ctypes.data, array.ctypes.data + array.nbytes))
    # No two arrays share a cache line.
    for (_, end), (start, _) in pairwise(spans):
        assert -(-end // 64) * 64 <= start
    assert spans[-1][1] - spans[0][0] <= arrays.num_bytes
    assert ALIGNMENT_BYTES == 64


def test_memory_that_was_used_before_is_zero_again() -> None:
    for _ in range(5):
        arrays = SharedArrays(FIELDS)
        assert not arrays["numbers"].any()
        arrays["numbers"][...] = 1.5
        assert (arrays["numbers"] == 1.5).all()
        del arrays


@pytest.mark.multiprocess
@linux
def test_what_a_child_writes_its_parent_sees_and_no_file_appears() -> None:
    before = set(os.listdir("/dev/shm"))
    arrays = SharedArrays(FIELDS)
    arrays["numbers"][0, 0] = 1
    assert named_mappings(os.getpid()) == []
    assert deleted_mappings(os.getpid()) > 0
    with racing.children((racing.fill, arrays, 9)) as (process,):
        process.join(30)
        pid = process.pid
    assert process.exitcode == 0
    assert (arrays["numbers"] == 9).all()
    assert arrays["pid"].tolist() == [pid, pid]
    assert not arrays["bytes"].any()
    new = set(os.listdir("/dev/shm")) - before
    assert not [name for name in new if str(os.getpid()) in name or str(pid) in name]
    # Positive control: named shared memory is found by the same look.
    named = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert any(named.name in line for line in named_mappings(os.getpid()))
    finally:
        named.close()
        named.unlink()


@pytest.mark.multiprocess
@linux
def test_kill_9_leaves_nothing_behind() -> None:
    before = set(os.listdir("/dev/shm"))
    arrays = SharedArrays(FIELDS)
    with racing.children((racing.hold_memory, arrays)) as (process,):
        racing.wait_until(lambda: arrays["pid"].all())
        assert named_mappings(process.pid) == []
        assert deleted_mappings(process.pid) >= 2  # what it was given and what it made
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
    assert process.exitcode == -signal.SIGKILL
    new = set(os.listdir("/dev/shm")) - before
    assert not [name for name in new if str(process.pid) in name or str(os.getpid()) in name]
    # What it wrote is still shared, and nobody waits for it.
    assert (arrays["numbers"] == 3).all()
    arrays["numbers"][...] = 4
    assert (arrays["numbers"] == 4).all()


def test_shared_memory_travels_only_with_a_process() -> None:
    arrays = SharedArrays(FIELDS)
    with pytest.raises((RuntimeError, pickle.PicklingError)):
        pickle.dumps(arrays)
    assert (arrays["numbers"].shape, arrays["numbers"].any()) == ((5, 7), False)


def test_more_than_is_free_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.shared_memory, "free_bytes", lambda: 3 * 2**20)
    assert SharedArrays({"fits": ((2 * 2**20,), np.uint8)})["fits"].size == 2 * 2**20
    with pytest.raises(ConfigError) as error:
        SharedArrays({"big": ((5 * 2**20,), np.uint8)})
    message = str(error.value)
    assert "5 MiB" in message
    assert "3 MiB" in message
    assert "a smaller replay capacity: 54% of this one would fit" in message
    with pytest.raises(ConfigError, match="MiB of shared memory"):
        ExperienceBuffer(Config(replay_capacity=2_000_000), inspect_env("CartPole-v1"))


def test_what_is_free_is_the_smaller_of_memory_and_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.shared_memory.sys, "platform", "linux")
    monkeypatch.setattr(common.shared_memory.Path, "is_dir", lambda path: str(path) == "/dev/shm")

    class Amount:
        def __init__(self, amount: int) -> None:
            self.available = self.free = amount

    for memory, shm in ((1000, 64), (64, 1000)):
        monkeypatch.setattr(
            common.shared_memory.psutil, "virtual_memory", lambda memory=memory: Amount(memory)
        )
        monkeypatch.setattr(
            common.shared_memory.shutil, "disk_usage", lambda path, shm=shm: Amount(shm)
        )
        assert free_bytes() == 64
    # Elsewhere the file lies among the temporary ones; Windows has none.
    room = {common.shared_memory.tempfile.gettempdir(): 300, "/dev/shm": 5}
    monkeypatch.setattr(common.shared_memory.shutil, "disk_usage", lambda path: Amount(room[path]))
    monkeypatch.setattr(common.shared_memory.psutil, "virtual_memory", lambda: Amount(1000))
    for platform, free in (("darwin", 300), ("linux", 5), ("win32", 1000)):
        monkeypatch.setattr(common.shared_memory.sys, "platform", platform)
        assert free_bytes() == free


def test_more_workers_than_memory_holds_are_refused_before_anything_is_shared(monkeypatch) -> None:
    available = type("Memory", (), {"available": 100 * 2**20})
    monkeypatch.setattr("common.shared_memory.psutil.virtual_memory", lambda: available)
    require_room_for_processes(2)
    with pytest.raises(ConfigError, match=r"100000 workers .* at 40 MiB each .* room for 2"):
        require_room_for_processes(100_000)
    with pytest.raises(ConfigError, match=r"1 workers .* at 200 MiB each .* room for 0"):
        require_room_for_processes(1, learns=True)
