"""The trees of a batch of roots as flat arrays; a node's number is that of the simulation which made it, the root's 0."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

UNVISITED = -1


class Tree(NamedTuple):
    """B trees of N nodes with A actions each. An edge's reward and discount stand with the node it leads to."""

    visits: np.ndarray  # [B, N] int32, the visit that made the node included
    values: np.ndarray  # [B, N] float32, mean of the network's value and every return backed up
    network_values: np.ndarray  # [B, N] float32
    parents: np.ndarray  # [B, N] int32
    actions: np.ndarray  # [B, N] int32, taken at the parent
    rewards: np.ndarray  # [B, N] float32
    discounts: np.ndarray  # [B, N] float32
    children: np.ndarray  # [B, N, A] int32, UNVISITED where there is none
    child_visits: np.ndarray  # [B, N, A] int32
    q_values: np.ndarray  # [B, N, A] float32, reward + discount * value of the child; 0 where unvisited
    logits: np.ndarray  # [B, N, A] float32, minus infinity where illegal
    priors: np.ndarray  # [B, N, A] float32, the logits' softmax; at the root mixed with Dirichlet noise
    gumbel: np.ndarray  # [B, A] float32, the root's noise
    considered: np.ndarray  # [B, N] int32, visits that simulation i asks of the root's action (Gumbel only)
    lowest: np.ndarray  # [B] float32, of all Q-values seen
    highest: np.ndarray  # [B] float32
    scores: np.ndarray  # [A] float64, scratch of the selection


class Leaves(NamedTuple):
    """The edges that one simulation expands, one per tree, and what the model says of the states they lead to."""

    parents: np.ndarray  # [B] int64, the edge's node as a row of [B * N]
    actions: np.ndarray  # [B] int64
    values: np.ndarray  # [B] float32
    rewards: np.ndarray  # [B] float32
    discounts: np.ndarray  # [B] float32
    logits: np.ndarray  # [B, A] float32


def make_leaves(batch: int, actions: int) -> Leaves:
    """Return arrays for the leaves of so many trees."""
    edges = (np.zeros(batch, np.int64) for _ in range(2))
    outputs = (np.zeros(batch, np.float32) for _ in range(3))
    return Leaves(*edges, *outputs, np.zeros((batch, actions), np.float32))


_NODE = ("visits", "values", "network_values", "parents", "actions", "rewards", "discounts", "considered")
_EDGE = ("children", "child_visits", "q_values", "logits", "priors")
_COUNTS = {"visits", "parents", "actions", "considered", "children", "child_visits"}


class TreeBuffers:
    """Memory for trees, kept from search to search and enlarged when a search needs more."""

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray] = {}

    def reserve(self, batch: int, nodes: int, actions: int) -> Tree:
        """Return trees of exactly this size, uninitialised, valid until the next call."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_NODE, (batch, nodes))
        shapes |= dict.fromkeys(_EDGE, (batch, nodes, actions))
        shapes |= {"gumbel": (batch, actions), "lowest": (batch,), "highest": (batch,), "scores": (actions,)}
        return Tree(**{name: self._array(name, shapes[name]) for name in Tree._fields})

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].size < size:
            kind = np.int32 if name in _COUNTS else np.float64 if name == "scores" else np.float32
            self._memory[name] = np.empty(size, kind)
        return self._memory[name][:size].reshape(shape)
