"""Is it learning? Measurements of the network, taken every so many updates by the process that learns.

All are made with the numpy twin of the network on the batch that was just learned from. A sample is
skipped while the samples would take more than 2% of the time.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.acting import ActingNetwork, NetworkSpec
from common.config import Config
from common.probe import Probe
from common.state_files import State, fill
from common.types import FloatArray

DORMANT_BELOW = 0.025  # tau of Sokar et al. 2023
RANK_SHARE = 0.99  # 1 - delta of Kumar et al. 2021
MAX_SHARE_OF_TIME = 0.02


class NotFiniteError(Exception):
    """Training ran into NaN or infinity; the message says where."""


def check_finite(vector: FloatArray, loss: float, updates: int) -> None:
    """Refuse weights ``[P]`` that are no numbers, before they are written anywhere.

    Raises:
        NotFiniteError: a weight or the loss is NaN or infinite.
    """
    if np.isfinite(loss) and np.isfinite(vector.sum()):
        return
    what = "the loss" if not np.isfinite(loss) else "a weight"
    raise NotFiniteError(
        f"{what} became NaN or infinite at update {updates + 1} of this process; the weights before it "
        "were kept (try a smaller --learning-rate, --max-grad-norm, or --layer-norm)"
    )


def dormant_fraction(layers: list[FloatArray]) -> float:
    """Return the share of hidden units that hardly answer to anything (Sokar et al. 2023, eq. 1).

    A unit is dormant if its mean activation is at most 0.025 of its layer's mean.

    Args:
        layers: activations ``[B, units]`` after the rectifier, one array per layer.
    """
    dormant = 0
    for activations in layers:
        score = np.abs(activations).mean(axis=0)
        dormant += int(np.count_nonzero(score <= DORMANT_BELOW * score.mean()))
    units: int = sum(activations.shape[1] for activations in layers)
    return dormant / units


def effective_rank(features: FloatArray) -> int:
    """Return how many singular values make up 99% of their sum (Kumar et al. 2021, srank).

    Args:
        features: ``[B, units]`` the last hidden layer.
    """
    # Singular values are the roots of the smaller Gram matrix's eigenvalues: half the time of an SVD.
    wide = features.astype(np.float64)
    gram = wide.T @ wide if wide.shape[0] >= wide.shape[1] else wide @ wide.T
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))
    if values[0] == 0.0:
        return 0
    values[values < values[0] * 1e-6] = 0.0  # what squaring has left of zeros
    upto = np.cumsum(values) / values.sum()
    return int(np.searchsorted(upto, RANK_SHARE - 1e-12)) + 1


def churn(before: FloatArray, after: FloatArray) -> float:
    """Return the share of states whose greedy action changed between two networks' ``[B, A]``."""
    return float(np.mean(before.argmax(axis=1) != after.argmax(axis=1)))


def value_bound(largest_reward: float, gamma: float) -> float:
    """Return the largest possible discounted return: max |reward| / (1 - gamma).

    With no correction for a time limit, since a truncation bootstraps. Infinite for gamma 1.
    """
    bound: float = largest_reward / (1 - gamma) if gamma < 1 else float("inf")
    return bound


class HealthMonitor:
    """Takes the samples of one learner.

    Args:
        config: choices.
        spec: the network's shape.
        probe: where samples go.
        estimates: ``"Q"``, or ``"V"`` where the advantages are a policy's logits and only V is a value.
    """

    def __init__(self, config: Config, spec: NetworkSpec, probe: Probe, estimates: str = "Q") -> None:
        self._config, self._probe, self._estimates = config, probe, estimates
        vector = np.zeros(spec.num_parameters, dtype=np.float32)
        self._before = ActingNetwork(spec, vector)
        self._now = ActingNetwork(spec, vector.copy())
        self._has_before = False
        self._next_update = 1
        self._not_before_ns = 0

    def state(self) -> State:
        """Return what the next sample is compared with, and when it is due."""
        return {
            "before": self._before.vector,
            "has_before": self._has_before,
            "next_update": self._next_update,
        }

    def load_state(self, state: State) -> None:
        """Go on where ``state`` was taken."""
        fill(self._before.vector, state["before"], "before")
        self._has_before, self._next_update = state["has_before"], state["next_update"]

    def is_due(self, updates: int) -> bool:
        """Return whether a sample should be taken after so many updates."""
        return updates >= self._next_update and time.perf_counter_ns() >= self._not_before_ns

    def sample(
        self,
        vector: FloatArray,
        observation: NDArray[Any],
        td_error: FloatArray,
        grad_norm: float,
        updates: int,
    ) -> None:
        """Measure and report.

        Args:
            vector: ``[P]`` weights now.
            observation: ``[B, ...]`` of the batch just learned from.
            td_error: ``[B]`` of that batch, before the update.
            grad_norm: of its gradient, before clipping.
            updates: of this process.
        """
        began_ns = time.perf_counter_ns()
        np.copyto(self._now.vector, vector)
        layers = self._now.hidden(observation)
        values, preferences = self._read(self._now, layers[-1])
        changed = float("nan")
        if self._has_before:
            features = self._before.hidden(observation)[-1]
            changed = churn(self._read(self._before, features)[1], preferences)
        gauges = self._probe.gauges()
        self._probe.record_health(
            {
                "env_steps": float(self._probe.env_steps),
                "updates": float(self._probe.updates),
                "q_mean": float(values.mean()),
                "q_max": float(np.abs(values).max()),
                "q_bound": value_bound(gauges["largest_reward"], self._config.gamma),
                "td_error": float(np.abs(td_error).mean()),
                "grad_norm": grad_norm,
                "dormant_fraction": dormant_fraction(layers),
                "effective_rank": float(effective_rank(layers[-1])),
                "churn": changed,
                "weight_norm": float(np.linalg.norm(vector)),
                "most_sampled": gauges["most_sampled"],
                "action_entropy": gauges["action_entropy"],
            }
        )
        np.copyto(self._before.vector, vector)
        self._has_before = True
        self._next_update = updates + self._config.health_every_updates
        ended_ns = time.perf_counter_ns()
        self._not_before_ns = ended_ns + int((ended_ns - began_ns) / MAX_SHARE_OF_TIME)

    def _read(self, network: ActingNetwork, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the estimates, and what the greedy action is the argmax of ``[B, A]``."""
        value, advantage = network.heads_of(features)
        if self._estimates == "V":
            return value, advantage
        q_values: FloatArray = value + advantage - advantage.mean(axis=1, keepdims=True)
        return q_values, q_values
