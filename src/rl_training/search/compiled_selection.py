"""Selection rules and value transforms, compiled into the search for the rule's class.

`scores` is scratch memory for one value per action, so that nothing is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload

from rl_training.search.compiled_parts import PART_OPTIONS, part
from rl_training.search.rules import CompletedValues, Gumbel, NodeRange, Puct, Rule, TreeRange
from rl_training.search.tree import Tree


@part()
def _scale(tree: Tree, root: int, node: int, low: float, high: float, epsilon: float, scores: np.ndarray) -> None:
    span = max(high - low, epsilon)
    for action in range(len(scores)):
        edge = tree.edges[root, node, action]
        scores[action] = (edge.q_value - low) / span if edge.visits > 0 else 0.0


def node_range(transform: NodeRange, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with what `NodeRange` describes."""
    low = high = tree.nodes[root, node].value
    for action in range(len(scores)):
        edge = tree.edges[root, node, action]
        if edge.visits > 0:
            low, high = min(low, edge.q_value), max(high, edge.q_value)
    _scale(tree, root, node, low, high, transform.epsilon, scores)


def tree_range(transform: TreeRange, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with what `TreeRange` describes."""
    _scale(tree, root, node, tree.bounds[root, 0], tree.bounds[root, 1], transform.epsilon, scores)


def completed_values(transform: CompletedValues, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with what `CompletedValues` describes: sigma of the completed Q-values."""
    total_visits = most_visits = 0
    weighted = weights = 0.0
    for action in range(len(scores)):
        edge = tree.edges[root, node, action]
        if edge.visits > 0:
            prior = max(edge.prior, 1e-30)  # one that underflowed to 0 would leave nothing to divide by
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
        # What only a mask forbids at the root still counts for the range; what the model does not know is no action.
        if edge.logit > -math.inf or (node == 0 and tree.known[root, action]):
            low, high = min(low, scores[action]), max(high, scores[action])
    factor = (transform.c_visit + most_visits) * transform.c_scale / max(high - low, transform.epsilon)
    for action in range(len(scores)):
        scores[action] = (scores[action] - low) * factor


def puct(rule: Puct, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the action with the best normalised value plus prior bonus, at the root and inside."""
    scores = tree.scores
    transform_values(rule.transform, tree, root, node, scores)
    visits = tree.nodes[root, node].visits
    bonus = math.sqrt(visits) * (rule.c_init + math.log((visits + rule.c_base + 1) / rule.c_base))
    best = -1
    for action in range(len(scores)):
        edge = tree.edges[root, node, action]
        scores[action] += bonus * edge.prior / (1 + edge.visits)
        if edge.logit > -math.inf and (best < 0 or scores[action] > scores[best]):
            best = action
    return best


@part()
def best_of_visited(rule: Gumbel, tree: Tree, root: int, visits: int) -> int:
    """Return the root's best perturbed action among the legal ones that were visited exactly so often."""
    scores = tree.scores
    transform_values(rule.transform, tree, root, 0, scores)
    best = -1
    for action in range(len(scores)):
        edge = tree.edges[root, 0, action]
        scores[action] += tree.gumbel[root, action] + edge.logit
        eligible = edge.visits == visits and edge.logit > -math.inf
        if eligible and (best < 0 or scores[action] > scores[best]):
            best = action
    return best


def sequential_halving(rule: Gumbel, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the root's action that the schedule of considered visits asks for."""
    return best_of_visited(rule, tree, root, tree.considered[root, simulation])


@part()
def improved_policy(rule: Gumbel, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
    """Fill `scores` with softmax(logits + sigma); illegal actions get 0."""
    transform_values(rule.transform, tree, root, node, scores)
    top = -math.inf
    for action in range(len(scores)):
        scores[action] += tree.edges[root, node, action].logit
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
    total_visits = tree.nodes[root, node].visits  # those of the edges, and the one that made the node
    best = -1
    for action in range(len(scores)):
        edge = tree.edges[root, node, action]
        scores[action] -= edge.visits / total_visits
        if edge.logit > -math.inf and (best < 0 or scores[action] > scores[best]):
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


@overload(transform_values, strict=False, jit_options=PART_OPTIONS)
def _compile_transform(transform: Any, tree: Any, root: Any, node: Any, scores: Any) -> Callable[..., None]:
    return TRANSFORMS[transform.instance_class]


@overload(select_at_root, strict=False, jit_options=PART_OPTIONS)
def _compile_at_root(rule: Any, tree: Any, root: Any, node: Any, simulation: Any) -> Callable[..., int]:
    return AT_ROOT[rule.instance_class]


@overload(select_inside, strict=False, jit_options=PART_OPTIONS)
def _compile_inside(rule: Any, tree: Any, root: Any, node: Any, simulation: Any) -> Callable[..., int]:
    return INSIDE[rule.instance_class]
