"""Run a batched tree search with a learned model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import ConfigError, EnvironmentFailure, NonFiniteError
from rl_training.search.growth import compiled_grow, compiled_make_roots, compiled_select
from rl_training.search.model import ModelOutput, Searchable, SearchModel
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree, TreeBuffers, make_leaves


class SearchResult(NamedTuple):
    """The results of a search at the roots."""

    action: np.ndarray  # [B] int64, the action to take
    weights: np.ndarray  # [B, A] float32, the policy to learn from: shares of visits, or the improved policy (Gumbel)
    value: np.ndarray  # [B] float32, mean of the network's value and every simulation's return
    visits: np.ndarray  # [B, A] int32
    q_values: np.ndarray  # [B, A] float32, 0 where unvisited
    network_value: np.ndarray  # [B] float32, before the search


class TreeSearch:
    """Tree search with one selection rule; its memory is reused by the next call and enlarged if needed."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.tree: Tree
        """The trees of the latest search; the next one overwrites them."""
        self._buffers = TreeBuffers()
        self._leaves = make_leaves(0, 0)
        self._simulation = TorchSimulation()

    @torch.inference_mode()
    def run(
        self,
        model: Searchable,
        observation: Any,
        *,
        num_simulations: int,
        exploration: float,
        generator: np.random.Generator,
        legal: np.ndarray | None = None,
        temperature: float = 0.0,
        noise: np.ndarray | None = None,
    ) -> SearchResult:
        """Search from a batch of observations.

        `exploration` is the amount of noise at the root: the fraction of Dirichlet noise in the prior, or the factor of
        the Gumbel noise; 0 means none. `legal` [B, A] is true for the actions that are legal at the roots. PUCT samples
        the action in proportion to visits ** (1 / temperature), at 0 it takes the most visited; Gumbel has no
        temperature. `noise` [B, A] replaces random draws.
        """
        if num_simulations < 1:
            raise ConfigError(f"num_simulations: must be at least 1, not {num_simulations}")
        output = model.initial(observation)
        # A slice of a larger tensor would make numba compile again for its memory layout.
        logits = np.ascontiguousarray(output.prior_logits.float().cpu().numpy())
        values = np.ascontiguousarray(output.value.float().cpu().numpy())
        in_model = logits > -np.inf
        if legal is not None:
            logits = np.where(legal, logits, np.float32(-np.inf))
        is_legal = np.isfinite(logits)
        if not is_legal.all():
            _check_roots(logits, is_legal)
        self.tree = self._buffers.reserve(len(logits), num_simulations + 1, logits.shape[1])
        if self._leaves.logits.shape != logits.shape:
            self._leaves = make_leaves(*logits.shape)
        self.tree.in_model[:] = in_model
        compiled_make_roots(self.tree, values, logits)
        self.rule.add_noise(self.tree, is_legal, exploration, generator, noise)
        if hasattr(model, "simulate"):
            model.simulate(self.rule, self.tree, self._leaves, output)
        else:
            self._simulation.run(model, self.rule, self.tree, self._leaves, output)
        return self._read(temperature, generator)

    def _read(self, temperature: float, generator: np.random.Generator) -> SearchResult:
        roots, edges = self.tree.nodes[:, 0], self.tree.edges[:, 0]
        if not np.isfinite(roots["value"]).all():
            raise NonFiniteError("the model's rewards, values or discounts became NaN or infinite during the search")
        action, weights = self.rule.read(self.tree, temperature, generator)
        return SearchResult(
            action=action,
            weights=weights,
            value=roots["value"].copy(),
            visits=edges["visits"].copy(),
            q_values=edges["q_value"].copy(),
            network_value=roots["network_value"].copy(),
        )


class TorchSimulation:
    """Runs the simulations with any model: one call per simulation for the leaves of all trees together."""

    def __init__(self) -> None:
        self._embeddings = torch.empty(0)

    def run(self, model: SearchModel, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations on trees whose roots have been made."""
        batch, nodes = tree.nodes.shape
        embeddings = self._reserve(root.embedding, nodes)
        by_node = embeddings.view(batch, nodes, *embeddings.shape[1:])
        by_node[:, 0] = root.embedding
        gathered = torch.empty_like(root.embedding)
        # The leaves' arrays as tensors that share their memory.
        parents, actions, values, rewards, discounts, logits = map(torch.from_numpy, leaves)
        device = embeddings.device
        for node in range(1, nodes):
            compiled_select(rule, tree, node - 1, leaves)
            torch.index_select(embeddings, 0, parents.to(device), out=gathered)
            output = model.recurrent(gathered, actions.to(device))
            by_node[:, node] = output.embedding
            values.copy_(output.value)
            rewards.copy_(output.reward)
            discounts.copy_(output.discount)
            logits.copy_(output.prior_logits)
            compiled_grow(tree, node, leaves)

    def _reserve(self, example: Tensor, nodes: int) -> Tensor:
        """Return memory for every node's embedding, [B * N, ...]."""
        rows, last = len(example) * nodes, self._embeddings
        fits = last.shape[1:] == example.shape[1:] and last.dtype == example.dtype and last.device == example.device
        if not fits or len(last) < rows:
            self._embeddings = example.new_empty(rows, *example.shape[1:])
        return self._embeddings[:rows]


def _check_roots(logits: np.ndarray, is_legal: np.ndarray) -> None:
    if not np.isneginf(logits[~is_legal]).all():
        raise NonFiniteError("the model's policy logits are NaN or infinite at the root of the search")
    stuck = np.flatnonzero(~is_legal.any(1))
    if len(stuck):
        raise EnvironmentFailure(
            f"no action is legal at root {stuck[0]} of the search: end the episode where the environment's mask allows "
            "nothing"
        )
