"""What compiled models need around them: knowing when weights changed, and checks of their first results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.kernels.checks import KernelMismatch, eager
from rl_training.search.model import ModelOutput, SearchModel
from rl_training.search.rule import Rule
from rl_training.search.search import TreeSearch
from rl_training.search.tree import Leaves, Tree

TOLERANCE = 1e-3
"""Largest difference of values, rewards and probabilities; relative to them where they are large."""
PROBED_SIMULATIONS = 4
"""Simulations of the search with moved weights: every part of the model is used by the first ones."""


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


class CompiledValues:
    """A compiled model in the place of the network whose values bootstrap returns; its first values are compared.

    They are compared again with weights moved at random, like those of `CheckedModel`.
    """

    def __init__(self, compiled: Any, model: Any, kernel: str, *, compile_copy: Callable[[Any], Any]) -> None:
        """`compile_copy` returns the compiled form of a copy of the model with moved weights."""
        self.compiled = compiled
        self.model = model
        self.kernel = kernel
        self.compile_copy = compile_copy
        self.encoder = model.network.encoder
        self._checked = False

    def values(self, observation: Any) -> Tensor:
        """Return the values [B] of observations."""
        found: Tensor = self.compiled.initial(observation).value
        if not self._checked:
            self._compare(found, self.model, observation)
            moved = _moved_copy(self.model)
            self._compare(self.compile_copy(moved).initial(observation).value, moved, observation)
            self._checked = True
        return found

    def _compare(self, found: Tensor, model: Any, observation: Any) -> None:
        with eager():
            difference = _distance(found.numpy(), model.network.values(observation))
        if not difference <= TOLERANCE and found.isfinite().all():  # what is not finite is not the kernel's doing
            raise KernelMismatch(self.kernel, f"the values that bootstrap this run's first returns ({difference:.1e})")


class CheckedModel:
    """A compiled model whose first search is repeated, node by node, with the model that it replaces.

    The heads of a fresh network are zero and hide what happens before them, so the search is made a second time, with a
    copy whose weights are moved at random.
    """

    def __init__(
        self,
        compiled: Any,
        model: Any,
        kernel: str,
        *,
        compile_copy: Callable[[Any], Any] | None,
        passed: Callable[[], None] = lambda: None,
    ) -> None:
        """`compile_copy` returns the compiled form of a copy with moved weights; `passed` is called after the check."""
        self.compiled = compiled
        self.model = model
        self.kernel = kernel
        self.compile_copy = compile_copy
        self.passed = passed
        self._observation: Any
        self._root: ModelOutput

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the roots' observations."""
        self._observation, self._root = observation, self.model.initial(observation)
        output: ModelOutput = self.compiled.initial(observation)
        return output

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Take one action in each state."""
        output: ModelOutput = self.model.recurrent(embedding, action)
        return output

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations and compare every state of the trees."""
        self.compiled.keeps_embeddings = True
        self.compiled.simulate(rule, tree, leaves, root)
        difference = max(
            _distance(root.prior_logits.softmax(-1).numpy(), self._root.prior_logits.softmax(-1)),
            _difference(self.model, self._root, tree, getattr(self.compiled, "embeddings", None)),
        )
        self.compiled.keeps_embeddings = False
        if not difference <= TOLERANCE and np.isfinite(tree.nodes["network_value"]).all():
            what = f"values, rewards or policies of this run's first search ({difference:.1e})"
            raise KernelMismatch(self.kernel, what)
        if self.compile_copy is not None:
            moved = _moved_copy(self.model)
            copied = CheckedModel(self.compile_copy(moved), moved, self.kernel, compile_copy=None)
            options: Any = {"num_simulations": PROBED_SIMULATIONS, "exploration": 0.0}
            TreeSearch(rule).run(copied, self._observation, generator=np.random.default_rng(0), **options)
        self.passed()


def _moved_copy(model: Any) -> Any:
    """Return a copy of a model whose weights are moved at random, always in the same way."""
    copied, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in copied.network.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.3)
    return copied


def _difference(model: SearchModel, root: ModelOutput, tree: Tree, found: np.ndarray | None) -> float:
    """Return the largest difference between the nodes of trees and what a model says of the same states.

    `found` [trees, nodes, ...] are the embeddings of the states, where they are known.
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
        if found is not None:
            largest = max(largest, _distance(found[:, number], output.embedding))
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
