"""The optimizer step of the strategies that learn from a trajectory and forget it.

There is no replay and no target network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.acting import NetworkSpec, parameter_views
from common.audit import MasterWriter
from common.config import Config
from common.device import DeviceVector, learner_device
from common.eager_optimizers import Adam, RAdam
from common.health import HealthMonitor, check_finite
from common.network import QNetwork
from common.optimizer import can_fuse, load_optimizer_state, optimizer_state, set_step_size
from common.probe import Probe
from common.processes import limit_torch_threads
from common.state_files import State
from common.types import FloatArray

MakeOptimizer = Callable[[Config, list[torch.nn.Parameter]], torch.optim.Optimizer]


def adam(config: Config, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that every strategy uses unless its paper asks for another."""
    fused = can_fuse(parameters[0].device)
    return Adam(parameters, lr=config.learning_rate, eps=config.adam_epsilon, fused=fused)


def radam(config: Config, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return rectified Adam (Liu et al. 2020)."""
    return RAdam(parameters, lr=config.learning_rate, eps=config.adam_epsilon, foreach=False)


class OnPolicyLearner:
    """The network and its optimizer. Belongs to one process.

    The optimizer sees one parameter, the flat vector, whose gradient is made of the parameters' own
    gradients. On so small a network its cost is dispatch per tensor, not arithmetic, and both
    optimizers here work on each element alone, so the result is the same.

    Args:
        config: choices.
        spec: the network's shape.
        writer: this process's way to the master, which nobody else writes.
        make_optimizer: ``adam`` or ``radam``.
        probe: where the network's health is reported; None measures none.
        estimates: see ``common.health.HealthMonitor``.
    """

    def __init__(
        self,
        config: Config,
        spec: NetworkSpec,
        writer: MasterWriter,
        make_optimizer: MakeOptimizer,
        probe: Probe | None = None,
        estimates: str = "Q",
    ) -> None:
        limit_torch_threads()
        self._writer = writer
        self.vector = np.empty(spec.num_parameters, dtype=np.float32)
        writer.read_into(self.vector)
        self.device = learner_device(config.device)
        self._online = DeviceVector(self.vector, self.device)
        self.network = QNetwork(spec, self._online.tensor)
        self.num_updates = 0
        self._max_grad_norm = config.max_grad_norm
        self._flat = torch.nn.Parameter(self._online.tensor)
        gradient = torch.zeros_like(self._online.tensor)
        self._flat.grad = gradient
        views = parameter_views(spec, gradient)
        for name, parameter in self.network.named_parameters():
            parameter.grad = views[name]
        self.optimizer = make_optimizer(config, [self._flat])
        self._config = config
        self._health: HealthMonitor | None = None
        if probe is not None and config.instruments:
            self._health = HealthMonitor(config, spec, probe, estimates)
        self._grad_norm = float("nan")
        self._warm_up(spec, config.batch_size)

    def _warm_up(self, spec: NetworkSpec, batch_size: int) -> None:
        """Run one pass and forget it: torch's first backward pass takes a tenth of a second."""
        shape = (batch_size, *spec.observation_shape)
        observation = torch.from_numpy(np.zeros(shape, dtype=spec.observation_dtype))
        self.network(observation).sum().backward()

    def state(self) -> State:
        """Return what a resumed run needs; the weights themselves are the master's."""
        return {
            "num_updates": self.num_updates,
            "optimizer": optimizer_state(self.optimizer),
            "writer": self._writer.state(),
            "health": None if self._health is None else self._health.state(),
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        self.num_updates = state["num_updates"]
        load_optimizer_state(self.optimizer, state["optimizer"])
        self._writer.load_state(state["writer"])
        if self._health is not None and state["health"] is not None:
            self._health.load_state(state["health"])

    def step(self, loss: torch.Tensor, env_steps: int = 0) -> float:
        """Take one optimizer step and return the gradient's norm before clipping.

        Args:
            loss: what to minimise.
            env_steps: the global clock, for the schedule of the step size.

        Raises:
            NotFiniteError: the loss or a weight is no number; nothing was written to the master.
        """
        gradient = self._flat.grad
        assert gradient is not None
        gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.linalg.vector_norm(gradient))
        if self._max_grad_norm is not None and norm > self._max_grad_norm:
            gradient.mul_(self._max_grad_norm / norm)
        set_step_size(self.optimizer, self._config, env_steps)
        self.optimizer.step()
        self._online.download()
        check_finite(self.vector, float(loss.detach()), self.num_updates)
        self._writer.apply(self.vector)
        self._writer.read_into(self.vector)
        self._online.upload()
        self.num_updates += 1
        self._grad_norm = norm
        return norm

    def measure_health(self, observation: NDArray[Any], td_error: FloatArray) -> None:
        """Take a sample of the network's health if one is due; see ``Learner.measure_health``."""
        if self._health is not None and self._health.is_due(self.num_updates):
            self._health.sample(self.vector, observation, td_error, self._grad_norm, self.num_updates)
