"""A sum tree: sample leaves in proportion to their priority, and change priorities, in O(log N)."""

from __future__ import annotations

import numpy as np
from numba import njit


class SumTree:
    """Priorities of `capacity` leaves in one flat array; node i has the children 2i and 2i + 1, the root is 1."""

    def __init__(self, capacity: int) -> None:
        self.leaves = 1 << max(0, capacity - 1).bit_length()
        self.nodes = np.zeros(2 * self.leaves)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self.nodes[1])

    def set(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of leaves; if a row is repeated, its last value is used."""
        _set(self.nodes, self.leaves, np.asarray(rows, np.int64), np.asarray(priorities, np.float64))

    def get(self, rows: np.ndarray) -> np.ndarray:
        """Return the priorities of leaves."""
        return self.nodes[self.leaves + rows]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Return the leaf that each prefix sum in [0, total) falls on."""
        return _find(self.nodes, self.leaves, np.asarray(masses, np.float64))

    def fill(self, priorities: np.ndarray) -> None:
        """Set the priorities of the first leaves, and those of the others to 0."""
        self.nodes[:] = 0.0
        self.nodes[self.leaves : self.leaves + len(priorities)] = priorities
        _rebuild(self.nodes, self.leaves)


@njit(cache=True)
def _set(nodes: np.ndarray, leaves: int, rows: np.ndarray, priorities: np.ndarray) -> None:
    for index in range(len(rows)):
        node = leaves + rows[index]
        nodes[node] = priorities[index]
        node //= 2
        while node >= 1:
            # Sums are recomputed from the children: adding differences would accumulate rounding errors.
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
            node //= 2


@njit(cache=True)
def _find(nodes: np.ndarray, leaves: int, masses: np.ndarray) -> np.ndarray:
    found = np.empty(len(masses), np.int64)
    for index in range(len(masses)):
        mass = masses[index]
        node = 1
        while node < leaves:
            node *= 2
            # A prefix sum that rounding carried past the left sum must not end on an empty leaf.
            if mass >= nodes[node] and nodes[node + 1] > 0.0:
                mass -= nodes[node]
                node += 1
        found[index] = node - leaves
    return found


@njit(cache=True)
def _rebuild(nodes: np.ndarray, leaves: int) -> None:
    for node in range(leaves - 1, 0, -1):
        nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
