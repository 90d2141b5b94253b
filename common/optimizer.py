"""The optimizers, and their state in shared memory for the strategies that share it.

Torch is imported only where an optimizer is made, so that ``train`` can allocate the shared state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from common.acting import NetworkSpec, parameter_views
from common.config import Config
from common.policy import linear_decay
from common.shared_memory import SharedArrays
from common.state_files import State

if TYPE_CHECKING:
    import torch

    from common.network import QNetwork

OPTIMIZERS = ("adam", "rmsprop")

# Names that torch gives to the moments of each optimizer.
MOMENTS = {"adam": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg",)}

RMSPROP_DECAY = 0.99  # Mnih et al. 2016, section 8
# A float32 counts by ones up to here; the corrections that the count is for are 1 long before.
LAST_STEP = 2**24


class SharedOptimizerState:
    """Moments and step counts of one optimizer that several processes step.

    Args:
        spec: the network's shape.
        kind: ``adam`` or ``rmsprop``.
    """

    def __init__(self, spec: NetworkSpec, kind: str) -> None:
        self._spec, self._kind = spec, kind
        # Both are read and written by every writer of the master, without a guard unless the strategy
        # takes its lock around the step. Moments decay, so a count in their low bits would not survive:
        # what is overwritten here is not audited.
        self._arrays = SharedArrays(
            {
                "moments": ((len(MOMENTS[kind]), spec.num_parameters), np.float32),
                "steps": ((len(spec.layout()),), np.float32),
            }
        )

    @property
    def num_bytes(self) -> int:
        """Shared memory used."""
        return self._arrays.num_bytes

    def attach(self, optimizer: torch.optim.Optimizer, network: QNetwork) -> None:
        """Make the optimizer of this process work on the shared state."""
        import torch

        steps = torch.from_numpy(self._arrays["steps"])
        views = [parameter_views(self._spec, row) for row in self._arrays["moments"]]
        for i, (name, parameter) in enumerate(network.named_parameters()):
            # A view of no dimensions, as torch's own: the optimizer counts it up in place.
            optimizer.state[parameter]["step"] = steps[i]
            for moment, view in zip(MOMENTS[self._kind], views, strict=True):
                optimizer.state[parameter][moment] = torch.from_numpy(view[name])

    def describe(self, updates: int) -> str:
        """Say what the audit can say of this state; the step count is compared with the updates."""
        if updates > LAST_STEP:
            return "shared, not audited (a float32 step count stands still at 2^24)"
        steps = int(self._arrays["steps"].max())
        return f"shared, not audited (its step count says {steps} of {updates} updates)"


def make_optimizer(
    config: Config, network: QNetwork, kind: str = "adam", shared: SharedOptimizerState | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer that every strategy uses unless its paper asks for another.

    Args:
        config: choices.
        network: whose parameters it changes.
        kind: ``adam`` or ``rmsprop``.
        shared: state to work on instead of its own.
    """
    from common.eager_optimizers import Adam, RMSprop

    optimizer: torch.optim.Optimizer
    if kind == "rmsprop":
        optimizer = RMSprop(
            network.parameters(), lr=config.learning_rate, alpha=RMSPROP_DECAY, eps=config.adam_epsilon
        )
    else:
        optimizer = Adam(
            network.parameters(),
            lr=config.learning_rate,
            eps=config.adam_epsilon,
            fused=can_fuse(network.device),
        )
    if shared is not None:
        shared.attach(optimizer, network)
    return optimizer


def can_fuse(device: torch.device) -> bool:
    """Return whether torch has Adam as one kernel on a device; not every version has it for mps."""
    return device.type in ("cpu", "cuda")


def optimizer_state(optimizer: torch.optim.Optimizer) -> list[State]:
    """Return the moments and step counts of each parameter, in order; none before the first step."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    states = [optimizer.state[each] for each in parameters]
    return [{name: value.cpu().numpy() for name, value in state.items()} for state in states]


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: list[State]) -> None:
    """Give an optimizer the moments and step counts that ``optimizer_state`` returned."""
    import torch

    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for parameter, values in zip(parameters, saved, strict=True):
        for name, value in values.items():
            optimizer.state[parameter][name] = torch.from_numpy(value).to(parameter.device)


def set_step_size(optimizer: torch.optim.Optimizer, config: Config, env_steps: int) -> None:
    """Set the step size that the schedule gives at this env step."""
    if config.learning_rate_end is None:
        return
    rate = linear_decay(
        env_steps,
        config.learning_rate,
        config.learning_rate_end,
        config.learning_rate_decay_env_steps,
    )
    for group in optimizer.param_groups:
        group["lr"] = rate
