"""Which devices torch finds here, asked in a short process: the supervisor itself loads no torch."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass

from common.config import ConfigError

TIMEOUT_SECONDS = 120.0  # torch on a busy machine with many drivers

QUESTION = """
import json, torch
from common.device import available_devices
built = torch.version.cuda or torch.version.hip
print(json.dumps([torch.__version__, available_devices(), built is not None]))
"""


@dataclass(frozen=True)
class Devices:
    """What torch says of this machine.

    Attributes:
        torch: its version.
        available: the devices that it can use, accelerators first, ``cpu`` last.
        has_cuda_build: whether this torch was built for CUDA at all.
    """

    torch: str
    available: tuple[str, ...]
    has_cuda_build: bool

    @property
    def accelerator(self) -> str | None:
        """The first that is no CPU."""
        return self.available[0] if self.available[0] != "cpu" else None


@functools.cache
def find_devices() -> Devices:
    """Ask torch in a process of its own.

    Raises:
        ConfigError: torch cannot be loaded, or does not answer.
    """
    command = [sys.executable, "-c", QUESTION]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        torch, available, has_cuda_build = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"torch did not name its devices in {TIMEOUT_SECONDS:.0f} s") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"torch could not be asked for its devices: {last}") from None
    return Devices(torch, tuple(available), has_cuda_build)


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have. ``cpu`` and ``auto`` always work.

    Raises:
        ConfigError: torch finds no such device here.
    """
    if name in ("cpu", "auto"):
        return
    devices = find_devices()
    if name not in devices.available:
        raise ConfigError(f"device {name!r} is not available: {why_not(name, devices)}")


def why_not(name: str, devices: Devices) -> str:
    """Return why an accelerator cannot be used, and what can."""
    found = f"torch {devices.torch} finds none on this machine"
    if name == "cuda" and not devices.has_cuda_build:
        found = f"the installed torch {devices.torch} is a build without it"
    return f"{found}; give one of auto, {', '.join(devices.available)}"
