"""Learning on a device with memory of its own: the same numbers, and no more transfers than stated."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from far_device import FAR, FarDevice

import common.device
import common.learner
import common.on_policy
from common.acting import NetworkSpec, initial_weights
from common.audit import MasterWriter, SharedMaster
from common.config import Config, ConfigError
from common.device import DeviceVector, available_devices, learner_device
from common.learner import Learner
from common.network import QNetwork
from common.on_policy import OnPolicyLearner, adam, radam
from common.processes import device_used
from common.trajectories import Trajectory
from common.types import Batch
from strategies import a3c, apex, hogwild, impala, pqn, single

VECTOR_SPEC = NetworkSpec((4,), "<f4", 3, 16, False)
IMAGE_SPEC = NetworkSpec((10, 10, 3), "|u1", 3, 16, True)
BATCH = 8


def make_batch(spec: NetworkSpec, seed: int) -> Batch:
    generator = np.random.default_rng(seed)
    shape = (2, BATCH, *spec.observation_shape)
    observation = (50 * generator.random(shape)).astype(spec.observation_dtype)
    return Batch(
        observation=observation[0],
        action=generator.integers(0, 3, BATCH),
        n_step_return=generator.normal(size=BATCH).astype(np.float32),
        bootstrap_discount=np.full(BATCH, 0.9, dtype=np.float32),
        bootstrap_observation=observation[1],
        importance_weight=generator.uniform(0.1, 1, BATCH).astype(np.float32),
        weights_version=np.zeros(BATCH, dtype=np.int64),
        place=np.arange(BATCH),
        row=np.arange(BATCH),
    )


def make_trajectory(length: int = 4, lanes: int = 2) -> Trajectory:
    generator = np.random.default_rng(3)
    shape = (length, lanes)
    return Trajectory(
        observation=generator.normal(size=(length + 1, lanes, 4)).astype(np.float32),
        action=generator.integers(0, 3, shape),
        action_probability=generator.uniform(0.2, 0.9, shape).astype(np.float32),
        reward=generator.random(shape, dtype=np.float32),
        terminated=generator.random(shape) < 0.2,
        truncated=np.zeros(shape, dtype=bool),
        valid=np.ones(shape, dtype=bool),
        weights_version=np.zeros(length, dtype=np.int64),
    )


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the CPU's own learners copy between host and device, as they would with two memories."""
    monkeypatch.setattr(common.device, "shares_memory", lambda device: False)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> FarDevice:
    """Give learners the device that is not there."""
    for module in (common.learner, common.on_policy):
        monkeypatch.setattr(module, "learner_device", lambda name: FAR)
    return FarDevice()


def learned(spec: NetworkSpec, **given: Any) -> dict[str, Any]:
    """Return what eight updates through the audited master leave."""
    config = Config(**{"batch_size": BATCH, "learning_rate": 0.01, "target_update": 3.0, **given})
    weights = initial_weights(spec, 1)
    master = SharedMaster(weights)
    learner = Learner(config, spec, weights, MasterWriter(master))
    results = [learner.update(make_batch(spec, i), i) for i in range(8)]
    return {
        "master": master.weights.copy(),
        "vector": learner.vector.copy(),
        "target": learner.target_vector.copy(),
        "td_error": np.stack([result.td_error for result in results]),
        "loss": np.array([result.loss for result in results]),
    }


CASES = [{}, {"target_update": 0.1}, {"double": False}, {"max_grad_norm": 0.05}, {"reset_interval": 5}]


@pytest.mark.parametrize("given", CASES, ids=str)
@pytest.mark.parametrize("spec", [VECTOR_SPEC, IMAGE_SPEC], ids=["vector", "image"])
def test_copying_learns_the_same_to_the_last_bit(
    spec: NetworkSpec, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = learned(spec, **given)
    monkeypatch.setattr(common.device, "shares_memory", lambda device: False)
    found = learned(spec, **given)
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }
    assert np.abs(expected["vector"] - initial_weights(spec, 1)).max() > 0.01


@pytest.mark.parametrize("given", CASES, ids=str)
def test_a_device_gets_only_what_was_moved_there_and_gives_the_same(
    far: FarDevice, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    with far:
        found = learned(VECTOR_SPEC, **given)
    monkeypatch.setattr(common.learner, "learner_device", learner_device)
    expected = learned(VECTOR_SPEC, **given)
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name
    # An update takes two observation arrays there and the weights; back come the Q-values, one target
    # value per transition, and the weights. The target network goes there when it changes. The gradient
    # of the Q-values follows, inside torch's backward pass, where nobody can count it.
    copies = 8 if given.get("target_update") == 0.1 else 2
    copies += "reset_interval" in given  # one reset in eight updates gives the target new heads, too
    start_up = 4  # both vectors, the weights read from the master, the batch that warms up
    assert far.moves["there"] == start_up + 8 * 3 + copies
    assert far.moves["back"] == 1 + 8 * 3


def test_the_two_sides_are_two_memories_only_where_they_must_be(copying: None) -> None:
    host = np.arange(3, dtype=np.float32)
    vector = DeviceVector(host, torch.device("cpu"))
    host[0] = 9
    assert vector.tensor.tolist() == [0, 1, 2]
    vector.upload()
    assert vector.tensor.tolist() == [9, 1, 2]
    vector.tensor[2] = 7
    assert host.tolist() == [9, 1, 2]
    vector.download()
    assert host.tolist() == [9, 1, 7]


def test_on_a_cpu_nothing_is_copied() -> None:
    host = np.arange(3, dtype=np.float32)
    vector = DeviceVector(host, torch.device("cpu"))
    host[0] = 9
    vector.tensor[2] = 7
    assert vector.tensor.tolist() == host.tolist() == [9, 1, 7]
    assert vector.tensor.data_ptr() == host.ctypes.data


def test_the_far_device_refuses_what_torch_would_refuse() -> None:
    with FarDevice() as far:
        near, moved = torch.ones(3), torch.ones(3).to(FAR)
        assert moved.device == FAR and far.has(moved + 1) and near.device.type == "cpu"
        with pytest.raises(RuntimeError, match="both devices"):
            near + moved
        with pytest.raises(TypeError, match="numpy"):
            moved.numpy()
        network = QNetwork(VECTOR_SPEC, torch.zeros(VECTOR_SPEC.num_parameters, device=FAR))
        with pytest.raises(RuntimeError, match="both devices"):
            network.linears[0](torch.ones(2, 4))
        assert not far.has(network(torch.ones(2, 4)))
        assert far.has(network(torch.ones(2, 4).to(FAR)))
    assert far.moves == {"there": 3, "back": 1}


def stepped(loss_of: Any, make_optimizer: Any) -> list[bytes]:
    """Return what four steps of the on-policy learner leave."""
    config = Config(learning_rate=0.01, max_grad_norm=0.5)
    master = SharedMaster(initial_weights(VECTOR_SPEC, 1))
    learner = OnPolicyLearner(config, VECTOR_SPEC, MasterWriter(master), make_optimizer)
    norms = [learner.step(loss_of(learner.network)) for _ in range(4)]
    assert max(norms) > 0.5, "the clip acted"
    return [master.weights.tobytes(), learner.vector.tobytes(), np.array(norms).tobytes()]


def impala_step(network: QNetwork) -> torch.Tensor:
    loss: Any = impala.impala_loss(impala.Config(value_cost=50.0), network, make_trajectory())
    return loss if isinstance(loss, torch.Tensor) else loss[0]


def pqn_step(network: QNetwork) -> torch.Tensor:
    config, rollout = pqn.Config(), make_trajectory()
    target = 50 * pqn.q_lambda_targets(config, network, rollout).reshape(-1)
    q_values = network(torch.from_numpy(rollout.observation[:-1].reshape(-1, 4)))
    loss: Any = pqn.pqn_loss(q_values, torch.from_numpy(rollout.action.reshape(-1)), target)
    return loss if isinstance(loss, torch.Tensor) else loss[0]


@pytest.mark.parametrize(
    "loss_of, make_optimizer", [(impala_step, adam), (pqn_step, radam)], ids=["impala", "pqn"]
)
def test_the_on_policy_learner_does_the_same_on_a_device(
    far: FarDevice, monkeypatch: pytest.MonkeyPatch, loss_of: Any, make_optimizer: Any
) -> None:
    with far:
        found = stepped(loss_of, make_optimizer)
    monkeypatch.setattr(common.on_policy, "learner_device", learner_device)
    assert found == stepped(loss_of, make_optimizer)
    assert far.moves["there"] >= 2 + 4 * 2 and far.moves["back"] >= 4 * 2


@pytest.mark.parametrize("strategy", [hogwild, a3c])
@pytest.mark.parametrize("name", ["auto", "cuda", "mps"])
def test_where_all_write_the_same_weights_only_a_cpu_will_do(strategy: Any, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strategy.Config(device=name)
    assert repr(name) in str(caught.value) and "shared CPU memory" in str(caught.value)
    assert strategy.Config(device="cpu").device == "cpu"


def test_all_other_strategies_take_a_device_and_only_one_that_exists() -> None:
    for strategy in (single, apex, impala, pqn):
        assert strategy.Config(device="cuda").device == "cuda"
        assert not strategy.Config.all_write_weights
    with pytest.raises(ConfigError, match="device 'gpu' is not allowed; give one of cpu, auto"):
        Config(device="gpu")


def test_a_learner_says_what_it_computes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.device, "used", None)
    assert device_used() is None
    Learner(Config(batch_size=BATCH), VECTOR_SPEC, initial_weights(VECTOR_SPEC, 0))
    assert device_used() == "cpu"


def test_auto_is_the_first_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_devices()[-1] == "cpu"
    assert learner_device("auto").type == available_devices()[0]
    monkeypatch.setattr(common.device, "available_devices", lambda: ["mps", "cpu"])
    assert learner_device("auto") == torch.device("mps") and common.device.used == "mps"
    with pytest.raises(ConfigError, match="'cuda' is not available; there are mps, cpu"):
        learner_device("cuda")
    assert learner_device("cpu") == torch.device("cpu") and common.device.used == "cpu"
    assert dataclasses.replace(Config(), device="mps").device == "mps"


def test_a_saved_learner_goes_on_from_and_to_a_device(
    far: FarDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(batch_size=BATCH, learning_rate=0.01, target_update=3.0)
    batches = [make_batch(VECTOR_SPEC, i) for i in range(6)]

    def go(learner: Learner, part: list[Batch]) -> Learner:
        for batch in part:
            learner.update(batch)
        return learner

    with far:
        first = go(Learner(config, VECTOR_SPEC, initial_weights(VECTOR_SPEC, 1)), batches[:4])
        saved, weights = first.state(), first.vector.copy()
        there = Learner(config, VECTOR_SPEC, weights)
        there.load_state(saved)
        go(there, batches[4:])
    monkeypatch.setattr(common.learner, "learner_device", learner_device)
    straight = go(Learner(config, VECTOR_SPEC, initial_weights(VECTOR_SPEC, 1)), batches)
    here = Learner(config, VECTOR_SPEC, weights)
    here.load_state(saved)
    go(here, batches[4:])
    for learner in (there, here):
        assert learner.vector.tobytes() == straight.vector.tobytes()
        assert learner.target_vector.tobytes() == straight.target_vector.tobytes()
