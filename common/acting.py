"""The network without torch: its shape, its first weights, and the forward pass for acting.

All weights are one flat float32 vector. The torch network (``common.network``) and the acting twin
here are two sets of views on such a vector, so that publishing weights is one copy. A process that
only acts needs this file and numpy: it starts in a fraction of a second and, on so small a network,
runs faster than torch, whose cost per call is dispatch and not arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.audit import round_to_lattice
from common.config import Config
from common.envs import EnvInfo
from common.types import FloatArray

LAYER_NORM_EPSILON = 1e-5

# (channels, kernel, stride) of each convolution. Small images (MinAtar is 10 x 10) keep their
# resolution; large ones use the strides of Mnih et al. 2015.
SMALL_IMAGE_CONVOLUTIONS = ((16, 3, 1),)
LARGE_IMAGE_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALL_IMAGE_PIXELS = 20


# A flat vector: a numpy array, or a torch tensor on whatever device.
VectorT = TypeVar("VectorT", bound=Any)


@dataclass(frozen=True)
class NetworkSpec:
    """The shape of the one Q-network: torso, value head, advantage head.

    An observation with three axes is an image and goes through convolutions first; any other is
    flattened.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    num_actions: int
    hidden_size: int
    layer_norm: bool

    @property
    def is_image(self) -> bool:
        """Whether the torso begins with convolutions."""
        return len(self.observation_shape) == 3

    @property
    def channels_first(self) -> bool:
        """Whether an image is stored [C, H, W]: the first axis is then the shortest."""
        shape = self.observation_shape
        return self.is_image and shape[0] < min(shape[1], shape[2])

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        a, b, c = self.observation_shape
        return (a, b, c) if self.channels_first else (c, a, b)

    @property
    def convolutions(self) -> tuple[tuple[int, int, int], ...]:
        """(channels, kernel, stride) of each convolution."""
        if not self.is_image:
            return ()
        small = min(self.image_shape[1:]) <= SMALL_IMAGE_PIXELS
        return SMALL_IMAGE_CONVOLUTIONS if small else LARGE_IMAGE_CONVOLUTIONS

    @property
    def num_features(self) -> int:
        """Inputs of the first fully connected layer."""
        if not self.is_image:
            return max(1, math.prod(self.observation_shape))
        _, height, width = self.image_shape
        for _, kernel, stride in self.convolutions:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        return self.convolutions[-1][0] * height * width

    @property
    def observation_scale(self) -> float:
        """What observations are multiplied with: bytes of an image become 0 to 1."""
        is_bytes = self.is_image and np.dtype(self.observation_dtype) == np.uint8
        return 1 / 255 if is_bytes else 1.0

    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return (name, shape) of every parameter, in the order of the flat vector.

        Names, shapes and order are those of the torch network's ``state_dict``.
        """
        entries: list[tuple[str, tuple[int, ...]]] = []
        in_channels = self.image_shape[0] if self.is_image else 0
        for i, (channels, kernel, _) in enumerate(self.convolutions):
            entries.append((f"convolutions.{i}.weight", (channels, in_channels, kernel, kernel)))
            entries.append((f"convolutions.{i}.bias", (channels,)))
            in_channels = channels
        width = self.num_features
        for i in range(2):
            entries.append((f"linears.{i}.weight", (self.hidden_size, width)))
            entries.append((f"linears.{i}.bias", (self.hidden_size,)))
            width = self.hidden_size
        for i in range(2 if self.layer_norm else 0):
            entries.append((f"norms.{i}.weight", (width,)))
            entries.append((f"norms.{i}.bias", (width,)))
        for head, size in (("value_head", 1), ("advantage_head", self.num_actions)):
            entries.append((f"{head}.weight", (size, width)))
            entries.append((f"{head}.bias", (size,)))
        return entries

    @property
    def num_parameters(self) -> int:
        """Length P of the flat vector."""
        return sum(math.prod(shape) for _, shape in self.layout())


def network_spec(config: Config, info: EnvInfo) -> NetworkSpec:
    """Return the network's shape for a configuration and an environment."""
    return NetworkSpec(
        observation_shape=info.observation_shape,
        observation_dtype=info.observation_dtype,
        num_actions=info.num_actions,
        hidden_size=config.hidden_size,
        layer_norm=config.layer_norm,
    )


def parameter_views(spec: NetworkSpec, vector: VectorT) -> dict[str, VectorT]:
    """Return the named parameters as views on the flat vector ``[P]``."""
    views, start = {}, 0
    for name, shape in spec.layout():
        size = math.prod(shape)
        views[name] = vector[start : start + size].reshape(shape)
        start += size
    return views


def initial_weights(spec: NetworkSpec, seed: int, number: int = 0) -> FloatArray:
    """Return the first weights ``[P]``: the same for the same seed in every strategy.

    Another ``number`` gives others of the same seed, for layers that are reset.

    Uniform in +-1/sqrt(fan-in) for weights and biases, torch's own default for these layers; layer
    normalisation starts as the identity. On the audit's lattice, so that the audit changes no start.
    """
    generator = np.random.default_rng(np.random.SeedSequence([seed, 0, 0, number]))
    vector = np.zeros(spec.num_parameters, dtype=np.float32)
    bound = 1.0
    for name, view in parameter_views(spec, vector).items():
        if name.startswith("norms."):
            view[...] = 1.0 if name.endswith(".weight") else 0.0
            continue
        if name.endswith(".weight"):
            bound = 1 / math.sqrt(math.prod(view.shape[1:]))
        view[...] = generator.uniform(-bound, bound, view.shape)
    return round_to_lattice(vector)


class ActingNetwork:
    """The forward pass of the Q-network in numpy, on views of a flat vector.

    ``vector`` is read at every call: whoever copies new weights into it has changed this network.
    """

    def __init__(self, spec: NetworkSpec, vector: FloatArray) -> None:
        self.spec = spec
        self.vector = vector
        self._views = parameter_views(spec, vector)
        self._linears = [
            (self._views[f"linears.{i}.weight"].T, self._views[f"linears.{i}.bias"]) for i in range(2)
        ]
        self._value = (self._views["value_head.weight"].T, self._views["value_head.bias"])
        self._advantage = (
            self._views["advantage_head.weight"].T,
            self._views["advantage_head.bias"],
        )

    def q_values(self, observation: NDArray[Any]) -> FloatArray:
        """Return Q ``[B, A]`` = V + A - mean(A) (Wang et al. 2016, eq. 9) of ``[B, ...]``."""
        value, advantage = self.heads(observation)
        q_values: FloatArray = value + advantage
        q_values -= advantage.mean(axis=1, keepdims=True)
        return q_values

    def heads(self, observation: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return the value head ``[B, 1]`` and the advantage head ``[B, A]``."""
        features = self._input(observation)
        for layer in range(len(self._linears)):
            features = self._hidden(features, layer)
        return self.heads_of(features)

    def heads_of(self, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the value ``[B, 1]`` and advantage head ``[B, A]`` of the last hidden layer."""
        value_weight, value_bias = self._value
        advantage_weight, advantage_bias = self._advantage
        return features @ value_weight + value_bias, features @ advantage_weight + advantage_bias

    def hidden(self, observation: NDArray[Any]) -> list[FloatArray]:
        """Return the activations ``[B, hidden]`` of both hidden layers, after the rectifier."""
        layers = [self._input(observation)]
        for layer in range(len(self._linears)):
            layers.append(self._hidden(layers[-1], layer))
        return layers[1:]

    def _hidden(self, inputs: FloatArray, layer: int) -> FloatArray:
        weight, bias = self._linears[layer]
        features: FloatArray = inputs @ weight
        features += bias
        if self.spec.layer_norm:
            features = self._normalise(features, layer)
        np.maximum(features, 0, out=features)
        return features

    def _input(self, observation: NDArray[Any]) -> FloatArray:
        batch = len(observation)
        features = observation.astype(np.float32)
        if self.spec.observation_scale != 1.0:
            features *= np.float32(self.spec.observation_scale)
        if not self.spec.is_image:
            return features.reshape(batch, self.spec.num_features)
        if self.spec.channels_first:
            features = features.transpose(0, 2, 3, 1)
        for i, (_, kernel, stride) in enumerate(self.spec.convolutions):
            features = self._convolve(features, i, kernel, stride)
        # torch flattens [C, H, W]; the weights of the next layer are in that order.
        return features.transpose(0, 3, 1, 2).reshape(batch, self.spec.num_features)

    def _convolve(self, image: FloatArray, layer: int, kernel: int, stride: int) -> FloatArray:
        """Convolve ``[B, H, W, C]`` and rectify: every window becomes one row of a product."""
        weight = self._views[f"convolutions.{layer}.weight"]
        windows = np.lib.stride_tricks.sliding_window_view(image, (kernel, kernel), axis=(1, 2))
        windows = windows[:, ::stride, ::stride]
        batch, height, width = windows.shape[:3]
        rows = windows.reshape(batch * height * width, -1)
        result = rows @ weight.reshape(len(weight), -1).T
        result += self._views[f"convolutions.{layer}.bias"]
        np.maximum(result, 0, out=result)
        return result.reshape(batch, height, width, len(weight))

    def _normalise(self, features: FloatArray, layer: int) -> FloatArray:
        centred: FloatArray = features - features.mean(axis=1, keepdims=True)
        variance = np.mean(centred * centred, axis=1, keepdims=True)
        centred /= np.sqrt(variance + LAYER_NORM_EPSILON)
        centred *= self._views[f"norms.{layer}.weight"]
        centred += self._views[f"norms.{layer}.bias"]
        return centred
