"""torch's optimizers without the compiler: the same steps bit for bit, a second and 70 MiB less."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from common import eager_optimizers

CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam, fused": ("Adam", {"lr": 0.01, "fused": True}),
    "adam": ("Adam", {"lr": 0.01, "eps": 1e-4}),
    "radam": ("RAdam", {"lr": 0.01, "foreach": False}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "alpha": 0.99}),
}


def trained(optimizer_class: Any, choices: dict[str, Any]) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = optimizer_class(model[0].parameters(), **choices)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    for _ in range(50):
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in model.parameters())
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        assert torch.is_grad_enabled()
    return model, optimizer


@pytest.mark.parametrize("name", CHOICES)
def test_steps_are_those_of_torch_bit_for_bit(name: str) -> None:
    kind, choices = CHOICES[name]
    ours, own = trained(getattr(eager_optimizers, kind), choices)
    theirs, their_own = trained(getattr(torch.optim, kind), choices)
    assert isinstance(own, getattr(torch.optim, kind)) and type(own).__name__ == kind
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
        for key, value in their_own.state[other].items():
            assert torch.equal(own.state[mine][key], value)


UPDATE = """
import sys
import numpy as np, torch
from common.acting import NetworkSpec, initial_weights
from common.config import Config
from common.learner import Learner
from common.types import Batch
spec = NetworkSpec((4,), "float32", 2, 8, False)
learner = Learner(Config(batch_size=2), spec, initial_weights(spec, 0))
two = np.zeros(2, dtype=np.float32)
whole = np.zeros(2, dtype=np.int64)
four = np.zeros((2, 4), dtype=np.float32)
learner.update(Batch(four, whole, two, two, four, two, whole, whole, whole))
print("torch._dynamo" in sys.modules)
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
print("torch._dynamo" in sys.modules)
"""


def test_a_learner_does_not_load_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", UPDATE], capture_output=True, text=True, check=True)
    # The second: without it there would be nothing to avoid any more.
    assert done.stdout.split() == ["False", "True"]
