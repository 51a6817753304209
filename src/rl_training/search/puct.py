"""MuZero's rule: selection by value and prior, Dirichlet noise in the root's prior, visit counts as the policy."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rl_training.search.compilation import part
from rl_training.search.transforms import NodeRange, TreeRange, transform_values
from rl_training.search.tree import Tree


@part()
def select_by_puct(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the action with the highest sum of normalised value and prior bonus."""
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


class Puct(NamedTuple):
    """The constants of PUCT (Schrittwieser et al. 2020, arXiv 1911.08265, appendix B)."""

    c_init: float = 1.25
    c_base: float = 19652.0
    dirichlet_alpha: float = 0.3
    transform: NodeRange | TreeRange = NodeRange()

    @staticmethod
    def at_root(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
        """Return the action that a simulation takes at the root."""
        return select_by_puct(rule, tree, root, node, simulation)

    @staticmethod
    def inside(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
        """Return the action that a simulation takes at an inner node."""
        return select_by_puct(rule, tree, root, node, simulation)

    def add_noise(
        self,
        tree: Tree,
        legal: np.ndarray,
        exploration: float,
        generator: np.random.Generator,
        noise: np.ndarray | None,
    ) -> None:
        """Mix a fraction `exploration` of Dirichlet noise into the roots' priors."""
        if exploration <= 0:
            return
        if noise is None:
            drawn = generator.standard_gamma(self.dirichlet_alpha, legal.shape) + np.finfo(np.float64).tiny
            drawn *= legal
            noise = drawn / drawn.sum(1, keepdims=True)
        priors = tree.edges["prior"][:, 0]
        priors[:] = (1 - exploration) * priors + exploration * noise

    def read(self, tree: Tree, temperature: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return actions sampled by visits ** (1 / temperature), at 0 the most visited, and the shares of visits."""
        visits = tree.edges["visits"][:, 0]
        weights = (visits / visits.sum(1, keepdims=True)).astype(np.float32)
        if temperature <= 0:
            return visits.argmax(1), weights
        shares = (visits / visits.max(1, keepdims=True)) ** (1 / temperature)
        bounds = shares.cumsum(1)
        return (bounds <= generator.random((len(visits), 1)) * bounds[:, -1:]).sum(1), weights
