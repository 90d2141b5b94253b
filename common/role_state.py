"""What one process saves of its own in a checkpoint, and where. Used by its ``Probe``."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np

from common.state_files import State, read_state, write_state


class RoleState:
    """The part of a checkpoint that one process writes and reads. Picklable.

    Args:
        folder: where it is written, as ``role_file`` names it.
        role: the process's row in the telemetry.
        is_first: whether it saves before the others: who starts everything stands still first.
        resume_from: the file of an earlier run to go on from.
    """

    def __init__(
        self, folder: Path, role: int, is_first: bool = False, resume_from: Path | None = None
    ) -> None:
        self.folder, self.role, self.is_first = folder, role, is_first
        self._resume_from = resume_from
        self._parts: dict[str, Any] = {}

    def register(self, parts: dict[str, Any]) -> int:
        """Take the parts to save; in a resumed run load them.

        Returns:
            Running episodes that could not be brought back.
        """
        self._parts = parts
        if self._resume_from is None:
            return 0
        return load_parts(parts, read_state(self._resume_from.read_bytes()))

    def save(self, number: int) -> int:
        """Write the parts; return 0, or the number of the error that the operating system gave."""
        try:
            path = self.folder / role_file(self.role, number)
            write_state(path, {name: state_of(part) for name, part in self._parts.items()})
        except OSError as error:
            return error.errno or errno.EIO
        return 0


def role_file(role: int, number: int) -> str:
    """Return the name of a process's part of checkpoint ``number``."""
    return f"role-{role}-{number}.npz"


def state_of(part: Any) -> State:
    """Return the state of a numpy generator or of an object with ``state``."""
    if isinstance(part, np.random.Generator):
        return dict(part.bit_generator.state)
    state: State = part.state()
    return state


def load_parts(parts: dict[str, Any], state: State) -> int:
    """Load the state of each part, and cut what was going on in lanes that could not be brought back.

    Returns:
        The number of those lanes.
    """
    lost: Any = None
    for name, part in parts.items():
        if isinstance(part, np.random.Generator):
            part.bit_generator.state = state[name]
        else:
            returned = part.load_state(state[name])
            lost = returned if returned is not None else lost
    if lost is None or not lost.any():
        return 0
    for part in parts.values():
        if hasattr(part, "cut"):
            part.cut(lost)
    return int(np.count_nonzero(lost))
