"""What a compiled search needs around it: knowing when weights changed, and a check of its first result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.kernels.checks import KernelMismatch
from rl_training.search.model import ModelOutput, SearchModel
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree

TOLERANCE = 1e-3
"""Largest difference of values, rewards and probabilities; relative to them where they are large."""


class Watch:
    """Tells whether the weights of a network changed since it was asked last."""

    def __init__(self, values: Tensor, network: nn.Module, state: Callable[[], Any] = lambda: None) -> None:
        """`values` is the flat memory of all parameters, which optimizers write to; `state` whatever else counts."""
        self._tensors = [values, *network.parameters()]
        self._state = state
        self._seen = self._version()

    def _version(self) -> tuple[Any, ...]:
        return sum(tensor._version for tensor in self._tensors), self._state()

    def changed(self) -> bool:
        """Return whether there were changes, and take note of them."""
        before, self._seen = self._seen, self._version()
        return before != self._seen


class CheckedModel:
    """A compiled model whose first search is repeated, node by node, with the model that it stands for."""

    def __init__(self, compiled: Any, model: SearchModel, kernel: str, *, passed: Callable[[], None]) -> None:
        self.compiled = compiled
        self.model = model
        self.kernel = kernel
        self.passed = passed
        self._root: ModelOutput

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the roots' observations."""
        self._root = self.model.initial(observation)
        output: ModelOutput = self.compiled.initial(observation)
        return output

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Take one action in each state."""
        return self.model.recurrent(embedding, action)

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations and check what the trees say of every state."""
        self.compiled.simulate(rule, tree, leaves, root)
        # The heads of a fresh network say 0 whatever it imagines.
        difference = _difference(self.model, self._root, tree, getattr(self.compiled, "latents", None))
        if not difference <= TOLERANCE and np.isfinite(tree.nodes["network_value"]).all():
            raise KernelMismatch(
                self.kernel, f"values, rewards or policies of this run's first search ({difference:.1e})"
            )
        self.passed()


def _difference(model: SearchModel, root: ModelOutput, tree: Tree, latents: np.ndarray | None) -> float:
    """Return the largest difference between the nodes of trees and what a model says of the same states.

    `latents` [trees, nodes, latent] are those of the states, where they are known.
    """
    batch, nodes = tree.nodes.shape
    rows = torch.arange(batch)
    embeddings = root.embedding.new_empty(batch, nodes, *root.embedding.shape[1:])
    embeddings[:, 0] = root.embedding
    largest = _distance(tree.nodes["network_value"][:, 0], root.value)
    for number in range(1, nodes):
        node = tree.nodes[:, number]
        parents, actions = (torch.from_numpy(node[name].astype(np.int64)) for name in ("parent", "action"))
        output = model.recurrent(embeddings[rows, parents].clone(), actions)
        embeddings[:, number] = output.embedding
        if latents is not None:
            largest = max(largest, _distance(latents[:, number], output.embedding))
        largest = max(
            largest,
            _distance(node["network_value"], output.value),
            _distance(node["reward"], output.reward),
            _distance(tree.edges["prior"][:, number], output.prior_logits.softmax(-1)),
        )
    return largest


def _distance(found: np.ndarray, expected: Tensor) -> float:
    numbers = expected.float().cpu().numpy()
    return float((np.abs(found - numbers) / np.maximum(1.0, np.abs(numbers))).max())
