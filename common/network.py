"""The one Q-network in torch, as views on the flat vector that ``common.acting`` describes."""

from __future__ import annotations

import torch
from torch import nn

from common.acting import LAYER_NORM_EPSILON, NetworkSpec, parameter_views
from common.types import FloatArray


class QNetwork(nn.Module):
    """Torso, value head and advantage head; Q = V + A - mean(A) (Wang et al. 2016, eq. 9).

    The parameters are views on ``vector``: an optimizer step changes the vector in place, and copying
    weights into the vector changes the network.

    The network is on the device of its vector. An observation from elsewhere is taken there, and the
    outputs, which are small, are brought back to where the observation was.
    """

    def __init__(self, spec: NetworkSpec, vector: FloatArray | torch.Tensor) -> None:
        super().__init__()
        self.spec = spec
        self.vector = vector
        flat = torch.as_tensor(vector)  # shares the memory of a numpy array
        self.device = flat.device
        channels = [spec.image_shape[0] if spec.is_image else 0]
        channels += [channel for channel, _, _ in spec.convolutions]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channel, kernel, stride)
            for i, (channel, kernel, stride) in enumerate(spec.convolutions)
        )
        widths = (spec.num_features, spec.hidden_size)
        self.linears = nn.ModuleList(nn.Linear(width, spec.hidden_size) for width in widths)
        self.norms = nn.ModuleList(
            nn.LayerNorm(spec.hidden_size, eps=LAYER_NORM_EPSILON)
            for _ in range(2 if spec.layer_norm else 0)
        )
        self.value_head = nn.Linear(spec.hidden_size, 1)
        self.advantage_head = nn.Linear(spec.hidden_size, spec.num_actions)
        views = parameter_views(spec, flat)
        for name, parameter in self.named_parameters():
            parameter.data = views[name]

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return Q ``[B, A]`` of observations ``[B, ...]`` in the environment's dtype."""
        features = self.features(observation)
        value, advantage = self.value_head(features), self.advantage_head(features)
        q_values = value + advantage - advantage.mean(dim=1, keepdim=True)
        there: torch.Tensor = q_values.to(observation.device)
        return there

    def heads(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the value head ``[B, 1]`` and the advantage head ``[B, A]``."""
        features = self.features(observation)
        value, advantage = self.value_head(features), self.advantage_head(features)
        return value.to(observation.device), advantage.to(observation.device)

    def features(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the last hidden layer ``[B, hidden]``, on the network's device."""
        # Moved before it is widened: the bytes of an image are a quarter of its floats.
        features = observation.to(self.device).to(torch.float32)
        if self.spec.observation_scale != 1.0:
            features = features * self.spec.observation_scale
        if self.spec.is_image:
            if not self.spec.channels_first:
                features = features.permute(0, 3, 1, 2)
            for convolution in self.convolutions:
                features = torch.relu(convolution(features))
        features = features.flatten(1) if features.dim() > 1 else features.unsqueeze(1)
        for i, linear in enumerate(self.linears):
            features = linear(features)
            if self.spec.layer_norm:
                features = self.norms[i](features)
            features = torch.relu(features)
        return features
