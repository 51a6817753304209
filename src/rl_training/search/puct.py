"""MuZero's rule: selection by value and prior, Dirichlet noise in the root's prior, visit counts as the policy."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from rl_training.search.compilation import part
from rl_training.search.transforms import NodeRange, TreeRange, transform_values
from rl_training.search.tree import Tree


@functools.lru_cache(maxsize=1024)
def prior_factors(c_init: float, c_base: float, count: int) -> np.ndarray:
    """Return the factors of priors at nodes with 0 to `count` - 1 visits."""
    factors = [math.sqrt(visits) * (c_init + math.log((visits + c_base + 1) / c_base)) for visits in range(count)]
    return np.array(factors)


@part()
def select_by_puct(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
    """Return the action with the highest sum of normalised value and prior bonus."""
    scores, edges = tree.scores, tree.edges[root, node]
    transform_values(rule.transform, tree, root, node, scores)
    bonus = tree.bonus[tree.nodes[root, node].visits]
    best = -1
    for action in range(len(scores)):
        edge = edges[action]
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
        """Set the factors of priors and mix a fraction `exploration` of Dirichlet noise into the roots' priors."""
        tree.bonus[:] = prior_factors(self.c_init, self.c_base, len(tree.bonus))
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
