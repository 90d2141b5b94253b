"""A sum tree: draws items in proportion to their priorities, in O(log N) per item.

Prioritized replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952) replays transition i with
probability priority_i / total, where the total is the sum of all priorities. Give each item a slice
of [0, total) as long as its priority: to draw an item is then to choose a point of that interval (a
"mass") and find the slice it lies in. A scan over the items finds it in O(N); a binary tree whose
every node holds the sum of its two children finds it in O(log N).

Layout. The tree is implicit, without pointers: one array ``[2 * num_leaves]`` holds all nodes. The
root is node 1 and the children of node n are nodes 2n and 2n + 1, so its parent is node n // 2;
node 0 is unused. The leaves are the second half: item i is node ``num_leaves + i``. Their number is
the capacity rounded up to a power of two, so that all have the same depth and stand in item order;
the surplus leaves keep priority 0 and are never found. With the priorities 10, 5 and 2:

    node 1                17
    nodes 2, 3       15        2
    nodes 4 to 7   10   5    2   0

Why parents are recomputed. A new priority recomputes each ancestor from its two children. Adding
the change of priority to each ancestor would be as quick, but every such addition leaves a rounding
error behind. The errors pile up: the root drifts away from the sum of the leaves, and searches end
at items of priority 0 (https://github.com/instadeepai/flashbax/issues/52). A recomputed node
depends only on the present leaves, however many updates came before.

Cost. Setting or finding B items takes O(B log N) time; a leaf takes 16 bytes. numba compiles the
loops over nodes, which would hold up the learner in plain Python. The first calls take about a
second; later processes load the compiled code from numba's cache on disk.

Import this module only where the tree lives, in the learner: other processes need not spend time
and memory on numba. A tree must not be shared between processes or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])

_njit: Any = numba.njit  # its types differ between numba versions


def _compiled(function: Function) -> Function:
    """Have numba compile ``function`` at its first call, with a cache on disk if possible."""
    compiled: Function
    try:
        compiled = _njit(cache=True)(function)
    except RuntimeError:
        # numba can write neither beside this file nor to the user's cache directory, as in a
        # read-only installation without a home directory. Each process then compiles anew.
        compiled = _njit(cache=False)(function)
    return compiled


@_compiled
def _set_leaves(
    nodes: NDArray[np.float64], indices: NDArray[np.int64], priorities: NDArray[np.float64]
) -> None:
    """Set leaves and recompute their ancestors.

    Args:
        nodes: ``[2 * num_leaves]`` the tree, changed in place.
        indices: ``[B]`` in [0, num_leaves); compiled code does not check this.
        priorities: ``[B]``.
    """
    num_leaves = nodes.size // 2
    for i in range(indices.size):
        node = num_leaves + indices[i]
        nodes[node] = priorities[i]
        while node > 1:
            node //= 2
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


@_compiled
def _find_leaves(nodes: NDArray[np.float64], masses: NDArray[np.float64]) -> NDArray[np.int64]:
    """Walk from the root to a leaf for each mass.

    Args:
        nodes: ``[2 * num_leaves]`` the tree; its total must be above 0.
        masses: ``[B]`` in [0, total].

    Returns:
        Item indices ``[B]``.
    """
    num_leaves = nodes.size // 2
    indices = np.empty(masses.size, np.int64)
    for i in range(masses.size):
        mass = masses[i]
        node = 1
        while node < num_leaves:
            left = 2 * node
            right = left + 1
            # After rounding, a mass can be as large as its node's sum or larger. An empty right
            # child would take it to a leaf of priority 0. An empty left child takes none: no mass
            # is below 0.
            if mass < nodes[left] or nodes[right] == 0.0:
                node = left
            else:
                mass -= nodes[left]
                node = right
        indices[i] = node - num_leaves
    return indices


class SumTree:
    """The priorities of ``capacity`` items, all 0 at the start."""

    def __init__(self, capacity: int) -> None:
        """Create the tree.

        Args:
            capacity: number of items, at least 1; any number, not only powers of two.

        Raises:
            ValueError: the capacity is below 1.
        """
        if capacity < 1:
            raise ValueError(f"a sum tree needs a capacity of at least 1, not {capacity}")
        self._capacity = capacity
        self._num_leaves = 1 << (capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._num_leaves, dtype=np.float64)
        # Up to this limit, no sum of priorities overflows to infinity.
        self._largest_priority = float(np.finfo(np.float64).max) / self._num_leaves

    def compile(self) -> None:
        """Have the compiled loops ready, so that the first real call does not wait for them."""
        trial = SumTree(2)
        trial.set(np.zeros(1, dtype=np.int64), np.ones(1))
        trial.find(np.zeros(1))

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._nodes[1])

    def set(self, indices: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the priorities of items; after an error none has changed.

        Args:
            indices: ``[B]`` in [0, capacity). Where one occurs twice, the last one wins.
            priorities: ``[B]``; an item of priority 0 is never drawn.

        Raises:
            IndexError: an index is out of range.
            ValueError: a priority is negative, NaN, infinite or so large that the total could
                overflow; or the arrays differ in shape.
        """
        if indices.ndim != 1 or indices.shape != priorities.shape:
            raise ValueError(
                "indices and priorities must be one-dimensional and of the same length, "
                f"not of shapes {indices.shape} and {priorities.shape}"
            )
        self._check_indices(indices)
        # Among float32, as TD errors may be, the limit would be infinity and let infinity pass.
        priorities = np.asarray(priorities, dtype=np.float64)
        # Written so that NaN, for which every comparison is false, is not valid.
        valid = (priorities >= 0.0) & (priorities <= self._largest_priority)
        if not valid.all():
            raise ValueError(
                f"priority {priorities[~valid][0]} is not allowed; "
                f"it must be from 0 to {self._largest_priority:.3g}"
            )
        _set_leaves(self._nodes, indices, priorities)

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities of items.

        Args:
            indices: ``[B]`` in [0, capacity).

        Returns:
            Priorities ``[B]``.

        Raises:
            IndexError: an index is out of range.
        """
        self._check_indices(indices)
        return self._nodes[self._num_leaves + indices]

    def find(self, masses: NDArray[np.float64]) -> NDArray[np.int64]:
        """Find the item in whose slice of [0, total) each mass lies.

        The slice of item i starts at the sum of the priorities before it, and that start belongs to
        it. The mass ``total``, which rounding can produce, finds the last item that has a slice.

        Args:
            masses: ``[B]`` in [0, total].

        Returns:
            Item indices ``[B]``, all of items with a priority above 0.

        Raises:
            ValueError: all priorities are 0, or a mass is out of range.
        """
        total = self.total
        if total == 0.0:
            raise ValueError("there is nothing to draw: all priorities are 0")
        valid = (masses >= 0.0) & (masses <= total)
        if not valid.all():
            raise ValueError(f"mass {masses[~valid][0]} is not in [0, {total}]")
        return _find_leaves(self._nodes, masses)

    def sample(
        self, batch_size: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw items with probability priority / total each.

        The draws are stratified as in the paper: [0, total) is cut into B equal strata and each
        gives one mass. A batch then covers the whole interval, more evenly than independent draws.

        Args:
            batch_size: B.
            rng: the learner's random stream.

        Returns:
            Item indices ``[B]``, in ascending order and possibly repeated, and the probability of
            each ``[B]``.

        Raises:
            ValueError: all priorities are 0.
        """
        fractions = (np.arange(batch_size) + rng.random(batch_size)) / batch_size
        indices = self.find(fractions * self.total)
        return indices, self.get(indices) / self.total

    def _check_indices(self, indices: NDArray[np.int64]) -> None:
        """Raise IndexError for an index outside [0, capacity).

        Neither the surplus leaves nor compiled code would stop it.
        """
        outside = (indices < 0) | (indices >= self._capacity)
        if outside.any():
            raise IndexError(f"index {indices[outside][0]} is not in [0, {self._capacity})")
