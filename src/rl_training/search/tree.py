"""The trees of a batch of roots as flat arrays.

A node's index is that of the simulation that made it, counted from 1; the root is 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

UNVISITED = -1


NODE = np.dtype(
    [
        ("visits", np.int32),  # including the visit that made the node
        ("value", np.float32),  # mean of the network's value and all returns backed up
        ("network_value", np.float32),
        ("parent", np.int32),
        ("action", np.int32),  # taken at the parent
        ("reward", np.float32),  # reward of that action
        ("discount", np.float32),  # factor of the node's value at the parent
    ],
    align=True,
)
EDGE = np.dtype(
    [
        ("child", np.int32),  # UNVISITED where there is none
        ("visits", np.int32),
        ("q_value", np.float32),  # reward + discount * value of the child; 0 where unvisited
        ("logit", np.float32),  # minus infinity where illegal
        ("prior", np.float32),  # the logits' softmax; at the root mixed with Dirichlet noise
    ],
    align=True,
)


class Tree(NamedTuple):
    """B trees of N nodes with A actions each."""

    nodes: np.ndarray  # [B, N] of NODE
    edges: np.ndarray  # [B, N, A] of EDGE
    bounds: np.ndarray  # [B, 2] float32, the lowest and the highest Q-value seen
    in_model: np.ndarray  # [B, A] bool, false for actions that the model itself excludes at the root
    gumbel: np.ndarray  # [B, A] float32, the root's noise
    considered: np.ndarray  # [B, N - 1] int32, how often the action that simulation i takes at the root was visited
    scores: np.ndarray  # [A] float64, scratch of the selection


class Leaves(NamedTuple):
    """The edges that one simulation expands, one per tree, and the model's predictions for the states they lead to."""

    parents: np.ndarray  # [B] int64, the edge's node as a row of [B * N]
    actions: np.ndarray  # [B] int64
    values: np.ndarray  # [B] float32
    rewards: np.ndarray  # [B] float32
    discounts: np.ndarray  # [B] float32
    logits: np.ndarray  # [B, A] float32


def make_leaves(batch: int, actions: int) -> Leaves:
    """Return arrays for the leaves of `batch` trees."""
    return Leaves(
        parents=np.zeros(batch, np.int64),
        actions=np.zeros(batch, np.int64),
        values=np.zeros(batch, np.float32),
        rewards=np.zeros(batch, np.float32),
        discounts=np.zeros(batch, np.float32),
        logits=np.zeros((batch, actions), np.float32),
    )


class Buffers:
    """Named arrays, kept from search to search and enlarged when a search needs more."""

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray] = {}

    def array(self, name: str, kind: DTypeLike, *shape: int) -> np.ndarray:
        """Return an uninitialised array of exactly this shape, valid until the next call with the same name."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].size < size:
            self._memory[name] = np.empty(size, kind)
        return self._memory[name][:size].reshape(shape)


class TreeBuffers:
    """Memory for trees."""

    def __init__(self) -> None:
        self._buffers = Buffers()
        self._tree: Tree | None = None

    def reserve(self, batch: int, nodes: int, actions: int) -> Tree:
        """Return uninitialised trees of exactly this size, valid until the next call."""
        if self._tree is None or self._tree.edges.shape != (batch, nodes, actions):
            self._tree = self._view(batch, nodes, actions)
        return self._tree

    def _view(self, batch: int, nodes: int, actions: int) -> Tree:
        array = self._buffers.array
        return Tree(
            nodes=array("nodes", NODE, batch, nodes),
            edges=array("edges", EDGE, batch, nodes, actions),
            bounds=array("bounds", np.float32, batch, 2),
            in_model=array("in_model", np.bool_, batch, actions),
            gumbel=array("gumbel", np.float32, batch, actions),
            considered=array("considered", np.int32, batch, nodes - 1),
            scores=array("scores", np.float64, actions),
        )
