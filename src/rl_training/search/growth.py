"""The steps of a simulation: make the roots, select leaves, expand and back up."""

from __future__ import annotations

import math

import numpy as np

from rl_training.search.compilation import compiled, part
from rl_training.search.rule import Rule, select_at_root, select_inside
from rl_training.search.tree import UNVISITED, Leaves, Tree


@part()
def make_node(tree: Tree, root: int, number: int, value: float, logits: np.ndarray) -> None:
    """Initialise a node with one visit, that of the simulation that made it."""
    node = tree.nodes[root, number]
    node.visits = 1
    node.value = node.network_value = value
    top = -math.inf
    for action in range(len(logits)):
        top = max(top, logits[action])
    # If the model permits no action the game is over: all actions get equal priors and their results do not matter.
    over = top == -math.inf
    total = 0.0
    for action in range(len(logits)):
        edge = tree.edges[root, number, action]
        edge.child = UNVISITED
        edge.visits = 0
        edge.q_value = 0.0
        # Relative to the largest, so that adding Q-values loses no precision to a common offset.
        edge.logit = 0.0 if over else logits[action] - top
        edge.prior = math.exp(edge.logit)
        total += edge.prior
    for action in range(len(logits)):
        tree.edges[root, number, action].prior /= total


@part()
def make_roots(tree: Tree, values: np.ndarray, logits: np.ndarray) -> None:
    """Make the roots from values [B] and logits [B, A]."""
    for root in range(len(values)):
        make_node(tree, root, 0, values[root], logits[root])
        node = tree.nodes[root, 0]
        node.parent = node.action = -1
        node.reward = node.discount = 0.0
        tree.bounds[root, 0], tree.bounds[root, 1] = math.inf, -math.inf


@part()
def select(rule: Rule, tree: Tree, simulation: int, leaves: Leaves) -> None:
    """Walk from every root to an edge without a child node."""
    batch, nodes = tree.nodes.shape
    for root in range(batch):
        node = 0
        action = select_at_root(rule, tree, root, 0, simulation)
        child = tree.edges[root, 0, action].child
        while child != UNVISITED:
            node = child
            action = select_inside(rule, tree, root, node, simulation)
            child = tree.edges[root, node, action].child
        leaves.parents[root] = root * nodes + node
        leaves.actions[root] = action


@part()
def back_up(tree: Tree, root: int, leaf: int) -> None:
    """Back up the leaf's value to the root: add rewards along the path and update the running means of the nodes."""
    node = tree.nodes[root, leaf]
    sampled = float(node.value)
    while node.parent >= 0:
        parent, edge = tree.nodes[root, node.parent], tree.edges[root, node.parent, node.action]
        edge.visits += 1
        edge.q_value = node.reward + node.discount * node.value
        tree.bounds[root, 0] = min(tree.bounds[root, 0], edge.q_value)
        tree.bounds[root, 1] = max(tree.bounds[root, 1], edge.q_value)
        sampled = node.reward + node.discount * sampled
        parent.value = (parent.value * parent.visits + sampled) / (parent.visits + 1)
        parent.visits += 1
        node = parent


@part()
def grow(tree: Tree, number: int, leaves: Leaves) -> None:
    """Expand the leaves as node `number` of every tree, and back up their values."""
    batch, nodes = tree.nodes.shape
    for root in range(batch):
        make_node(tree, root, number, leaves.values[root], leaves.logits[root])
        node = tree.nodes[root, number]
        node.parent = leaves.parents[root] - root * nodes
        node.action = leaves.actions[root]
        node.reward = leaves.rewards[root]
        node.discount = leaves.discounts[root]
        tree.edges[root, node.parent, node.action].child = number
        back_up(tree, root, number)


# The same functions, to be called from Python.
compiled_make_roots = compiled(make_roots)
compiled_select = compiled(select)
compiled_grow = compiled(grow)
