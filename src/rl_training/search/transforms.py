"""Value transforms: how a selection rule makes Q-values comparable to priors.

A transform is a named tuple of constants with a function `fill`, which writes one number per action into the scratch
array `scores`, so that nothing is allocated.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rl_training.search.compilation import chosen_by_class, part
from rl_training.search.tree import Tree

# Takes (transform, tree, root, node, scores).
transform_values = chosen_by_class("fill")


@part()
def _scale(tree: Tree, root: int, node: int, low: float, high: float, epsilon: float, scores: np.ndarray) -> None:
    span = max(high - low, epsilon)
    for action in range(len(scores)):
        edge = tree.edges[root, node, action]
        scores[action] = (edge.q_value - low) / span if edge.visits > 0 else 0.0


class NodeRange(NamedTuple):
    """Q-values scaled to [0, 1] by the range of the node's value and its visited children; unvisited actions get 0."""

    epsilon: float = 1e-8
    """The smallest range to divide by."""

    @staticmethod
    def fill(transform: Any, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
        """Fill `scores` for the actions of a node."""
        low = high = tree.nodes[root, node].value
        for action in range(len(scores)):
            edge = tree.edges[root, node, action]
            if edge.visits > 0:
                low, high = min(low, edge.q_value), max(high, edge.q_value)
        _scale(tree, root, node, low, high, transform.epsilon, scores)


class TreeRange(NamedTuple):
    """Q-values scaled to [0, 1] by the range of all Q-values in the tree; unvisited actions get 0."""

    epsilon: float = 1e-8
    """The smallest range to divide by."""

    @staticmethod
    def fill(transform: Any, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
        """Fill `scores` for the actions of a node."""
        _scale(tree, root, node, tree.bounds[root, 0], tree.bounds[root, 1], transform.epsilon, scores)


class CompletedValues(NamedTuple):
    """Q-values, or a mixed value for unvisited actions, scaled to [0, 1] and weighted by the visits so far."""

    c_visit: float = 50.0
    c_scale: float = 0.1
    epsilon: float = 1e-8
    """The smallest range to divide by."""

    @staticmethod
    def fill(transform: Any, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
        """Fill `scores` with sigma of the completed Q-values of a node."""
        total_visits = most_visits = 0
        weighted = weights = 0.0
        for action in range(len(scores)):
            edge = tree.edges[root, node, action]
            if edge.visits > 0:
                prior = max(edge.prior, 1e-30)  # a prior that underflowed to 0 could not be divided by
                weighted += prior * edge.q_value
                weights += prior
                total_visits += edge.visits
                most_visits = max(most_visits, edge.visits)
        mixed = float(tree.nodes[root, node].network_value)
        if total_visits > 0:
            mixed = (mixed + total_visits * weighted / weights) / (1 + total_visits)
        low, high = math.inf, -math.inf
        for action in range(len(scores)):
            edge = tree.edges[root, node, action]
            scores[action] = edge.q_value if edge.visits > 0 else mixed
            # Actions masked at the root still count for the range; actions that the model excludes do not.
            if edge.logit > -math.inf or (node == 0 and tree.in_model[root, action]):
                low, high = min(low, scores[action]), max(high, scores[action])
        factor = (transform.c_visit + most_visits) * transform.c_scale / max(high - low, transform.epsilon)
        for action in range(len(scores)):
            scores[action] = (scores[action] - low) * factor
