"""States in files: every bit comes back, and nothing in a file is executed."""

from __future__ import annotations

import io
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resume_rig import differences

from common.state_files import StateError, describe_file, fill, read_state, write_state

TREE: dict[str, Any] = {
    "counter": 2**127 + 1,  # as numpy's generators have them
    "rate": 0.1 + 0.2,
    "nothing": None,
    "not a number": math.nan,
    "infinite": -math.inf,
    "flag": True,
    "text": "a b\n",
    "list": [1, [2.5, {"deep": np.arange(6, dtype=np.int32).reshape(2, 3)}]],
    "subnormal": np.array([1e-45, -0.0, np.nan], dtype=np.float32),
    "bool": np.array([True, False]),
    "scalar": np.array(3.0, dtype=np.float32),
    "empty": np.zeros((0, 4)),
    "turned": np.arange(12.0).reshape(3, 4).T,
}


def test_every_bit_comes_back(tmp_path: Path) -> None:
    write_state(tmp_path / "a.npz", TREE)
    again = read_state((tmp_path / "a.npz").read_bytes())
    assert differences(again, TREE) == []
    assert again["scalar"].shape == () and again["turned"].flags.writeable
    assert differences(again, {**TREE, "rate": 0.3}) == [".rate"]  # and a difference is seen
    changed = {**TREE, "subnormal": np.array([1e-45, 0.0, np.nan], dtype=np.float32)}
    assert differences(again, changed) == [".subnormal"]


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_a_generator_goes_on_with_the_same_numbers(kind: Any, tmp_path: Path) -> None:
    generator = np.random.Generator(kind(5))
    generator.integers(3, size=7)  # leaves half a word behind in some of them
    write_state(tmp_path / "a.npz", {"state": generator.bit_generator.state})
    other = np.random.Generator(kind(6))
    assert other.random() != generator.random()
    state = read_state((tmp_path / "a.npz").read_bytes())["state"]
    other.bit_generator.state = generator.bit_generator.state = state
    assert (other.integers(3, size=100) == generator.integers(3, size=100)).all()
    assert other.standard_normal() == generator.standard_normal()


def test_numbers_of_numpy_become_plain_ones(tmp_path: Path) -> None:
    write_state(
        tmp_path / "a.npz", {"a": np.int64(3), "b": np.float32(0.1), "c": np.bool_(True), "d": (1,)}
    )
    again = read_state((tmp_path / "a.npz").read_bytes())
    assert again == {"a": 3, "b": float(np.float32(0.1)), "c": True, "d": [1]}
    assert [type(value) for value in again.values()] == [int, float, bool, list]


@pytest.mark.parametrize(
    "state", [{"a": object()}, {"a": np.array([None])}, {1: 2}, {"__array__": "a0"}, {"a": {3}}]
)
def test_what_is_no_plain_value_is_refused_and_leaves_no_file(state: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_state(tmp_path / "a.npz", state)
    assert list(tmp_path.iterdir()) == []


class Planted:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("executed"),))


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def as_tree(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        pickle.dumps(Planted()),
        archive(tree=np.array([Planted()])),
        archive(tree=as_tree({"a": {"__array__": "a0"}}), a0=np.array([Planted()])),
        archive(tree=as_tree({"a": {"__array__": "a7"}})),
        archive(tree=as_tree([1, 2])),
        archive(tree=np.frombuffer(b"[" * 100_000, dtype=np.uint8)),
        archive(other=np.zeros(3)),
    ],
    ids=range(9),
)
def test_a_foreign_file_is_refused_and_not_executed(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StateError):
        read_state(content)
    assert list(tmp_path.iterdir()) == []


def test_an_array_fills_only_one_of_its_kind() -> None:
    array = np.zeros((2, 3), dtype=np.float32)
    fill(array, np.ones((2, 3), dtype=np.float32), "weights")
    assert (array == 1).all()
    for other in (
        np.ones((3, 2), dtype=np.float32),
        np.ones((2, 3)),
        np.float32(2),
        None,
        [[1, 2, 3]] * 2,
    ):
        with pytest.raises(StateError, match="weights has another size"):
            fill(array, other, "weights")
    assert (array == 1).all()


def test_a_file_is_described_by_size_and_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    told = describe_file(tmp_path / "a")
    assert told["bytes"] == 3
    # The standard's own example (FIPS 180-2, appendix B.1).
    assert told["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
