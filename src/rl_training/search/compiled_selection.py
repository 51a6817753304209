"""Selection rules and value transforms, compiled into the search for the rule's class.

`scores` is scratch memory for one value per action, so that nothing is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from rl_training.search.rules import CompletedValues, Gumbel, NodeRange, Puct, Rule, TreeRange
from rl_training.search.tree import Tree


@njit(cache=True, error_model="numpy")
def _scale(tree: Tree, root: int, node: int, low: float, high: float, epsilon: float, scores: np.ndarray) -> None:
    span = max(high - low, epsilon)
    for action in range(len(scores)):
        visited = tree.child_visits[root, node, action] > 0
        scores[action] = (tree.q_values[root, node, action] - low) / span if visited else 0.0


def node_range(transform: NodeRange, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with what `NodeRange` describes."""
    low = high = tree.values[root, node]
    for action in range(len(scores)):
        if tree.child_visits[root, node, action] > 0:
            low = min(low, tree.q_values[root, node, action])
            high = max(high, tree.q_values[root, node, action])
    _scale(tree, root, node, low, high, transform.epsilon, scores)


def tree_range(transform: TreeRange, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with what `TreeRange` describes."""
    _scale(tree, root, node, tree.lowest[root], tree.highest[root], transform.epsilon, scores)


def completed_values(transform: CompletedValues, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with what `CompletedValues` describes: sigma of the completed Q-values."""
    total_visits = most_visits = 0
    weighted = weights = 0.0
    for action in range(len(scores)):
        visits = tree.child_visits[root, node, action]
        if visits > 0:
            # A prior that underflowed to 0 would leave nothing to divide by.
            prior = max(tree.priors[root, node, action], 1e-30)
            weighted += prior * tree.q_values[root, node, action]
            weights += prior
            total_visits += visits
            most_visits = max(most_visits, visits)
    mixed = float(tree.network_values[root, node])
    if total_visits > 0:
        mixed = (mixed + total_visits * weighted / weights) / (1 + total_visits)
    low, high = math.inf, -math.inf
    for action in range(len(scores)):
        visited = tree.child_visits[root, node, action] > 0
        scores[action] = tree.q_values[root, node, action] if visited else mixed
        low = min(low, scores[action])
        high = max(high, scores[action])
    factor = (transform.c_visit + most_visits) * transform.c_scale / max(high - low, transform.epsilon)
    for action in range(len(scores)):
        scores[action] = (scores[action] - low) * factor


def puct(rule: Puct, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the action with the best normalised value plus prior bonus, at the root and inside."""
    scores = tree.scores
    transform_values(rule.transform, tree, root, node, scores)
    visits = tree.visits[root, node]
    bonus = math.sqrt(visits) * (rule.c_init + math.log((visits + rule.c_base + 1) / rule.c_base))
    best = -1
    for action in range(len(scores)):
        scores[action] += bonus * tree.priors[root, node, action] / (1 + tree.child_visits[root, node, action])
        legal = tree.logits[root, node, action] > -math.inf
        if legal and (best < 0 or scores[action] > scores[best]):
            best = action
    return best


@njit(cache=True, error_model="numpy")
def best_of_visited(rule: Gumbel, tree: Tree, root: int, visits: int) -> int:
    """Return the root's best perturbed action among the legal ones that were visited exactly so often."""
    scores = tree.scores
    transform_values(rule.transform, tree, root, 0, scores)
    best = -1
    for action in range(len(scores)):
        scores[action] += tree.gumbel[root, action] + tree.logits[root, 0, action]
        eligible = tree.child_visits[root, 0, action] == visits and tree.logits[root, 0, action] > -math.inf
        if eligible and (best < 0 or scores[action] > scores[best]):
            best = action
    return best


def sequential_halving(rule: Gumbel, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the root's action that the schedule of considered visits asks for."""
    return best_of_visited(rule, tree, root, tree.considered[root, simulation])


@njit(cache=True, error_model="numpy")
def improved_policy(rule: Gumbel, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with softmax(logits + sigma); illegal actions get 0."""
    transform_values(rule.transform, tree, root, node, scores)
    top = -math.inf
    for action in range(len(scores)):
        scores[action] += tree.logits[root, node, action]
        top = max(top, scores[action])
    total = 0.0
    for action in range(len(scores)):
        scores[action] = math.exp(scores[action] - top)
        total += scores[action]
    for action in range(len(scores)):
        scores[action] /= total


def follow_improved_policy(rule: Gumbel, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the action that brings the visits inside the tree nearest to the improved policy."""
    scores = tree.scores
    improved_policy(rule, tree, root, node, scores)
    total_visits = tree.visits[root, node]  # those of the children, and the one that made the node
    best = -1
    for action in range(len(scores)):
        scores[action] -= tree.child_visits[root, node, action] / total_visits
        legal = tree.logits[root, node, action] > -math.inf
        if legal and (best < 0 or scores[action] > scores[best]):
            best = action
    return best


TRANSFORMS: dict[type, Callable[..., None]] = {
    NodeRange: node_range,
    TreeRange: tree_range,
    CompletedValues: completed_values,
}
AT_ROOT: dict[type, Callable[..., int]] = {Puct: puct, Gumbel: sequential_halving}
INSIDE: dict[type, Callable[..., int]] = {Puct: puct, Gumbel: follow_improved_policy}


def transform_values(transform: Any, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` by the transform of this class."""
    TRANSFORMS[type(transform)](transform, tree, root, node, scores)


def select_at_root(rule: Rule, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the action that a simulation takes at the root, by the rule of this class."""
    return AT_ROOT[type(rule)](rule, tree, root, node, simulation)


def select_inside(rule: Rule, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the action that a simulation takes at an inner node, by the rule of this class."""
    return INSIDE[type(rule)](rule, tree, root, node, simulation)


# The compiler makes the same choices by the class that a type stands for; the functions' annotations may differ.


@overload(transform_values, strict=False)
def _compile_transform(transform: Any, tree: Any, root: Any, node: Any, scores: Any) -> Callable[..., None]:
    return TRANSFORMS[transform.instance_class]


@overload(select_at_root, strict=False)
def _compile_at_root(rule: Any, tree: Any, root: Any, node: Any, simulation: Any) -> Callable[..., int]:
    return AT_ROOT[rule.instance_class]


@overload(select_inside, strict=False)
def _compile_inside(rule: Any, tree: Any, root: Any, node: Any, simulation: Any) -> Callable[..., int]:
    return INSIDE[rule.instance_class]
