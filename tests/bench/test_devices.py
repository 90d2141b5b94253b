"""A device that this machine lacks is refused in one sentence, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bench.devices
from bench.devices import Devices, check_device, find_devices, why_not
from bench.runner import run
from common.config import ConfigError
from common.device import available_devices
from strategies import single

NOTHING = Devices("2.13.0+cpu", ("cpu",), has_cuda_build=False)


def test_torch_is_asked_in_another_process_and_says_the_truth() -> None:
    devices = find_devices()
    assert list(devices.available) == available_devices()
    assert devices.accelerator == (None if devices.available == ("cpu",) else devices.available[0])
    assert devices.torch[0].isdigit()


def test_why_not_tells_a_missing_device_from_a_missing_build() -> None:
    assert why_not("cuda", NOTHING).startswith("the installed torch 2.13.0+cpu is a build without it")
    built = Devices("2.13.0", ("mps", "cpu"), has_cuda_build=True)
    assert why_not("cuda", built) == (
        "torch 2.13.0 finds none on this machine; give one of auto, mps, cpu"
    )
    assert built.accelerator == "mps" and NOTHING.accelerator is None


@pytest.fixture
def without_accelerator(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answer for torch that there is nothing, and count the questions."""
    asked: list[int] = []

    def answer() -> Devices:
        asked.append(1)
        return NOTHING

    monkeypatch.setattr(bench.devices, "find_devices", answer)
    return asked


def test_only_a_named_accelerator_costs_a_question(without_accelerator: list[int]) -> None:
    check_device("cpu")
    check_device("auto")
    assert without_accelerator == []
    with pytest.raises(ConfigError, match="device 'mps' is not available"):
        check_device("mps")
    assert without_accelerator == [1]


def test_a_run_on_a_missing_device_starts_nothing(
    without_accelerator: list[int], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="device 'cuda' is not available"):
        run("single", single.Config(device="cuda"), folder)
    assert not folder.exists() and without_accelerator == [1]


def test_the_command_line_refuses_it_with_code_2(invoke: Any, without_accelerator: list[int]) -> None:
    done = invoke("run", "--strategy", "vector", "--device", "mps")
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "'mps' is not available" in done.stderr
    shared = invoke("run", "--strategy", "hogwild", "--device", "cuda")
    assert shared.exit_code == 2 and "shared CPU memory" in shared.stderr


def test_a_torch_that_cannot_be_loaded_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.devices, "QUESTION", "import json\nraise ImportError('no libtorch')")
    find_devices.cache_clear()
    with pytest.raises(
        ConfigError, match="could not be asked for its devices: ImportError: no libtorch"
    ):
        find_devices()
    find_devices.cache_clear()
    monkeypatch.setattr(bench.devices, "QUESTION", "print('hello')")
    with pytest.raises(ConfigError, match="it said nothing"):
        find_devices()
    find_devices.cache_clear()
