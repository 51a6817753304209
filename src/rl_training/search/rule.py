"""The interface of a selection rule for the search."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from rl_training.search.compilation import chosen_by_class
from rl_training.search.tree import Tree


class Rule(Protocol):
    """How a search chooses actions: noise at the root, selection, and the results read from the finished trees.

    A rule is a named tuple of constants. `at_root` and `inside` are static functions that numba can compile: they
    take (rule, tree, root, node, simulation) and return the action that a simulation takes there.
    """

    @staticmethod
    def at_root(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
        """Return the action that a simulation takes at the root."""

    @staticmethod
    def inside(rule: Any, tree: Tree, root: int, node: int, simulation: int) -> int:
        """Return the action that a simulation takes at an inner node."""

    def add_noise(
        self,
        tree: Tree,
        legal: np.ndarray,
        exploration: float,
        generator: np.random.Generator,
        noise: np.ndarray | None,
    ) -> None:
        """Prepare the roots; `legal` and `noise`, which replaces random draws, are [B, A]."""

    def read(self, tree: Tree, temperature: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions to take [B] and the policies to learn from [B, A]."""


# Each takes (rule, tree, root, node, simulation) and returns the action that a simulation takes there.
select_at_root = chosen_by_class("at_root")
select_inside = chosen_by_class("inside")
