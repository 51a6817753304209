"""Gumbel MuZero's rule: sequential halving over perturbed actions at the root, the improved policy at inner nodes."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from rl_training.search.compilation import compiled, part
from rl_training.search.transforms import CompletedValues, transform_values
from rl_training.search.tree import Tree


@functools.lru_cache(maxsize=1024)
def considered_visits(considered: int, num_simulations: int) -> np.ndarray:
    """Return, for each simulation, the number of earlier visits of the action that it takes at the root.

    Sequential halving: all considered actions get equally many visits, then the better half of them, and so on to two.
    """
    if considered <= 1:
        return np.arange(num_simulations, dtype=np.int32)
    rounds = math.ceil(math.log2(considered))
    visits = np.zeros(considered, np.int32)
    sequence: list[int] = []
    while len(sequence) < num_simulations:
        for _ in range(max(1, num_simulations // (rounds * considered))):
            sequence.extend(visits[:considered])
            visits[:considered] += 1
        considered = max(2, considered // 2)
    return np.array(sequence[:num_simulations], np.int32)


@part()
def best_of_visited(rule: Any, tree: Tree, root: int, visits: int) -> int:
    """Return the best perturbed action of the root among the legal ones with exactly this number of visits."""
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


@part()
def improved_policy(rule: Any, tree: Tree, root: int, node: int, scores: np.ndarray) -> None:
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


@compiled
def _read(rule: Any, tree: Tree, weights: np.ndarray, actions: np.ndarray) -> None:
    """Write the improved policies [B, A], and the best actions [B] among the most visited ones."""
    for root in range(len(actions)):
        most = 0
        for action in range(weights.shape[1]):
            most = max(most, tree.edges[root, 0, action].visits)
        actions[root] = best_of_visited(rule, tree, root, most)
        improved_policy(rule, tree, root, 0, tree.scores)
        for action in range(weights.shape[1]):
            weights[root, action] = tree.scores[action]


class Gumbel(NamedTuple):
    """The constants of Gumbel MuZero's search (Danihelka et al. 2022)."""

    max_considered: int = 16
    """Largest number of actions considered at the root."""
    transform: CompletedValues = CompletedValues()

    @staticmethod
    def at_root(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
        """Return the root's action according to the schedule of considered visits."""
        return best_of_visited(rule, tree, root, tree.considered[root, simulation])

    @staticmethod
    def inside(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
        """Return the action that brings the visit counts of an inner node closest to the improved policy."""
        scores = tree.scores
        improved_policy(rule, tree, root, node, scores)
        total_visits = tree.nodes[root, node].visits  # visits of the edges, plus the one that made the node
        best = -1
        for action in range(len(scores)):
            edge = tree.edges[root, node, action]
            scores[action] -= edge.visits / total_visits
            if edge.logit > -math.inf and (best < 0 or scores[action] > scores[best]):
                best = action
        return best

    def add_noise(
        self,
        tree: Tree,
        legal: np.ndarray,
        exploration: float,
        generator: np.random.Generator,
        noise: np.ndarray | None,
    ) -> None:
        """Draw Gumbel noise, multiply it by `exploration`, and set each root's schedule of considered visits."""
        tree.gumbel[:] = 0.0
        if exploration > 0:
            tree.gumbel[:] = exploration * (generator.gumbel(size=legal.shape) if noise is None else noise)
        for row, count in enumerate(legal.sum(1)):
            schedule = considered_visits(min(self.max_considered, int(count)), tree.considered.shape[1])
            tree.considered[row] = schedule

    def read(self, tree: Tree, temperature: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the best actions among the most visited, and the improved policies; the temperature is not used."""
        batch, _, actions = tree.edges.shape
        action, weights = np.empty(batch, np.int64), np.empty((batch, actions), np.float32)
        _read(self, tree, weights, action)
        return action, weights
