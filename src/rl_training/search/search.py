"""A search for a batch of roots: the model speaks, the trees grow, the roots tell what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import ConfigError, EnvironmentFailure, NonFiniteError
from rl_training.search.mlp import MLPModel
from rl_training.search.model import ModelOutput, SearchModel
from rl_training.search.rules import Gumbel, Puct, Rule, considered_visits
from rl_training.search.transformer import TransformerModel
from rl_training.search.tree import Tree, TreeBuffers, make_leaves

Searchable = SearchModel | MLPModel | TransformerModel
"""What can be searched: by torch, or compiled as a whole."""


class SearchResult(NamedTuple):
    """What the search found at the roots."""

    action: np.ndarray  # [B] int64, the one to take
    weights: np.ndarray  # [B, A] float32, the policy to learn from: shares of visits, or the improved policy (Gumbel)
    value: np.ndarray  # [B] float32, mean of the network's value and every simulation's return
    visits: np.ndarray  # [B, A] int32
    q_values: np.ndarray  # [B, A] float32, 0 where unvisited
    network_value: np.ndarray  # [B] float32, before the search


class TreeSearch:
    """Searches by one rule; its memory is kept for the next call and enlarged when that needs more."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.tree: Tree
        """The trees of the latest search; the next one overwrites them."""
        self._buffers = TreeBuffers()
        self._leaves = make_leaves(0, 0)
        self._embeddings = torch.empty(0)
        self._scratch = np.empty(0, np.float32)

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

        `exploration` weighs the root's noise: the share of Dirichlet noise in the prior, or the factor of the Gumbel
        noise; 0 plays without. `legal` [B, A] is true for the actions allowed at the roots. PUCT draws the action by
        visits ** (1 / temperature), 0 takes the most visited; Gumbel has no temperature. `noise` [B, A] replaces what
        the generator would draw.
        """
        from rl_training.search.compiled_tree import plant

        if num_simulations < 1:
            raise ConfigError(f"num_simulations: must be at least 1, not {num_simulations}")
        output = model.initial(observation)
        # A slice of a larger tensor would make the compiler start anew for its layout.
        logits = np.ascontiguousarray(output.prior_logits.float().cpu().numpy())
        values = np.ascontiguousarray(output.value.float().cpu().numpy())
        known = logits > -np.inf
        if legal is not None:
            logits = np.where(legal, logits, np.float32(-np.inf))
        allowed = np.isfinite(logits)
        if not allowed.all():
            _check_roots(logits, allowed)
        self.tree = self._buffers.reserve(len(logits), num_simulations + 1, logits.shape[1])
        if self._leaves.logits.shape != logits.shape:
            self._leaves = make_leaves(*logits.shape)
        self.tree.known[:] = known
        plant(self.tree, values, logits)
        self._add_noise(allowed, exploration, generator, noise)
        if isinstance(model, MLPModel):
            self._search_mlp(model, output)
        elif isinstance(model, TransformerModel):
            self._search_transformer(model, output)
        else:
            self._search_torch(model, output)
        return self._read(temperature, generator)

    def _add_noise(
        self, allowed: np.ndarray, exploration: float, generator: np.random.Generator, noise: np.ndarray | None
    ) -> None:
        tree = self.tree
        if isinstance(self.rule, Gumbel):
            tree.gumbel[:] = 0.0
            if exploration > 0:
                tree.gumbel[:] = exploration * (generator.gumbel(size=allowed.shape) if noise is None else noise)
            for row, count in enumerate(allowed.sum(1)):
                schedule = considered_visits(min(self.rule.max_considered, int(count)), tree.considered.shape[1])
                tree.considered[row] = schedule
        elif exploration > 0:
            if noise is None:
                noise = _dirichlet(self.rule, allowed, generator)
            priors = tree.edges["prior"][:, 0]
            priors[:] = (1 - exploration) * priors + exploration * noise

    def _search_torch(self, model: SearchModel, output: ModelOutput) -> None:
        from rl_training.search.compiled_tree import grow, select

        tree, leaves = self.tree, self._leaves
        batch, nodes = tree.nodes.shape
        embeddings = self._reserve_embeddings(output.embedding, nodes)
        by_node = embeddings.view(batch, nodes, *embeddings.shape[1:])
        by_node[:, 0] = output.embedding
        gathered = torch.empty_like(output.embedding)
        # The same memory as tensors.
        parents, actions, values, rewards, discounts, logits = map(torch.from_numpy, leaves)
        device = embeddings.device
        for node in range(1, nodes):
            select(self.rule, tree, node - 1, leaves)
            torch.index_select(embeddings, 0, parents.to(device), out=gathered)
            output = model.recurrent(gathered, actions.to(device))
            by_node[:, node] = output.embedding
            values.copy_(output.value)
            rewards.copy_(output.reward)
            discounts.copy_(output.discount)
            logits.copy_(output.prior_logits)
            grow(tree, node, leaves)

    def _search_mlp(self, model: MLPModel, output: ModelOutput) -> None:
        from rl_training.search.compiled_mlp import search_mlp

        batch, nodes = self.tree.nodes.shape
        stride = model.packed.latent_stride
        rows = batch * nodes
        if self._scratch.size < rows * stride + batch * model.columns:
            self._scratch = np.zeros(rows * stride + batch * model.columns, np.float32)
        latents = self._scratch[: rows * stride].reshape(rows, stride)
        activations = self._scratch[rows * stride :][: batch * model.columns]
        latents[::nodes, : model.latent_size] = output.embedding.float().cpu().numpy()
        search_mlp(self.rule, self.tree, model.packed, self._leaves, latents, activations)

    def _search_transformer(self, model: TransformerModel, output: ModelOutput) -> None:
        from rl_training.search.compiled_transformer import search_transformer

        batch, nodes = self.tree.nodes.shape
        workspace = model.transformer.workspace(batch, nodes)
        workspace.memory.reshape(batch, nodes, -1)[:, 0] = output.embedding.numpy()
        search_transformer(self.rule, self.tree, model.transformer.packed, model.spans, self._leaves, workspace)

    def _reserve_embeddings(self, example: Tensor, nodes: int) -> Tensor:
        """Return memory for every node's embedding, [B * N, ...]."""
        rows, known = len(example) * nodes, self._embeddings
        fits = known.shape[1:] == example.shape[1:] and known.dtype == example.dtype and known.device == example.device
        if not fits or len(known) < rows:
            self._embeddings = example.new_empty(rows, *example.shape[1:])
        return self._embeddings[:rows]

    def _read(self, temperature: float, generator: np.random.Generator) -> SearchResult:
        tree, roots, edges = self.tree, self.tree.nodes[:, 0], self.tree.edges[:, 0]
        if not np.isfinite(roots["value"]).all():
            raise NonFiniteError("the model's rewards, values or discounts became NaN or infinite during the search")
        visits = edges["visits"].copy()
        action = np.empty(len(visits), np.int64)
        weights = np.empty(visits.shape, np.float32)
        if isinstance(self.rule, Gumbel):
            from rl_training.search.compiled_tree import read_gumbel

            read_gumbel(self.rule, tree, weights, action)
        else:
            weights[:] = visits / visits.sum(1, keepdims=True)
            action[:] = _draw(visits, temperature, generator)
        return SearchResult(
            action=action,
            weights=weights,
            value=roots["value"].copy(),
            visits=visits,
            q_values=edges["q_value"].copy(),
            network_value=roots["network_value"].copy(),
        )


def _check_roots(logits: np.ndarray, allowed: np.ndarray) -> None:
    if not np.isneginf(logits[~allowed]).all():
        raise NonFiniteError("the model's policy logits are NaN or infinite at the root of the search")
    stuck = np.flatnonzero(~allowed.any(1))
    if len(stuck):
        raise EnvironmentFailure(
            f"no action is legal at root {stuck[0]} of the search: end the episode where the environment's mask allows "
            "nothing"
        )


def _dirichlet(rule: Puct, allowed: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw Dirichlet noise [B, A] over the allowed actions."""
    drawn = generator.standard_gamma(rule.dirichlet_alpha, allowed.shape) + np.finfo(np.float64).tiny
    drawn *= allowed
    return drawn / drawn.sum(1, keepdims=True)


def _draw(visits: np.ndarray, temperature: float, generator: np.random.Generator) -> np.ndarray:
    """Draw actions [B] in proportion to visits ** (1 / temperature)."""
    if temperature <= 0:
        return visits.argmax(1)
    shares = (visits / visits.max(1, keepdims=True)) ** (1 / temperature)
    bounds = shares.cumsum(1)
    return (bounds <= generator.random((len(visits), 1)) * bounds[:, -1:]).sum(1)
