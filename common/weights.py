"""Shared weights: the learner publishes a flat vector and a version, actors pull it.

Two slots are used in turn, so that the last whole vector stays readable while the next one is
written, also when the learner is killed in the middle.
"""

from __future__ import annotations

import numpy as np

from common.acting import NetworkSpec
from common.shared_memory import SharedArrays, memory_fence
from common.types import FloatArray

WRITING, PUBLISHED = 0, 1

# A copy takes microseconds; the learner would have to publish twice in each of them.
MAX_COPIES = 1_000


class SharedWeights:
    """The latest published weights ``[P]`` with their version.

    Args:
        spec: the network's shape.
        initial: ``[P]``, published as version 0.
    """

    def __init__(self, spec: NetworkSpec, initial: FloatArray) -> None:
        self.spec = spec
        # slots: written by the one learner, read by everybody. version: the learner sets WRITING to v
        # before it touches slot v % 2 and PUBLISHED to v after it; a reader copies the slot of the
        # published version and then checks that WRITING has not come round to that slot again.
        self._arrays = SharedArrays(
            {
                "slots": ((2, spec.num_parameters), np.float32),
                "version": ((2,), np.int64),
            }
        )
        self._arrays["slots"][0] = initial

    @property
    def num_bytes(self) -> int:
        """Shared memory used."""
        return self._arrays.num_bytes

    @property
    def version(self) -> int:
        """The version last published."""
        return int(self._arrays["version"][PUBLISHED])

    def publish(self, vector: FloatArray) -> int:
        """Make ``vector`` the newest weights and return their version. Only the learner calls it."""
        version = self._arrays["version"]
        new = int(version[PUBLISHED]) + 1
        version[WRITING] = new
        memory_fence()
        np.copyto(self._arrays["slots"][new % 2], vector)
        memory_fence()
        version[PUBLISHED] = new
        return new

    def pull(self, into: FloatArray, have_version: int) -> int:
        """Copy the newest weights into ``into`` if they are newer, and return the version held.

        The copy is whole: if the learner came round to the slot meanwhile it is repeated.

        Raises:
            RuntimeError: the learner published twice during each of ``MAX_COPIES`` copies.
        """
        version = self._arrays["version"]
        for _ in range(MAX_COPIES):
            published = int(version[PUBLISHED])
            if published == have_version:
                return have_version
            memory_fence()
            np.copyto(into, self._arrays["slots"][published % 2])
            memory_fence()
            if int(version[WRITING]) < published + 2:
                return published
        raise RuntimeError(f"no whole copy of the weights in {MAX_COPIES} tries")

    def latest(self) -> tuple[FloatArray, int]:
        """Return a copy of the newest weights and their version."""
        vector = np.empty(self.spec.num_parameters, dtype=np.float32)
        version = self.pull(vector, -1)
        return vector, version
