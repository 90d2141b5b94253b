"""The one update: double-DQN target, weighted Huber loss, Adam, target network.

Every strategy of the value-based family learns by calling ``Learner.update``; what differs between
them is where its batch comes from and where its weights go.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import huber_loss

from common.acting import NetworkSpec
from common.config import Config
from common.network import QNetwork
from common.policy import linear_decay
from common.processes import limit_torch_threads
from common.types import Batch, FloatArray


class UpdateResult(NamedTuple):
    """What one update measured.

    Attributes:
        td_error: ``[B]`` float32, target minus Q, before the update and without importance weights.
        loss: the weighted mean Huber loss.
    """

    td_error: FloatArray
    loss: float


def make_optimizer(config: Config, network: QNetwork) -> torch.optim.Optimizer:
    """Return the optimizer that every strategy uses unless its paper asks for another."""
    return torch.optim.Adam(
        network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
    )


class Learner:
    """The network, its target network and its optimizer. Belongs to one process.

    Args:
        config: choices.
        spec: the network's shape.
        weights: ``[P]`` first weights; copied.
    """

    def __init__(self, config: Config, spec: NetworkSpec, weights: FloatArray) -> None:
        limit_torch_threads()
        self._config = config
        self.vector = weights.copy()
        self.target_vector = weights.copy()
        self.network = QNetwork(spec, self.vector)
        self.target_network = QNetwork(spec, self.target_vector).requires_grad_(False)
        self.optimizer = make_optimizer(config, self.network)
        self.num_updates = 0
        self.num_target_copies = 0
        self._warm_up(spec)

    def _warm_up(self, spec: NetworkSpec) -> None:
        """Run one pass and forget it: torch's first backward pass takes a tenth of a second."""
        shape = (self._config.batch_size, *spec.observation_shape)
        observation = torch.from_numpy(np.zeros(shape, dtype=spec.observation_dtype))
        self.network(observation).sum().backward()
        self.optimizer.zero_grad()

    def update(self, batch: Batch, env_steps: int = 0) -> UpdateResult:
        """Take one optimizer step on a batch and keep the target network up to date.

        Args:
            batch: what to learn from.
            env_steps: the global clock, for the schedule of the step size.
        """
        self._set_learning_rate(env_steps)
        q_taken = self._q_taken(batch)
        target = self._target(batch)
        weight = torch.from_numpy(batch.importance_weight)
        loss = (weight * huber_loss(q_taken, target, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._config.max_grad_norm)
        self.optimizer.step()
        self.num_updates += 1
        self._update_target()
        td_error = (target - q_taken.detach()).numpy()
        return UpdateResult(td_error, float(loss.detach()))

    def _set_learning_rate(self, env_steps: int) -> None:
        config = self._config
        if config.learning_rate_end is None:
            return
        rate = linear_decay(
            env_steps,
            config.learning_rate,
            config.learning_rate_end,
            config.learning_rate_decay_env_steps,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _q_taken(self, batch: Batch) -> torch.Tensor:
        q_values: torch.Tensor = self.network(torch.from_numpy(batch.observation))
        return q_values.gather(1, torch.from_numpy(batch.action)[:, None]).squeeze(1)

    @torch.no_grad()
    def _target(self, batch: Batch) -> torch.Tensor:
        """Return R + discount Q_target(s', a*): a* by the online network if double.

        van Hasselt et al. 2016, eq. 4. A termination has discount 0.
        """
        observation = torch.from_numpy(batch.bootstrap_observation)
        target_q: torch.Tensor = self.target_network(observation)
        chooser = self.network(observation) if self._config.double else target_q
        best = chooser.argmax(dim=1, keepdim=True)
        next_value = target_q.gather(1, best).squeeze(1)
        discount = torch.from_numpy(batch.bootstrap_discount)
        return torch.from_numpy(batch.n_step_return) + discount * next_value

    def _update_target(self) -> None:
        """Copy the weights to the target network every so many updates, or move it a little."""
        period = self._config.target_update
        if period < 1:
            self.target_vector += np.float32(period) * (self.vector - self.target_vector)
        elif self.num_updates % int(period) == 0:
            np.copyto(self.target_vector, self.vector)
        else:
            return
        self.num_target_copies += 1
