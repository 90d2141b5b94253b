"""torch's optimizers without what they load for torch.compile.

The first use of any torch optimizer imports the compiler, which nothing here uses: a second of every
learner's start and 70 MiB of its memory (torch 2.13). The methods are torch's own, found below the
wrappers that call it (``functools.wraps`` names what it wraps), so that a step is the same bit for bit;
tests assert it. With a torch that wraps them otherwise the compiler is loaded again, and nothing else
changes.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar, cast

import torch

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def eager(optimizer_class: type[OptimizerT]) -> type[OptimizerT]:
    """Return a torch optimizer class that steps as it always does, and does not load the compiler."""
    own_step: Any = inspect.unwrap(optimizer_class.step)

    def step(self: torch.optim.Optimizer) -> None:
        with torch.no_grad():  # the one thing that the wrapper does for a step that is not compiled
            own_step(self)

    methods: dict[str, Any] = {"step": step}
    for name in ("add_param_group", "zero_grad"):
        methods[name] = inspect.unwrap(getattr(optimizer_class, name))
    return cast(type[OptimizerT], type(optimizer_class.__name__, (optimizer_class,), methods))


Adam = eager(torch.optim.Adam)
RAdam = eager(torch.optim.RAdam)
RMSprop = eager(torch.optim.RMSprop)
