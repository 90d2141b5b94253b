"""``bench audit``: what it refuses, what it races, and that nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from commands import finish, start

from bench.audit import fitting, make_cells, middle, numbers
from bench.write_paths import (
    LOSES_NOTHING,
    PATHS,
    READY,
    RMSPROP_DECAY,
    RMSPROP_EPSILON,
    STEP,
    Cell,
    Race,
    RaceError,
    iter_forever,
    make_push,
    make_work,
    num_elements,
    processes_of,
    wait_for,
)
from common.config import ConfigError

BAD = {
    "no workers": (("--workers", "0"), ("workers '0'", "from 1 to 64")),
    "half a worker": (("--workers", "1,2.5"), ("workers '2.5'", "whole numbers")),
    "nothing": (("--workers", ""), ("workers ''",)),
    "words": (("--hidden-size", "32,wide"), ("hidden size 'wide'", "commas")),
    "too wide": (("--hidden-size", "9999"), ("hidden size '9999'", "to 4096")),
    "negative work": (("--work-milliseconds", "-1"), ("work milliseconds '-1'", "from 0 to 1000")),
    "no seconds": (("--seconds", "0"), ("seconds 0", "above 0")),
    "infinite": (("--seconds", "inf"), ("seconds inf",)),
    "no updates": (("--updates", "0"), ("updates 0", "at least 1")),
    "both": (("--seconds", "1", "--updates", "5"), ("exclude each other",)),
    "not empty": (("--output", "full"), ("full is not empty",)),
    "below a file": (("--output", "full/file/x"), ("cannot be written",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str, invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    arguments, expected = BAD[case]
    result = invoke("audit", *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert all(words in result.stderr for words in expected), result.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]


def test_lists_of_numbers_are_sorted_and_without_doubles() -> None:
    assert numbers("workers", "8, 2,1,2", 1, 64, whole=True) == (1, 2, 8)
    assert numbers("work", "10,0,.5", 0, 100) == (0, 0.5, 10)
    with pytest.raises(ConfigError, match="work 'nan' is not allowed; give numbers from 0 to 100"):
        numbers("work", "nan", 0, 100)
    assert [middle(values) for values in ((1.0,), (1.0, 2.0), (1.0, 2.0, 3.0, 4.0))] == [1, 1, 2]
    assert fitting((1, 2, 4, 8), 4) == 4 and fitting((1, 8), 4) == 8 and fitting((1,), 4) == 1


def test_the_races_are_every_path_by_workers_and_the_losing_ones_by_the_rest() -> None:
    cells = make_cells((1, 2), (8, 16, 32), (0, 1))
    assert cells[: 2 * len(PATHS)] == [Cell(path, n, 16, 0) for n in (1, 2) for path in PATHS]
    others = cells[2 * len(PATHS) :]
    assert len(others) == 3 * 3 and len(set(cells)) == len(cells)
    assert not {cell.path for cell in others} & set(LOSES_NOTHING)
    assert {cell.workers for cell in others} == {2}
    assert {cell.hidden_size for cell in others} == {8, 16, 32}


def test_the_push_is_a_step_of_rmsprop() -> None:
    weights = torch.linspace(-1, 1, 7)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.RMSprop([parameter], lr=STEP, alpha=RMSPROP_DECAY, eps=RMSPROP_EPSILON)
    vector, square = weights.numpy().copy(), np.zeros(7, dtype=np.float32)
    push = make_push(square, 7)
    for number in range(5):
        gradient = np.random.default_rng(number).normal(size=7).astype(np.float32)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        push(vector, gradient)
    np.testing.assert_allclose(vector, parameter.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(square, optimizer.state[parameter]["square_avg"].numpy(), rtol=1e-5)


def test_work_takes_processor_time_and_gradients_sum_to_nothing() -> None:
    started = time.thread_time()
    make_work(5)()
    assert 0.005 <= time.thread_time() - started < 0.5
    rows = iter_forever(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert not sum(next(rows) for _ in range(8)).any()  # type: ignore[union-attr, attr-defined]
    assert num_elements(128) == 17_539


@pytest.mark.multiprocess
def test_the_paths_are_raced_and_shown(invoke: Any, tmp_path: Path) -> None:
    choices = ("--workers", "2", "--hidden-size", "8", "--work-milliseconds", "1", "--updates", "60")
    result = invoke("audit", *choices, "--output", "some/folder")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "some/folder/audit.json").read_text())
    assert (tmp_path / "some/folder/lost-updates.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "some/folder").iterdir())) == 2
    assert [race["path"] for race in data["races"]] == list(PATHS) and data["updates"] == 60
    rows = dict(line.split("|")[1:3] for line in result.stdout.split("\n") if line.startswith("| "))
    shown = {path.strip(): share.strip() for path, share in rows.items()}
    for race in data["races"]:
        audit = race["audit"]
        assert audit["auditable"], audit["reason"]
        writers = 1 if race["path"] == "single writer" else 2
        assert audit["updates_issued"] == 60 * writers and race["updates_per_second"] > 0
        assert audit["elements"] == num_elements(8)
        assert (shown[race["path"]] == "0") == (audit["writes_lost"] == 0)
        if race["path"] in LOSES_NOTHING:
            assert audit["writes_lost"] == 0 and sum(audit["survivors_by_worker"]) == 60 * writers
        if race["path"] == "copy-back":
            assert audit["lost_whole_at_most"] > 0 and sum(audit["survivors_by_worker"]) < 120
            assert f"{audit['survivors_by_worker'][0]}/60" in result.stdout


@pytest.mark.multiprocess
def test_a_worker_that_dies_ends_the_race() -> None:
    race = Race(Cell("in-place", 1, 8, 0.0), None)
    with (
        pytest.raises(RaceError, match="worker 0 ended early, with exit code -9"),
        processes_of(race) as (process,),
    ):
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(10)
        wait_for(race, [process], READY, 10)
    assert not process.is_alive()


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_from_outside_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    arguments = [
        "audit",
        "--workers",
        "3",
        "--seconds",
        "60",
        "--output",
        str(tmp_path / "new" / "out"),
    ]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start(arguments, tmp_path, {"TMPDIR": str(temporary)})
    parent = psutil.Process(process.pid)
    deadline = time.perf_counter() + 30
    while len(parent.children()) < 4 and time.perf_counter() < deadline:
        time.sleep(0.05)
    children = parent.children()
    assert len(children) == 4  # three workers, and the tracker of multiprocessing
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    finished = finish(process, tmp_path)
    assert finished.code == (130 if number == signal.SIGINT else -9)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    if number == signal.SIGINT:
        assert finished.stderr.strip() == "interrupted"
        assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]


def test_help_has_an_example(invoke: Any) -> None:
    result = invoke("audit", "--help")
    assert result.exit_code == 0 and "Example: bench audit" in result.stdout
    assert "audit" in invoke("--help").stdout
