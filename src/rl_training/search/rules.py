"""How a search chooses actions: selection rules, and the value transforms they compare actions by.

A rule or transform is a named tuple of its constants. Its formula is the function that `compiled_selection` lists for
its class, and a search is compiled once for each combination.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np


class NodeRange(NamedTuple):
    """Q-values scaled to [0, 1] by the range of the node's own value and its visited children; unvisited are 0."""

    epsilon: float = 1e-8
    """The smallest range to divide by."""


class TreeRange(NamedTuple):
    """Q-values scaled to [0, 1] by the range of every Q-value seen in the tree; unvisited are 0."""

    epsilon: float = 1e-8
    """The smallest range to divide by."""


class CompletedValues(NamedTuple):
    """Q-values, a mixed value where unvisited, scaled to [0, 1] over the actions and weighted by the visits so far."""

    c_visit: float = 50.0
    c_scale: float = 0.1
    epsilon: float = 1e-8
    """The smallest range to divide by."""


class Puct(NamedTuple):
    """MuZero: the prior guides exploration, Dirichlet noise enters the root's prior, visit counts are the policy."""

    c_init: float = 1.25
    c_base: float = 19652.0
    dirichlet_alpha: float = 0.3
    transform: NodeRange | TreeRange = NodeRange()


class Gumbel(NamedTuple):
    """Gumbel MuZero: sequential halving among the best perturbed actions at the root, the improved policy inside."""

    max_considered: int = 16
    """How many actions the root considers at most."""
    transform: CompletedValues = CompletedValues()


Rule = Puct | Gumbel


@functools.lru_cache(maxsize=1024)
def considered_visits(considered: int, num_simulations: int) -> np.ndarray:
    """Return, for each simulation, how often the action it takes at the root has been visited before.

    Sequential halving: all considered actions get equally many visits, then the better half of them, down to two.
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
