"""The torch network: whose memory its parameters are, and how an image is read."""

import numpy as np
import pytest
import torch

from common.acting import ActingNetwork, NetworkSpec, initial_weights, parameter_views
from common.network import QNetwork

SPEC = NetworkSpec((4,), "<f4", 2, 16, True)


def test_parameters_are_views_of_the_vector() -> None:
    vector = initial_weights(SPEC, 0)
    network = QNetwork(SPEC, vector)
    start = vector.__array_interface__["data"][0]
    for name, parameter in network.named_parameters():
        view = parameter_views(SPEC, vector)[name]
        assert parameter.data_ptr() == view.__array_interface__["data"][0]
        assert start <= parameter.data_ptr() < start + vector.nbytes
    vector[:] = 0.5
    assert all((parameter == 0.5).all() for parameter in network.parameters())


def test_two_networks_do_not_share_weights() -> None:
    vector = initial_weights(SPEC, 0)
    first, second = QNetwork(SPEC, vector.copy()), QNetwork(SPEC, vector.copy())
    observation = torch.ones(2, 4)
    assert torch.equal(first(observation), second(observation))
    first.vector += 0.1
    assert not torch.equal(first(observation), second(observation))


def test_the_same_image_gives_the_same_q_in_either_axis_order() -> None:
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, size=(2, 4, 84, 84)).astype(np.uint8)
    first = NetworkSpec((4, 84, 84), "|u1", 3, 16, False)
    last = NetworkSpec((84, 84, 4), "|u1", 3, 16, False)
    vector = initial_weights(first, 0)
    assert first.layout() == last.layout() and first.channels_first and not last.channels_first
    expected = QNetwork(first, vector)(torch.from_numpy(image)).detach().numpy()
    moved = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(ActingNetwork(last, vector).q_values(moved), expected, atol=1e-6)


@pytest.mark.parametrize("dtype, scale", [("|u1", 1 / 255), ("<f4", 1.0), ("|b1", 1.0)])
def test_only_bytes_are_scaled(dtype: str, scale: float) -> None:
    spec = NetworkSpec((10, 10, 4), dtype, 2, 8, False)
    image = np.random.default_rng(0).integers(0, 2, size=(3, 10, 10, 4)).astype(dtype)
    network = QNetwork(spec, initial_weights(spec, 0))
    plain = QNetwork(NetworkSpec((10, 10, 4), "<f4", 2, 8, False), network.vector)
    expected = plain(torch.from_numpy(image.astype(np.float32) * np.float32(scale)))
    assert torch.allclose(network(torch.from_numpy(image)), expected, atol=1e-7)
    assert spec.observation_scale == scale
