"""Growing the trees: plant the roots, walk to the leaves, expand, back up, and read the results."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from rl_training.search.compiled_selection import best_of_visited, improved_policy, select_at_root, select_inside
from rl_training.search.rules import Gumbel, Rule
from rl_training.search.tree import UNVISITED, Leaves, Tree


@njit(cache=True, error_model="numpy")
def make_node(tree: Tree, root: int, node: int, value: float, logits: np.ndarray) -> None:
    """Write a node that nobody has visited but the simulation that made it."""
    tree.visits[root, node] = 1
    tree.values[root, node] = value
    tree.network_values[root, node] = value
    top = -math.inf
    for action in range(len(logits)):
        tree.children[root, node, action] = UNVISITED
        tree.child_visits[root, node, action] = 0
        tree.q_values[root, node, action] = 0.0
        top = max(top, logits[action])
    # Where a model knows of no legal action the game is over: what is tried there counts nothing.
    over = top == -math.inf
    total = 0.0
    for action in range(len(logits)):
        # Relative to the largest, so that sums with Q-values lose no digits to an offset.
        logit = 0.0 if over else logits[action] - top
        tree.logits[root, node, action] = logit
        probability = math.exp(logit)
        tree.priors[root, node, action] = probability
        total += probability
    for action in range(len(logits)):
        tree.priors[root, node, action] /= total


@njit(cache=True, error_model="numpy")
def plant(tree: Tree, values: np.ndarray, logits: np.ndarray) -> None:
    """Make the roots from values [B] and logits [B, A]."""
    for root in range(len(values)):
        make_node(tree, root, 0, values[root], logits[root])
        tree.parents[root, 0] = -1
        tree.actions[root, 0] = -1
        tree.rewards[root, 0] = 0.0
        tree.discounts[root, 0] = 0.0
        tree.lowest[root] = math.inf
        tree.highest[root] = -math.inf


@njit(cache=True, error_model="numpy")
def select(rule: Rule, tree: Tree, simulation: int, leaves: Leaves) -> None:
    """Walk from every root to an edge that leads to no node yet."""
    batch, nodes = tree.visits.shape
    for root in range(batch):
        node = 0
        action = select_at_root(rule, tree, root, 0, simulation)
        child = tree.children[root, 0, action]
        while child != UNVISITED:
            node = child
            action = select_inside(rule, tree, root, node, simulation)
            child = tree.children[root, node, action]
        leaves.parents[root] = root * nodes + node
        leaves.actions[root] = action


@njit(cache=True, error_model="numpy")
def back_up(tree: Tree, root: int, leaf: int) -> None:
    """Carry the leaf's value up to the root: returns along the path, running means in the nodes."""
    node = leaf
    sampled = float(tree.values[root, leaf])
    while node != 0:
        parent, action = tree.parents[root, node], tree.actions[root, node]
        reward, discount = tree.rewards[root, node], tree.discounts[root, node]
        q_value = reward + discount * tree.values[root, node]
        tree.q_values[root, parent, action] = q_value
        tree.lowest[root] = min(tree.lowest[root], q_value)
        tree.highest[root] = max(tree.highest[root], q_value)
        tree.child_visits[root, parent, action] += 1
        sampled = reward + discount * sampled
        visits = tree.visits[root, parent]
        tree.values[root, parent] = (tree.values[root, parent] * visits + sampled) / (visits + 1)
        tree.visits[root, parent] = visits + 1
        node = parent


@njit(cache=True, error_model="numpy")
def grow(tree: Tree, node: int, leaves: Leaves) -> None:
    """Add the leaves as one node to every tree, and back their values up."""
    batch, nodes = tree.visits.shape
    for root in range(batch):
        parent, action = leaves.parents[root] - root * nodes, leaves.actions[root]
        make_node(tree, root, node, leaves.values[root], leaves.logits[root])
        tree.parents[root, node] = parent
        tree.actions[root, node] = action
        tree.rewards[root, node] = leaves.rewards[root]
        tree.discounts[root, node] = leaves.discounts[root]
        tree.children[root, parent, action] = node
        back_up(tree, root, node)


@njit(cache=True, error_model="numpy")
def read_gumbel(rule: Gumbel, tree: Tree, weights: np.ndarray, actions: np.ndarray) -> None:
    """Write the improved policy [B, A] and the best action [B] among the most visited."""
    for root in range(len(actions)):
        most = 0
        for action in range(weights.shape[1]):
            most = max(most, tree.child_visits[root, 0, action])
        actions[root] = best_of_visited(rule, tree, root, most)
        improved_policy(rule, tree, root, 0, tree.scores)
        for action in range(weights.shape[1]):
            weights[root, action] = tree.scores[action]
