"""Saved models: whole or not at all, readable without trust, and never of another network."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from common.acting import NetworkSpec, initial_weights, parameter_views
from common.checkpoint import load_model, save_model
from common.config import ConfigError

SPEC = NetworkSpec((4,), "<f4", 2, 16, True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def assert_refused(path: Path, spec: NetworkSpec = SPEC) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(path, spec)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and "\x1b" not in message
    assert len(message) < len(str(path)) + 200 and "weights_only" not in message
    return message


@pytest.mark.parametrize(
    "spec", [SPEC, NetworkSpec((10, 10, 4), "|b1", 3, 8, False), NetworkSpec((), "<f8", 2, 4, False)]
)
def test_a_round_trip_keeps_every_bit(path: Path, spec: NetworkSpec) -> None:
    vector = initial_weights(spec, 7)
    vector[:3] = [np.float32(1e-42), -0.0, np.finfo(np.float32).max]  # subnormal, signed zero, largest
    save_model(path, spec, vector)
    loaded = load_model(path, spec)
    assert loaded.tobytes() == vector.tobytes() and loaded.dtype == np.float32
    assert loaded is not vector and [each.name for each in path.parent.iterdir()] == ["model.pt"]


def test_the_file_is_a_plain_state_dict(path: Path) -> None:
    vector = initial_weights(SPEC, 7)
    save_model(path, SPEC, vector)
    state = torch.load(path, weights_only=True)
    assert type(state) is dict and list(state) == [name for name, _ in SPEC.layout()]
    for name, view in parameter_views(SPEC, vector).items():
        assert state[name].dtype == torch.float32 and (state[name].numpy() == view).all()
    # Each tensor owns its memory: a view would have saved the whole vector with every parameter.
    assert path.stat().st_size < 4 * vector.nbytes + 10_000


def test_a_missing_file_is_named(path: Path) -> None:
    assert "no saved model" in assert_refused(path)
    path.mkdir()
    assert "no saved model" in assert_refused(path)


class Planted:
    """Runs a function when it is unpickled."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("executed"),))


@pytest.mark.parametrize(
    "content", [b"", b"hello", pickle.dumps({"a": 1}), pickle.dumps(Planted())], ids=range(4)
)
def test_a_foreign_file_is_refused(path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    path.write_bytes(content)
    assert "not a saved model" in assert_refused(path)
    assert not Path("executed").exists()


@pytest.mark.parametrize("saved", [[1, 2], {}, {"linears.0.weight": 3}, Planted()], ids=range(4))
def test_another_torch_file_is_refused_and_executes_nothing(
    path: Path, saved: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    torch.save(saved, path)
    assert "not a saved model" in assert_refused(path)
    assert not Path("executed").exists()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, part: float) -> None:
    save_model(path, SPEC, initial_weights(SPEC, 0))
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    assert "damaged" in assert_refused(path)
    path.write_bytes(content)
    assert (load_model(path, SPEC) == initial_weights(SPEC, 0)).all()


def test_one_changed_weight_in_the_file_is_noticed(path: Path) -> None:
    vector = initial_weights(SPEC, 0)
    save_model(path, SPEC, vector)
    content = path.read_bytes()
    place = content.index(parameter_views(SPEC, vector)["linears.1.weight"].tobytes())
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert "damaged" in assert_refused(path)
    assert torch.load(path, weights_only=True)  # torch alone would have taken it


@pytest.mark.parametrize(
    "other, name",
    [
        (NetworkSpec((4,), "<f4", 2, 8, True), "advantage_head.weight"),
        (NetworkSpec((4,), "<f4", 2, 16, False), "norms.0.bias"),
        (NetworkSpec((4,), "<f4", 3, 16, True), "advantage_head.bias"),
        (NetworkSpec((1,), "<f4", 2, 16, True), "linears.0.weight"),  # would fit by broadcasting
        (NetworkSpec((4,), "<f4", 1, 16, True), "advantage_head.bias"),  # as well
        (NetworkSpec((10, 10, 4), "|b1", 2, 16, True), "convolutions.0.bias"),
    ],
)
def test_another_networks_model_is_refused_by_name(path: Path, other: NetworkSpec, name: str) -> None:
    save_model(path, other, initial_weights(other, 0))
    message = assert_refused(path)
    assert "another network" in message and name in message
    assert len(load_model(path, other)) == other.num_parameters


def test_a_failed_save_leaves_the_old_model_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(path, SPEC, initial_weights(SPEC, 0))

    def full_disk(*_: object) -> None:
        assert len(list(path.parent.iterdir())) == 2  # the new one is begun beside the old one
        raise OSError("No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_model(path, SPEC, initial_weights(SPEC, 1))
    monkeypatch.undo()
    assert [each.name for each in path.parent.iterdir()] == ["model.pt"]
    assert (load_model(path, SPEC) == initial_weights(SPEC, 0)).all()
