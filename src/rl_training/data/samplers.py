"""Which transitions a batch is made of: all alike, or in proportion to their priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np


class Sampled(NamedTuple):
    """Rows of a replay, and how much each counts in the loss."""

    rows: np.ndarray  # [count, batch_size]
    weight: np.ndarray | None  # [count, batch_size] importance weights, or None where all count alike


class Sampler(Protocol):
    """Chooses among the rows of a ring that holds the serial numbers [oldest, count)."""

    def added(self, first: int, count: int) -> None:
        """Transitions with the serial numbers [first, first + count) were written."""

    def removed(self, rows: np.ndarray) -> None:
        """The transitions in these rows can no longer be used."""

    def sample(
        self, oldest: int, count: int, shape: tuple[int, int], beta: float, generator: np.random.Generator
    ) -> Sampled:
        """Draw rows of the given shape with replacement."""

    def update(self, rows: np.ndarray, error: np.ndarray) -> None:
        """The transitions in these rows now have these absolute errors."""

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put them back."""


class UniformSampler:
    """Every transition with the same probability."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def added(self, first: int, count: int) -> None:
        """Nothing to note."""

    def removed(self, rows: np.ndarray) -> None:
        """Nothing to note."""

    def sample(
        self, oldest: int, count: int, shape: tuple[int, int], beta: float, generator: np.random.Generator
    ) -> Sampled:
        """Draw serial numbers uniformly."""
        rows = generator.integers(oldest, count, size=shape)
        return Sampled(rows if count <= self.capacity else rows % self.capacity, None)

    def update(self, rows: np.ndarray, error: np.ndarray) -> None:
        """Errors change nothing."""

    def state_dict(self) -> dict[str, Any]:
        """There is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is no state."""


class PrioritizedSampler:
    """Proportional prioritisation with importance weights (Schaul et al. 2016, arXiv 1511.05952)."""

    def __init__(self, capacity: int, *, alpha: float, eps: float) -> None:
        from rl_training.data.sum_tree import SumTree  # numba takes a third of a second to import

        self.capacity = capacity
        self.alpha = alpha
        self.eps = eps
        self.tree = SumTree(capacity)
        self.largest = 1.0  # what a new transition gets, so that each is seen at least once soon

    def added(self, first: int, count: int) -> None:
        """Give new transitions the largest priority so far."""
        self.tree.set(np.arange(first, first + count) % self.capacity, np.full(count, self.largest))

    def removed(self, rows: np.ndarray) -> None:
        """Never draw these rows again."""
        self.tree.set(rows, np.zeros(len(rows)))

    def sample(
        self, oldest: int, count: int, shape: tuple[int, int], beta: float, generator: np.random.Generator
    ) -> Sampled:
        """Draw one row from each of as many equal slices of the total as there are rows."""
        slices = np.arange(shape[1]) + generator.random(shape)
        rows = self.tree.find((slices * (self.tree.total / shape[1])).ravel()).reshape(shape)
        probability = self.tree.get(rows) / self.tree.total
        weight = (probability * (count - oldest)) ** -beta
        return Sampled(rows, (weight / weight.max(axis=1, keepdims=True)).astype(np.float32))

    def update(self, rows: np.ndarray, error: np.ndarray) -> None:
        """Set the priorities to (|error| + eps)^alpha."""
        priority = (np.abs(error.astype(np.float64)) + self.eps) ** self.alpha
        self.largest = max(self.largest, float(priority.max()))
        self.tree.set(rows, priority)

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves up to the last one in use."""
        leaves = self.tree.get(np.arange(self.capacity))
        used = np.flatnonzero(leaves)
        return {"largest": self.largest, "priorities": leaves[: used[-1] + 1 if len(used) else 0]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Rebuild the tree."""
        self.largest = state["largest"]
        self.tree.fill(state["priorities"])
