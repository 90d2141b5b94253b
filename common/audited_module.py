"""The audit for a training loop of one's own: a torch module, its optimizer, several processes.

    audit = SharedAudit(model, num_workers)            # in the parent
    optimizer = audit.wrap(model, optimizer, worker)   # in each worker; the loop stays as it is
    print(audit.report())                              # in the parent, at the end

A worker's module is a private float32 copy of the shared master. It is read from the master after each
step and once more by the first ``model(...)`` with gradients that follows, so that each gradient is
computed at weights as new as can be. ``optimizer.step()`` is the optimizer's own; what it changed is
then written to the master in one go, as ``common.audit`` describes.

Only parameters are shared and counted. Buffers, such as the running statistics of batch normalisation,
and the optimizer's state stay what the program makes of them.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Set
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from torch import nn

from common.audit import MAX_WEIGHT, OWNER, WRITES, AuditReader, MasterWriter, SharedMaster
from common.types import FloatArray, IntArray

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)
Layout = list[tuple[str, tuple[int, ...]]]

PID_SHIFT = 31  # a token is a process id and random bits below it, so that no two are alike
OPTIMIZER_STATE = "the program's own, not audited"


def layout_of(model: nn.Module) -> Layout:
    """Return (name, shape) of every parameter, in the order of the flat vector.

    Raises:
        TypeError: a parameter is not float32 on the CPU.
        ValueError: there is none.
    """
    layout: Layout = []
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise TypeError(
                f"parameter {name!r} has no shape yet; run the module once before the audit"
            )
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise TypeError(
                f"parameter {name!r} is {parameter.dtype} on {parameter.device}; the audit carries "
                "float32 parameters on the CPU only (model.float().cpu() makes them so)"
            )
        layout.append((name, tuple(parameter.shape)))
    if sum(parameter.numel() for parameter in model.parameters()) == 0:
        raise ValueError("the module has no parameters, so there is nothing to audit")
    return layout


def flat_weights(model: nn.Module) -> FloatArray:
    """Return a copy of all parameters in one vector ``[P]``.

    Raises:
        ValueError: a weight is no number or beyond +-16, where the audit cannot carry a count.
    """
    parts = [p.detach().reshape(-1).numpy() for p in model.parameters()]
    weights: FloatArray = np.concatenate(parts)
    if not np.abs(weights).max() <= MAX_WEIGHT:
        raise ValueError(
            f"the module has a weight of {weights[np.argmax(np.abs(weights))]:g}; the audit carries "
            f"weights within +-{MAX_WEIGHT:g}"
        )
    return weights


class SharedAudit:
    """A module's weights in shared memory, in which every update that gets lost is counted.

    Made in the parent and passed to each worker as an argument of its (spawned) process.

    Args:
        model: gives the first weights, and holds the last ones after ``report``.
        num_workers: how many workers will write.
        write: ``in-place`` adds each step's change to what the shared weights are by then;
            ``copy-back`` writes back the whole set that was read, with the change.

    Raises:
        TypeError: a parameter is not float32 on the CPU.
        ValueError: a weight beyond +-16, no parameters, no workers, or no such way to write.
    """

    def __init__(self, model: nn.Module, num_workers: int, write: str = "in-place") -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers is {num_workers}; at least one worker must write")
        if write not in WRITES:
            raise ValueError(f"write {write!r} is not allowed; it is one of {', '.join(WRITES)}")
        self._layout = layout_of(model)
        self._write = write
        self.master = SharedMaster(flat_weights(model), num_workers)
        self._model: nn.Module | None = model
        self._reader: AuditReader | None = AuditReader(self.master)

    def __getstate__(self) -> dict[str, Any]:
        # The report and the model's last weights belong to the process that made the audit.
        return {**self.__dict__, "_model": None, "_reader": None}

    def wrap(self, model: nn.Module, optimizer: OptimizerT, worker: int) -> OptimizerT:
        """Audit the steps of a worker's optimizer.

        The module's parameters become views on one private vector that holds the shared weights. The
        optimizer is returned itself, with a hook before and after its step, so that schedulers and
        whatever else looks at it go on working.

        Args:
            model: this worker's module, shaped like the one that the audit was made with.
            optimizer: any torch optimizer of (some of) the module's parameters.
            worker: this worker's own number, from 0.

        Raises:
            TypeError: not a torch optimizer, or a parameter is not float32 on the CPU.
            ValueError: another module's optimizer, a module of another shape, or no such worker.
            RuntimeError: another live process has this worker number.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer")
        if worker not in range(self.master.num_workers):
            raise ValueError(
                f"worker {worker!r} is not allowed; this audit has workers 0 to "
                f"{self.master.num_workers - 1}"
            )
        if layout_of(model) != self._layout:
            raise ValueError("the module's parameters differ from those that the audit was made with")
        require_own_parameters({id(p) for p in model.parameters()}, optimizer)
        _AuditedWorker(self.master, self._write, model, optimizer, worker)
        return optimizer

    def sample(self) -> None:
        """Look at the counts. Needed at least every four million updates; ``report`` looks too."""
        self._own_reader().sample()

    def pull(self) -> None:
        """Copy the shared weights into the model that the audit was made with."""
        self._own_reader()
        assert self._model is not None
        vector, start = self.master.vector(), 0
        with torch.no_grad():
            for parameter in self._model.parameters():
                part = vector[start : start + parameter.numel()]
                parameter.copy_(torch.from_numpy(part).view(parameter.shape))
                start += parameter.numel()

    def report(self) -> dict[str, Any]:
        """Return what was issued and what was lost, and ``pull`` the last weights.

        Exact once no worker writes any more. See ``docs/how-to/audit-your-own-loop.md`` for the fields.
        """
        self.pull()
        return self._own_reader().report(OPTIMIZER_STATE)

    def _own_reader(self) -> AuditReader:
        if self._reader is None:
            raise RuntimeError("only the process that made the audit can read its report")
        return self._reader


def require_own_parameters(own: Set[int], optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer steps parameters of the module alone, given by their ids.

    Raises:
        ValueError: it steps another one, which is not in shared memory.
    """
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    foreign = sum(id(parameter) not in own for parameter in stepped)
    if foreign:
        raise ValueError(
            f"{foreign} of the optimizer's {len(stepped)} parameters are not the module's, so they are "
            "not in shared memory; make the optimizer from the module that is passed with it"
        )


# The worker that a module belongs to at present: wrapping it again replaces that one.
_worker_of: weakref.WeakKeyDictionary[nn.Module, _AuditedWorker] = weakref.WeakKeyDictionary()


class _AuditedWorker:
    """What one worker's hooks know."""

    def __init__(
        self,
        master: SharedMaster,
        write: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        worker: int,
    ) -> None:
        self._worker = worker
        self._words = master.words[worker]
        self._token = take_number(self._words, worker)
        self._writer = MasterWriter(master, worker, write)
        self._vector = np.empty(master.num_parameters, dtype=np.float32)
        self._places = move_into(self._vector, model)
        self._own = {id(parameter) for _, parameter, _ in self._places}
        self._writer.read_into(self._vector)
        self._is_fresh = False  # whether this iteration's forward pass has read the master
        self._threads: dict[str, int] = {}
        if model in _worker_of:
            _worker_of[model].detach()
        _worker_of[model] = self
        self._hooks = (
            model.register_forward_pre_hook(self._before_forward),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )

    def detach(self) -> None:
        """Take the hooks off again."""
        for hook in self._hooks:
            hook.remove()

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        """Read the master for the first gradient after a step; the rest of the iteration keeps it."""
        if self._is_fresh or not torch.is_grad_enabled():
            return
        if not self._writer.is_as_read(self._vector):
            raise RuntimeError(
                "the module's weights were changed outside optimizer.step(), so the change is in no "
                "update; do it before SharedAudit, or in a step hook registered before audit.wrap"
            )
        if not self._writer.is_current():
            self._writer.read_into(self._vector)
        self._is_fresh = True

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # setdefault is one step for the interpreter: of two threads that come at once, one is first.
        if self._threads.setdefault("first", threading.get_ident()) != threading.get_ident():
            raise RuntimeError(
                f"the optimizer of worker {self._worker} was stepped by two threads; each needs a "
                "worker number, a module and an optimizer of its own"
            )
        self._require_in_place()
        require_own_parameters(self._own, optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._require_in_place()
        self._writer.apply(self._vector)
        self._writer.read_into(self._vector)
        self._is_fresh = False

    def _require_in_place(self) -> None:
        if owner_pid(self._token) != os.getpid():
            raise RuntimeError(
                f"worker {self._worker} was wrapped in process {owner_pid(self._token)} and is stepped "
                "in a copy of it; call audit.wrap in the process that steps"
            )
        if self._words[OWNER] != self._token:
            raise RuntimeError(
                f"worker number {self._worker} was taken by another module or process, "
                f"{owner_pid(self._words[OWNER])}; each worker needs a number of its own"
            )
        for name, parameter, address in self._places:
            if parameter.data_ptr() != address:
                raise RuntimeError(
                    f"parameter {name!r} is not in shared memory any longer: it was moved or "
                    "re-assigned (.to, .data) after audit.wrap; do that before"
                )


def move_into(vector: FloatArray, model: nn.Module) -> list[tuple[str, nn.Parameter, int]]:
    """Make the parameters views on ``vector`` ``[P]``; return (name, parameter, address) of each."""
    places, start = [], 0
    for name, parameter in model.named_parameters():
        part = torch.from_numpy(vector[start : start + parameter.numel()])
        parameter.data = part.view(parameter.shape)
        places.append((name, parameter, parameter.data_ptr()))
        start += parameter.numel()
    return places


def take_number(words: IntArray, worker: int) -> int:
    """Write this process's token into the worker's words and return it.

    Two processes that come at once both write; the one whose token is gone finds out at its next step.

    Raises:
        RuntimeError: another process that is alive has the number.
    """
    pid = owner_pid(words[OWNER])
    if pid not in (0, os.getpid()) and psutil.pid_exists(pid):
        raise RuntimeError(
            f"worker number {worker} is used by process {pid}; each worker needs a number of its own"
        )
    token = os.getpid() << PID_SHIFT | secrets.randbits(PID_SHIFT)
    words[OWNER] = token
    return token


def owner_pid(token: int) -> int:
    """Return the process that made a token; 0 for no token."""
    return int(token) >> PID_SHIFT
