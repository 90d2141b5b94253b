"""What the child processes of the tests of ``SharedAudit`` run."""

from __future__ import annotations

import contextlib
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from common.shared_memory import SharedArrays

if TYPE_CHECKING:
    from common.audit import SharedAudit

HELD, LEAVE = 6, 7  # words of the flags
SECONDS = 30.0


def make_lock() -> Any:
    return get_context("spawn").Lock()


def wait_for(flags: SharedArrays, word: int, value: int = 1) -> None:
    deadline = time.perf_counter() + SECONDS
    while flags["flags"][word] < value:
        assert time.perf_counter() < deadline, "waited too long"
        time.sleep(0.0005)


def make_worker(audit: SharedAudit, worker: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, audit.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), worker)


def train_each(
    flags: SharedArrays, audits: list[SharedAudit], worker: int, updates: int, locks: list[Any]
) -> None:
    """Update the weights of one audit after the other, two workers at a time."""
    for number, (audit, lock) in enumerate(zip(audits, locks, strict=True), start=1):
        model, optimizer = make_worker(audit, worker)
        torch.manual_seed(worker)
        flags["flags"][worker] = number
        wait_for(flags, 1 - worker, number)
        for _ in range(updates):
            with lock or contextlib.nullcontext():
                optimizer.zero_grad()
                model(torch.randn(16, 4)).square().mean().backward()
                optimizer.step()


def hold_number(flags: SharedArrays, audit: SharedAudit, worker: int) -> None:
    """Be a worker until told to leave."""
    make_worker(audit, worker)
    flags["flags"][HELD] = 1
    wait_for(flags, LEAVE)
