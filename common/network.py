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
    """

    def __init__(self, spec: NetworkSpec, vector: FloatArray) -> None:
        super().__init__()
        self.spec = spec
        self.vector = vector
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
        views = parameter_views(spec, vector)
        for name, parameter in self.named_parameters():
            parameter.data = torch.from_numpy(views[name])

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return Q ``[B, A]`` of observations ``[B, ...]`` in the environment's dtype."""
        value, advantage = self.heads(observation)
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def heads(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the value head ``[B, 1]`` and the advantage head ``[B, A]``."""
        features = self.features(observation)
        return self.value_head(features), self.advantage_head(features)

    def features(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the last hidden layer ``[B, hidden]``."""
        features = observation.to(torch.float32)
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
