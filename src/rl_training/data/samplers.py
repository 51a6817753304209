"""Samplers of transitions: uniform, or in proportion to priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np


class Sampled(NamedTuple):
    """Rows of a replay, and the weight of each in the loss."""

    rows: np.ndarray  # [count, batch_size]
    weight: np.ndarray | None  # [count, batch_size] importance weights, None if uniform


class Sampler(Protocol):
    """Samples rows of a ring buffer that holds the serial numbers [oldest, count)."""

    def added(self, first: int, count: int) -> None:
        """Handle that transitions with the serial numbers [first, first + count) were written."""

    def removed(self, rows: np.ndarray) -> None:
        """Handle that the transitions in these rows can no longer be used."""

    def sample(
        self, oldest: int, count: int, shape: tuple[int, int], beta: float, generator: np.random.Generator
    ) -> Sampled:
        """Sample rows of the given shape with replacement."""

    def weigh(self, rows: np.ndarray, group: np.ndarray, stored: int, beta: float) -> np.ndarray | None:
        """Return the importance weights of groups of rows, each drawn by any of its rows; None if uniform.

        Rows [n] belong to the groups [n], numbered from 0; `stored` rows can be sampled.
        """

    def update(self, rows: np.ndarray, error: np.ndarray) -> None:
        """Set the absolute errors of the transitions in these rows."""

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the priorities."""


class UniformSampler:
    """Samples all transitions with equal probability."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def added(self, first: int, count: int) -> None:
        """Do nothing."""

    def removed(self, rows: np.ndarray) -> None:
        """Do nothing."""

    def sample(
        self, oldest: int, count: int, shape: tuple[int, int], beta: float, generator: np.random.Generator
    ) -> Sampled:
        """Sample serial numbers uniformly."""
        rows = generator.integers(oldest, count, size=shape)
        return Sampled(rows if count <= self.capacity else rows % self.capacity, None)

    def weigh(self, rows: np.ndarray, group: np.ndarray, stored: int, beta: float) -> np.ndarray | None:
        """Return None: all weights are equal."""
        return None

    def update(self, rows: np.ndarray, error: np.ndarray) -> None:
        """Do nothing: errors are not used."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


class PrioritizedSampler:
    """Proportional prioritisation with importance weights (Schaul et al. 2016, arXiv 1511.05952)."""

    def __init__(self, capacity: int, *, alpha: float, eps: float) -> None:
        from rl_training.data.sum_tree import SumTree  # numba takes a third of a second to import

        self.capacity = capacity
        self.alpha = alpha
        self.eps = eps
        self.tree = SumTree(capacity)
        self.largest = 1.0  # priority of new transitions, so that each is soon sampled at least once

    def added(self, first: int, count: int) -> None:
        """Give new transitions the largest priority so far."""
        self.tree.set(np.arange(first, first + count) % self.capacity, np.full(count, self.largest))

    def removed(self, rows: np.ndarray) -> None:
        """Never sample these rows again."""
        self.tree.set(rows, np.zeros(len(rows)))

    def sample(
        self, oldest: int, count: int, shape: tuple[int, int], beta: float, generator: np.random.Generator
    ) -> Sampled:
        """Divide the total priority into as many equal slices as there are rows, and sample one row from each."""
        slices = np.arange(shape[1]) + generator.random(shape)
        rows = self.tree.find((slices * (self.tree.total / shape[1])).ravel()).reshape(shape)
        return Sampled(rows, self._weights(self.tree.get(rows), count - oldest, beta))

    def weigh(self, rows: np.ndarray, group: np.ndarray, stored: int, beta: float) -> np.ndarray | None:
        """Return weights of groups by the mean priority of their rows."""
        return self._weights(np.bincount(group, self.tree.get(rows)) / np.bincount(group), stored, beta)

    def _weights(self, priority: np.ndarray, stored: int, beta: float) -> np.ndarray:
        """Return the weights [..., B] of batches, of which the largest is 1."""
        weight = (priority / self.tree.total * stored) ** -beta
        weights: np.ndarray = (weight / weight.max(axis=-1, keepdims=True)).astype(np.float32)
        return weights

    def update(self, rows: np.ndarray, error: np.ndarray) -> None:
        """Set the priorities to (|error| + eps)^alpha."""
        priority = (np.abs(error.astype(np.float64)) + self.eps) ** self.alpha
        self.largest = max(self.largest, float(priority.max()))
        self.tree.set(rows, priority)

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities up to the last row in use."""
        leaves = self.tree.get(np.arange(self.capacity))
        used = np.flatnonzero(leaves)
        return {"largest": self.largest, "priorities": leaves[: used[-1] + 1 if len(used) else 0]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the priorities."""
        self.largest = state["largest"]
        self.tree.fill(state["priorities"])
