"""The one update: double-DQN target, weighted Huber loss, Adam, target network.

Every strategy of the value-based family learns by calling ``Learner.update``; what differs between
them is where its batch comes from and where its weights go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import huber_loss

from common.acting import NetworkSpec, initial_weights, parameter_views
from common.audit import MasterWriter
from common.config import Config
from common.device import DeviceVector, learner_device
from common.health import HealthMonitor, check_finite
from common.network import QNetwork
from common.optimizer import (
    SharedOptimizerState,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    set_step_size,
)
from common.probe import Probe
from common.processes import limit_torch_threads
from common.returns import n_step_returns
from common.state_files import State, fill
from common.trajectories import Trajectory
from common.types import Batch, FloatArray, IntArray
from common.weights import SharedWeights


class UpdateResult(NamedTuple):
    """What one update measured.

    Attributes:
        td_error: ``[B]`` float32, target minus Q, before the update and without importance weights.
        loss: the weighted mean Huber loss.
    """

    td_error: FloatArray
    loss: float


class Learner:
    """The network, its target network and its optimizer. Belongs to one process.

    The network is private: an update reads the master into it, steps it, and writes the difference
    back. ``update`` does all of it, for a process that writes alone; the strategies in which several
    write call the parts, so that their file shows what happens between them.

    Args:
        config: choices.
        spec: the network's shape.
        weights: ``[P]`` first weights; copied.
        writer: this process's way to the master; None keeps the weights private and unaudited.
        optimizer: ``adam`` or ``rmsprop``.
        shared_state: the optimizer's state, if other processes step it too.
        probe: where the network's health and the target's copies are reported; None reports neither.

    Attributes:
        weights_version: updates that were in the master when the private network last read it.
    """

    def __init__(
        self,
        config: Config,
        spec: NetworkSpec,
        weights: FloatArray,
        writer: MasterWriter | None = None,
        optimizer: str = "adam",
        shared_state: SharedOptimizerState | None = None,
        probe: Probe | None = None,
    ) -> None:
        limit_torch_threads()
        self._config = config
        self._spec = spec
        self._writer = writer
        self.weights_version = 0
        self.device = learner_device(config.device)
        self.vector = weights.copy()
        self._online = DeviceVector(self.vector, self.device)
        self.read()
        self.target_vector = self.vector.copy()
        self._target_side = DeviceVector(self.target_vector, self.device)
        self.network = QNetwork(spec, self._online.tensor)
        self.target_network = QNetwork(spec, self._target_side.tensor).requires_grad_(False)
        self.optimizer = make_optimizer(config, self.network, optimizer, shared_state)
        self._shares_optimizer = shared_state is not None
        self.num_updates = 0
        self._probe = probe
        self._count_target_copies(0)
        self._health: HealthMonitor | None = None
        if probe is not None and config.instruments:
            self._health = HealthMonitor(config, spec, probe)
        self._loss = 0.0
        self._grad_norm = torch.tensor(float("nan"))  # of the last gradient, before it was clipped
        self._warm_up(spec)

    def _warm_up(self, spec: NetworkSpec) -> None:
        """Run one pass and forget it: torch's first backward pass takes a tenth of a second."""
        shape = (self._config.batch_size, *spec.observation_shape)
        observation = torch.from_numpy(np.zeros(shape, dtype=spec.observation_dtype))
        self.network(observation).sum().backward()
        self.optimizer.zero_grad()

    def state(self) -> State:
        """Return what a resumed run needs; the weights themselves are the master's."""
        return {
            "target": self.target_vector,
            "num_updates": self.num_updates,
            "num_target_copies": self.num_target_copies,
            "optimizer": None if self._shares_optimizer else optimizer_state(self.optimizer),
            "writer": None if self._writer is None else self._writer.state(),
            "health": None if self._health is None else self._health.state(),
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        fill(self.target_vector, state["target"], "target")
        self._target_side.upload()
        self.num_updates = state["num_updates"]
        self._count_target_copies(state["num_target_copies"])
        if state["optimizer"] is not None:
            load_optimizer_state(self.optimizer, state["optimizer"])
        for part, saved in ((self._writer, state["writer"]), (self._health, state["health"])):
            if part is not None and saved is not None:
                part.load_state(saved)

    def update(self, batch: Batch, env_steps: int = 0) -> UpdateResult:
        """Take one optimizer step on a batch and keep the target network up to date.

        For a process that writes alone: what it read after its last update still holds.

        Args:
            batch: what to learn from.
            env_steps: the global clock, for the schedule of the step size.
        """
        result = self.compute_gradient(batch)
        self.take_step(env_steps)
        self.write()
        self.read()
        self.update_target()
        self.measure_health(batch.observation, result.td_error)
        return result

    def read(self) -> None:
        """Copy the master's weights into the private network."""
        if self._writer is not None:
            self.weights_version = self._writer.updates_issued
            self._writer.read_into(self.vector)
        self._online.upload()

    def compute_gradient(self, batch: Batch) -> UpdateResult:
        """Compute the gradient of a replayed batch at the private network's weights."""
        weight = torch.from_numpy(batch.importance_weight)
        return self.gradient_towards(batch.observation, batch.action, self._target(batch), weight)

    def compute_rollout_gradient(self, rollout: Trajectory) -> UpdateResult:
        """Compute the gradient of a rollout at the private network's weights.

        The target of each row is its longest n-step return, to the rollout's or the episode's end, with
        max_a Q_target at the bootstrap (Mnih et al. 2016, Algorithm S2).
        """
        length, lanes = rollout.reward.shape
        following = rollout.observation[1:].reshape(length * lanes, *rollout.observation.shape[2:])
        target = n_step_returns(
            rollout.reward,
            rollout.discount(self._config.gamma),
            rollout.episode_continues,
            self.target_values(following).reshape(length, lanes),
            length,
        )
        valid = rollout.valid
        observation, action = rollout.observation[:-1][valid], rollout.action[valid]
        return self.gradient_towards(observation, action, torch.from_numpy(target[valid]))

    def gradient_towards(
        self,
        observation: NDArray[Any],
        action: IntArray,
        target: torch.Tensor,
        weight: torch.Tensor | float = 1.0,
    ) -> UpdateResult:
        """Compute the gradient of the weighted mean Huber loss between Q and fixed targets, ``[B]``."""
        q_values: torch.Tensor = self.network(torch.from_numpy(observation))
        q_taken = q_values.gather(1, torch.from_numpy(action)[:, None]).squeeze(1)
        loss = (weight * huber_loss(q_taken, target, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        limit = self._config.max_grad_norm
        if limit is not None or self._measures_next():
            limit = float("inf") if limit is None else limit
            self._grad_norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self._loss = float(loss.detach())
        return UpdateResult((target - q_taken.detach()).numpy(), self._loss)

    def take_step(self, env_steps: int = 0) -> None:
        """Step the unmodified optimizer on the private network, with the step size of the schedule.

        Raises:
            NotFiniteError: the loss or a weight is no number; nothing was written to the master.
        """
        set_step_size(self.optimizer, self._config, env_steps)
        self.optimizer.step()
        self._online.download()
        check_finite(self.vector, self._loss, self.num_updates)
        self.num_updates += 1
        interval = self._config.reset_interval
        if interval is not None and self.num_updates % interval == 0:
            self.reset_heads(self.num_updates // interval)

    def write(self) -> None:
        """Apply what the step changed to the master, as the writer does it."""
        if self._writer is not None:
            self._writer.apply(self.vector)

    def reset_heads(self, number: int) -> None:
        """Give the value and advantage heads new first weights (Nikishin et al. 2022).

        What the torso has learned stays. The target network gets the same heads, since the old ones
        estimate for a head that is gone; the heads' moments and step counts return to zero, so that
        no step made for the old weights reaches the new ones.

        Args:
            number: which reset this is, from 1: each draws other weights.
        """
        fresh = parameter_views(self._spec, initial_weights(self._spec, self._config.seed, number))
        own = parameter_views(self._spec, self.vector)
        target = parameter_views(self._spec, self.target_vector)
        for name, parameter in self.network.named_parameters():
            if name.startswith(("value_head.", "advantage_head.")):
                own[name][...] = fresh[name]
                target[name][...] = fresh[name]
                for moment in self.optimizer.state[parameter].values():
                    moment.zero_()
        self._target_side.upload()

    def measure_health(self, observation: NDArray[Any], td_error: FloatArray) -> None:
        """Take a sample of the network's health if one is due.

        Args:
            observation: ``[B, ...]`` of the batch just learned from.
            td_error: ``[B]`` of that batch.
        """
        if self._health is not None and self._health.is_due(self.num_updates):
            self._health.sample(
                self.vector, observation, td_error, float(self._grad_norm), self.num_updates
            )

    def _measures_next(self) -> bool:
        return self._health is not None and self._health.is_due(self.num_updates + 1)

    @torch.no_grad()
    def target_values(self, observation: NDArray[Any]) -> FloatArray:
        """Return max_a Q_target ``[B]`` of observations ``[B, ...]``."""
        q_values: torch.Tensor = self.target_network(torch.from_numpy(observation))
        values: FloatArray = q_values.max(dim=1).values.numpy()
        return values

    @torch.no_grad()
    def _target(self, batch: Batch) -> torch.Tensor:
        """Return R + discount Q_target(s', a*): a* by the online network if double.

        van Hasselt et al. 2016, eq. 4. A termination has discount 0.
        """
        # Moved once for both networks; what comes back is one value per transition.
        observation = torch.from_numpy(batch.bootstrap_observation).to(self.device)
        target_q: torch.Tensor = self.target_network(observation)
        chooser = self.network(observation) if self._config.double else target_q
        best = chooser.argmax(dim=1, keepdim=True)
        next_value = target_q.gather(1, best).squeeze(1).cpu()
        discount = torch.from_numpy(batch.bootstrap_discount)
        return torch.from_numpy(batch.n_step_return) + discount * next_value

    def update_target(self) -> None:
        """Copy the weights to the target network every so many own updates, or move it a little."""
        self.move_target()
        period = self._config.target_update
        if period >= 1 and self.num_updates % int(period) == 0:
            self._copy_to_target(self.num_target_copies + 1)

    def move_target(self) -> None:
        """Move the target network towards the weights, if ``target_update`` is a Polyak rate."""
        rate = self._config.target_update
        if rate < 1:
            self.target_vector += np.float32(rate) * (self.vector - self.target_vector)
            self._target_side.upload()
            self._count_target_copies(self.num_target_copies + 1)

    def copy_target_at(self, env_steps: int) -> None:
        """Copy the weights to the target network if ``env_steps`` over all workers passed a threshold.

        With several writers nobody's own updates are a common clock. The thresholds are as many env
        steps apart as it takes all of them to do ``target_update`` updates.
        """
        period = self._config.target_update
        if period < 1:
            return
        copies = int(self._config.owed_updates(env_steps) // int(period))
        if copies > self.num_target_copies:
            self._copy_to_target(copies)

    def pull_target(self, target: SharedWeights) -> None:
        """Copy a target network that is shared, if there is a newer one."""
        self._count_target_copies(target.pull(self.target_vector, self.num_target_copies))
        self._target_side.upload()

    def _copy_to_target(self, number: int) -> None:
        np.copyto(self.target_vector, self.vector)
        self._target_side.upload()
        self._count_target_copies(number)

    def _count_target_copies(self, number: int) -> None:
        self.num_target_copies = number
        if self._probe is not None:
            self._probe.set("has_target", 1)
            self._probe.set("target_copies", number)
