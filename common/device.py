"""Where a learner computes: the CPU, or an accelerator with its own memory.

On a CPU a learner's weights are one numpy vector, and torch's parameters are views on it. On an
accelerator they are views on a second vector in its memory. The vector on the host stays the one that
everybody else knows (the master, the actors, the instruments), so each update brings the weights back
once and takes them out again once.
"""

from __future__ import annotations

import torch

from common.config import DEVICES, ConfigError
from common.types import FloatArray

# What the learner of this process computes on, in words; reported when the process ends.
used: str | None = None


def available_devices() -> list[str]:
    """Return the devices that torch can use here, accelerators first."""
    found = ["cuda"] if torch.cuda.is_available() else []
    found += ["mps"] if torch.backends.mps.is_available() else []
    return [*found, "cpu"]


def learner_device(name: str) -> torch.device:
    """Return the device that ``--device`` asks for; ``auto`` is the first that is available.

    Raises:
        ConfigError: torch has no such device here.
    """
    global used
    if name == "cpu":  # without a look at drivers, which takes time
        used = name
        return torch.device(name)
    available = available_devices()
    if name not in DEVICES or name not in ("auto", *available):
        raise ConfigError(f"device {name!r} is not available; there are {', '.join(available)}")
    device = torch.device(available[0] if name == "auto" else name)
    used = describe(device)
    return device


def describe(device: torch.device) -> str:
    """Return a device in words: a result on an accelerator means little without its model."""
    if device.type != "cuda":
        return device.type
    return f"cuda ({torch.cuda.get_device_name(device)})"


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all that it was asked for; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def shares_memory(device: torch.device) -> bool:
    """Return whether numpy arrays and the device's tensors can be the same memory."""
    return device.type == "cpu"


class DeviceVector:
    """A flat vector ``[P]`` on the host, and the tensor that the network's parameters are views of.

    On a CPU both are the same memory and nothing is ever copied. Elsewhere whoever has changed one side
    copies it to the other.

    Args:
        host: the vector on the host; kept, not copied.
        device: where the tensor is.
    """

    def __init__(self, host: FloatArray, device: torch.device) -> None:
        self._host = torch.from_numpy(host)
        self._is_shared = shares_memory(device)
        self.tensor = self._host
        if not self._is_shared:
            self.tensor = torch.empty(len(host), dtype=torch.float32, device=device)
            self.upload()

    def upload(self) -> None:
        """Copy the host's side to the device, in one transfer."""
        if not self._is_shared:
            with torch.no_grad():
                self.tensor.copy_(self._host)

    def download(self) -> None:
        """Copy the device's side to the host, in one transfer; waits for the device."""
        if not self._is_shared:
            with torch.no_grad():
                self._host.copy_(self.tensor)
