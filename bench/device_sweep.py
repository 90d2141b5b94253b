"""Where an accelerator begins to pay: one update on the CPU and on the device, over widths and batches.

A small update is dispatch and transfers, which an accelerator only adds to; a large one is arithmetic,
which it does faster. The table shows where the two cross for this machine and this environment.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.aside import measure_aside
from bench.bare_updates import make_learner, random_batch
from common.acting import NetworkSpec, network_spec
from common.config import Config
from common.envs import inspect_env
from common.types import Batch

if TYPE_CHECKING:
    import torch

    from common.learner import Learner

WIDTHS = (64, 128, 256, 512, 1024, 2048)
BATCHES = (32, 128, 512, 2048, 4096)
CELL_SECONDS = 0.3  # of repeated updates
MOST_UPDATE_SECONDS = 1.0  # a cell whose one update takes longer is left out
SIDE_SECONDS = 40.0  # after which the cells that are left are left out
MIN_REPEATS, MAX_REPEATS = 2, 100


@dataclass(frozen=True)
class Cell:
    """One width and batch on one device.

    Attributes:
        width: of both hidden layers.
        batch: transitions per update.
        milliseconds: of one update, the median; None if it would have taken too long.
        transfers: share of it that copies weights and batches to the device and back; None on a CPU.
        master: share of it that writes to the audited weights and reads them, which no device does.
    """

    width: int
    batch: int
    milliseconds: float | None = None
    transfers: float | None = None
    master: float | None = None


def sweep(
    env_id: str, device: str, widths: Sequence[int] = WIDTHS, batches: Sequence[int] = BATCHES
) -> list[Cell]:
    """Return the cells of one device, measured in a process of their own with one CPU thread."""
    arguments = {"env_id": env_id, "device": device, "widths": list(widths), "batches": list(batches)}
    (rows,) = measure_aside("bench.device_sweep:prepare", arguments, seconds=SIDE_SECONDS)
    return [Cell(**row) for row in rows]


def crossover(cpu: Sequence[Cell], device: Sequence[Cell]) -> dict[int, int | None]:
    """Return, for each width, the batch from which on the device is faster; None if it never is."""
    theirs = {(cell.width, cell.batch): cell.milliseconds for cell in device}
    found: dict[int, int | None] = {cell.width: None for cell in cpu}
    for width in found:
        for cell in sorted((each for each in cpu if each.width == width), key=lambda each: -each.batch):
            if not is_faster(theirs.get((width, cell.batch)), cell.milliseconds):
                break
            found[width] = cell.batch
    return found


def is_faster(device: float | None, cpu: float | None) -> bool:
    """Return whether the device wins a cell; one that only the device does in the time is won, too."""
    return device is not None and (cpu is None or device < cpu)


# What follows runs in the measuring process.


def prepare(
    env_id: str, device: str, widths: Sequence[int], batches: Sequence[int]
) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that measures all cells, small ones first."""
    info = inspect_env(env_id)

    def measure() -> list[dict[str, Any]]:
        began, cells = time.perf_counter(), []
        known: dict[tuple[int, int], float] = {}
        for width in widths:
            for batch in batches:
                cell = Cell(width, batch)
                late = time.perf_counter() - began > SIDE_SECONDS
                if not late and _expected(width, batch, known) <= MOST_UPDATE_SECONDS:
                    config = _config(env_id, device, width, batch)
                    cell = _measure(config, network_spec(config, info))
                    known[width, batch] = (cell.milliseconds or 0.0) / 1000
                cells.append(vars(cell))
        return cells

    return measure


def _config(env_id: str, device: str, width: int, batch: int) -> Config:
    return Config(
        env_id=env_id,
        device=device,
        hidden_size=width,
        batch_size=batch,
        replay_capacity=max(2, batch),
    )


def _expected(width: int, batch: int, known: dict[tuple[int, int], float]) -> float:
    """Return the most seconds that an update may take, judging by smaller ones: all is arithmetic."""
    sizes = [
        seconds * (batch / b) * (width / w) ** 2
        for (w, b), seconds in known.items()
        if w <= width and b <= batch
    ]
    return min(sizes, default=0.0)


def _measure(config: Config, spec: NetworkSpec) -> Cell:
    learner, batch = make_learner(config, spec), random_batch(spec, config.batch_size)
    update = _median_seconds(lambda: learner.update(batch), learner.device)
    moved = None
    if learner.device.type != "cpu":
        moved = _median_seconds(_transfers(spec, learner.device, batch), learner.device) / update
    return Cell(
        width=config.hidden_size,
        batch=config.batch_size,
        milliseconds=1000 * update,
        transfers=moved,
        master=_median_seconds(_master(config, spec, learner), learner.device) / update,
    )


def _transfers(spec: NetworkSpec, device: torch.device, batch: Batch) -> Callable[[], None]:
    """Return what an update moves: the weights both ways, two observations, and what comes back."""
    import torch

    from common.device import DeviceVector

    weights = DeviceVector(np.zeros(spec.num_parameters, dtype=np.float32), device)
    q_values = torch.zeros(len(batch.action), spec.num_actions, device=device)

    def move() -> None:
        weights.upload()
        torch.from_numpy(batch.bootstrap_observation).to(device)
        torch.from_numpy(batch.observation).to(device)
        q_values[:, 0].cpu()  # the targets
        q_values.cpu().to(device)  # and back as a gradient
        weights.download()

    return move


def _master(config: Config, spec: NetworkSpec, learner: Learner) -> Callable[[], None]:
    """Return what an update does to the audited weights beside the network."""
    from common.audit import MasterWriter, SharedMaster

    vector = learner.vector.copy()
    writer = MasterWriter(SharedMaster(vector, audit=config.audit))
    writer.read_into(vector)

    def write_and_read() -> None:
        writer.apply(vector)
        writer.read_into(vector)

    return write_and_read


def _median_seconds(do: Callable[[], Any], device: torch.device) -> float:
    """Return the median of some repeats, each waited for; the first is not counted."""
    from common.device import synchronize

    seconds: list[float] = []
    total = -1.0
    while len(seconds) < MIN_REPEATS or (total < CELL_SECONDS and len(seconds) < MAX_REPEATS):
        began = time.perf_counter()
        do()
        synchronize(device)
        elapsed = time.perf_counter() - began
        if total < 0:
            total = 0.0  # kernels are loaded and memory is taken by the first
            continue
        seconds.append(elapsed)
        total += elapsed
    return statistics.median(seconds)
