"""The torch-free network against the torch one, and the flat vector that both are views of."""

import math

import numpy as np
import pytest
import torch

from common.acting import ActingNetwork, NetworkSpec, initial_weights, network_spec, parameter_views
from common.config import Config
from common.envs import inspect_env
from common.network import QNetwork
from common.weights import SharedWeights

SPECS = {
    "vector": NetworkSpec((4,), "<f4", 2, 128, False),
    "vector, layer norm": NetworkSpec((4,), "<f4", 2, 128, True),
    "float64 vector": NetworkSpec((8,), "<f8", 4, 32, False),
    "scalar": NetworkSpec((), "<f4", 3, 16, False),
    "one number": NetworkSpec((1,), "<f4", 3, 16, True),
    "matrix": NetworkSpec((3, 5), "<f4", 2, 16, False),
    "small image, HWC bool": NetworkSpec((10, 10, 4), "|b1", 6, 32, False),
    "small image, layer norm": NetworkSpec((10, 10, 4), "|b1", 6, 32, True),
    "large image, CHW uint8": NetworkSpec((4, 84, 84), "|u1", 4, 16, False),
    "large image, HWC uint8": NetworkSpec((60, 64, 3), "|u1", 4, 16, False),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def observations(spec: NetworkSpec, batch: int = 3, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    shape = (batch, *spec.observation_shape)
    dtype = np.dtype(spec.observation_dtype)
    if dtype.kind == "f":
        return (3 * generator.normal(size=shape)).astype(dtype)
    return generator.integers(0, 2 if dtype.kind == "b" else 256, size=shape).astype(dtype)


def random_weights(spec: NetworkSpec, seed: int = 1) -> np.ndarray:
    """First weights, with layer norms that are not the identity, so that their use shows."""
    vector = initial_weights(spec, seed)
    generator = np.random.default_rng(seed)
    for name, view in parameter_views(spec, vector).items():
        if name.startswith("norms."):
            view += generator.normal(0, 0.3, view.shape).astype(np.float32)
    return vector


def assert_twins(acting: ActingNetwork, network: QNetwork, observation: np.ndarray) -> None:
    with torch.no_grad():
        tensor = torch.from_numpy(observation)
        value, advantage = (part.numpy() for part in network.heads(tensor))
        q_values = network(tensor).numpy()
    # Layer norm after sums over 1,600 features: float32 itself is no better (worst of 20 seeds 1.1e-6).
    tolerance = 3e-6 if acting.spec.is_image and acting.spec.layer_norm else 1e-6
    own = (*acting.heads(observation), acting.q_values(observation))
    for mine, theirs in zip(own, (value, advantage, q_values), strict=True):
        assert mine.shape == theirs.shape and mine.dtype == np.float32
        assert np.abs(mine - theirs).max() <= tolerance * max(1.0, np.abs(theirs).max())


@every_spec
def test_the_acting_twin_equals_the_torch_network(spec: NetworkSpec) -> None:
    vector = random_weights(spec)
    acting, network = ActingNetwork(spec, vector), QNetwork(spec, vector)
    observation = observations(spec)
    assert_twins(acting, network, observation)
    assert_twins(acting, network, observation[:1])
    assert np.ptp(acting.q_values(observation), axis=0).max() > 0  # the observation matters


@every_spec
def test_an_optimizer_step_changes_both_networks(spec: NetworkSpec) -> None:
    vector = random_weights(spec)
    acting, network = ActingNetwork(spec, vector), QNetwork(spec, vector)
    observation = observations(spec)
    before, q_before = vector.copy(), acting.q_values(observation)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    network(torch.from_numpy(observation)).square().mean().backward()
    optimizer.step()
    assert (vector != before).any() and (acting.q_values(observation) != q_before).any()
    assert_twins(acting, network, observation)


def test_published_weights_act_as_the_learners_network() -> None:
    spec = SPECS["vector, layer norm"]
    weights = SharedWeights(spec, random_weights(spec, 1))
    pulled, version = weights.latest()
    acting = ActingNetwork(spec, pulled)
    network = QNetwork(spec, random_weights(spec, 2))
    observation = observations(spec)
    for expected_version in (1, 2, 3):
        network.vector += np.float32(0.01)
        assert weights.publish(network.vector) == expected_version
        version = weights.pull(pulled, version)
        assert version == expected_version and (pulled == network.vector).all()
        assert_twins(acting, network, observation)


def test_q_is_value_plus_centred_advantage_in_float64() -> None:
    spec = SPECS["vector"]
    vector = random_weights(spec)
    part = {name: view.astype(np.float64) for name, view in parameter_views(spec, vector).items()}
    observation = observations(spec)
    hidden = observation.astype(np.float64)
    for i in range(2):
        hidden = np.maximum(hidden @ part[f"linears.{i}.weight"].T + part[f"linears.{i}.bias"], 0)
    value = hidden @ part["value_head.weight"].T + part["value_head.bias"]
    advantage = hidden @ part["advantage_head.weight"].T + part["advantage_head.bias"]
    expected = value + advantage - advantage.mean(axis=1, keepdims=True)
    q_values = ActingNetwork(spec, vector).q_values(observation)
    np.testing.assert_allclose(q_values, expected, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(q_values.mean(axis=1), value[:, 0], atol=1e-6)


@every_spec
def test_the_layout_is_the_state_dict(spec: NetworkSpec) -> None:
    network = QNetwork(spec, initial_weights(spec, 0))
    entries = [(name, tuple(tensor.shape)) for name, tensor in network.state_dict().items()]
    assert spec.layout() == entries
    assert spec.num_parameters == sum(p.numel() for p in network.parameters()) == len(network.vector)


def test_cartpole_has_the_stated_number_of_parameters() -> None:
    spec = network_spec(Config.for_env("CartPole-v1", hidden_size=128), inspect_env("CartPole-v1"))
    by_hand = (4 * 128 + 128) + (128 * 128 + 128) + (128 + 1) + (128 * 2 + 2)
    assert spec.num_parameters == by_hand == 17_539
    with_norm = network_spec(Config.for_env("CartPole-v1", layer_norm=True), inspect_env("CartPole-v1"))
    assert with_norm.num_parameters == by_hand + 2 * 2 * 128


@every_spec
def test_first_weights_are_uniform_in_the_fan_in_bound(spec: NetworkSpec) -> None:
    vector = initial_weights(spec, 3)
    assert vector.dtype == np.float32 and vector.tobytes() == initial_weights(spec, 3).tobytes()
    assert (initial_weights(spec, 4) != vector).mean() > 0.9 or spec.layer_norm
    views = parameter_views(spec, vector)
    for name, view in views.items():
        layer, kind = name.rsplit(".", 1)
        if layer.startswith("norms"):
            assert (view == (kind == "weight")).all()
            continue
        bound = 1 / math.sqrt(math.prod(views[f"{layer}.weight"].shape[1:]))
        assert np.abs(view).max() <= bound * (1 + 1e-6)
        if view.size > 500:  # uniform: standard deviation bound / sqrt(3), mean 0
            assert abs(view.std() / (bound / math.sqrt(3)) - 1) < 0.1
            assert abs(view.mean()) < 0.1 * bound


def test_different_seeds_give_different_first_weights() -> None:
    spec = SPECS["vector"]
    vectors = [initial_weights(spec, seed) for seed in range(8)]
    assert len({vector.tobytes() for vector in vectors}) == 8
    correlation = np.corrcoef(vectors) - np.eye(8)
    assert np.abs(correlation).max() < 0.1
