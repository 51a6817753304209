"""Multi-layer perceptrons as a model, simulated as a whole in compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.kernels.search.perceptron_layout import LAYER, Cell, Dense, Layout, NodeStates, PackedMLP, padded
from rl_training.search.model import ModelOutput
from rl_training.search.rule import Rule
from rl_training.search.tree import Buffers, Leaves, Tree, leaves_of, make_leaves, trees_of

ROWS_TOGETHER = 48
"""Trees are searched so many at a time: what the layers put out for them fits the processor's cache."""


class _Searched(NamedTuple):
    """The trees of the last search and what is known of their states, whole and in the groups that are searched."""

    tree: Tree
    leaves: Leaves
    states: NodeStates  # its arrays are [B, N, ...]
    groups: list[tuple[Tree, Leaves, NodeStates]]


class MLPModel:
    """A model whose steps are perceptrons, simulated as a whole in compiled code.

    The weights are copied; `changed` says whether the originals changed since it was asked last, and `refresh` copies
    them again.

    The next latent is the dynamics' output for the latent, with the action's row added before the first layer's
    normalisation and activation; the latent is added to it where `residual`, and it is scaled to [0, 1] where
    `rescale`. Reward (of the next latent), value and policy (of the trunk's output for the next latent) are heads. A
    reward or value of one output is a plain number, one of 2S + 1 outputs the logits of a two-hot distribution over the
    integers -S..S of the transformed number.

    With a recurrent cell the reward's head reads the cell's output and tells the sum of rewards since the last reset;
    a step's reward is how much that grew.
    """

    def __init__(
        self,
        represent: Callable[[Any], Tensor],
        *,
        action_rows: Tensor,
        dynamics: Sequence[Dense],
        reward: Sequence[Dense],
        value: Sequence[Dense],
        policy: Sequence[Dense],
        discount: float | Sequence[Dense],
        trunk: Sequence[Dense] = (),
        cell: Cell | None = None,
        residual: bool = False,
        rescale: bool = False,
        changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`represent` encodes observations, by any network; `action_rows` is [actions, width of the first layer]."""
        self.represent = represent
        self.changed = changed
        layout = Layout()
        self.latent_size = dynamics[-1].weight.shape[0]
        self.cell_size = 0 if cell is None else cell.state_weight.shape[1]
        start = layout.reserve(self.latent_size)
        before = layout.reserve(self.cell_size, 2)
        latent = layout.chain(dynamics, start, action_rows=action_rows, residual=residual, rescale=rescale)
        layers = {"latent": layout.latest, "cell": -1, "discount": -1}
        features = layout.chain(trunk, latent)
        layout.chain(value, features)
        layers["value"] = layout.latest
        layout.chain(policy, features)
        layers["policy"] = layout.latest
        told = latent
        if cell is not None:
            layers["cell"] = layout.latest + 1
            layout.gates(cell.input_weight, cell.input_bias, latent)
            layout.gates(cell.state_weight, cell.state_bias, before)
            told = layout.reserve(self.cell_size, 2)
        layout.chain(reward, told)
        layers["reward"] = layout.latest
        if isinstance(discount, Sequence):
            layout.chain(discount, latent)
            layers["discount"] = layout.latest
        self.packed = PackedMLP(
            **layers,
            constant_discount=math.nan if isinstance(discount, Sequence) else float(discount),
            latent_stride=padded(self.latent_size),
            cell_stride=padded(self.cell_size),
            cell_before=before.column,
            cell_after=told.column,
            horizon=0 if cell is None else cell.horizon,
            layers=np.array(layout.layers, LAYER),
            weights=np.zeros(layout.size, np.float32),
        )
        self._tensors = layout.tensors
        self._buffers = Buffers()
        self._activations = np.zeros(ROWS_TOGETHER * layout.columns, np.float32)
        self._roots = make_leaves(0, 0)
        self._searched: _Searched | None = None
        self.refresh()

    def refresh(self) -> None:
        """Copy the current parameters into the flat array."""
        for offset, tensor, pack in self._tensors:
            values = pack(tensor.detach().cpu().numpy())
            self.packed.weights[offset : offset + values.size] = values.ravel()

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the roots' observations; a recurrent cell starts empty."""
        from rl_training.kernels.search.perceptron_search import predict_mlp

        if self.changed():
            self.refresh()
        latent = self.represent(observation)
        rows = len(latent)
        if rows != len(self._roots.values):
            self._roots = make_leaves(rows, int(self.packed.layers[self.packed.policy]["width"]))
        inputs = np.ascontiguousarray(latent.float().cpu().numpy())
        for first, last in _groups(rows):
            predict_mlp(self.packed, inputs[first:last], leaves_of(self._roots, first, last), self._activations)
        return ModelOutput(
            prior_logits=torch.from_numpy(self._roots.logits.copy()),
            value=torch.from_numpy(self._roots.values.copy()),
            reward=torch.from_numpy(self._roots.rewards),
            discount=torch.from_numpy(self._roots.discounts),
            embedding=latent,
        )

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations of a search whose roots are made."""
        from rl_training.kernels.search.perceptron_search import search_mlp

        if self._searched is None or self._searched.tree is not tree or self._searched.leaves is not leaves:
            self._searched = self._prepare(tree, leaves)
        states = self._searched.states
        states.latents[:, 0, : self.latent_size] = root.embedding.float().cpu().numpy()
        states.cells[:, 0] = 0.0
        states.prefixes[:, 0] = states.depths[:, 0] = 0.0
        for some_trees, some_leaves, some_states in self._searched.groups:
            search_mlp(rule, some_trees, self.packed, some_leaves, some_states, self._activations)

    def _prepare(self, tree: Tree, leaves: Leaves) -> _Searched:
        """Return memory for the states of trees, and the groups of trees that are searched together."""
        array, packed, shape = self._buffers.array, self.packed, tree.nodes.shape
        states = NodeStates(
            latents=array("latents", np.float32, *shape, packed.latent_stride),
            cells=array("cells", np.float32, *shape, 2 * packed.cell_stride),
            prefixes=array("prefixes", np.float32, *shape),
            depths=array("depths", np.float32, *shape),
        )
        groups = [
            (
                trees_of(tree, first, last),
                leaves_of(leaves, first, last),
                NodeStates(*(part[first:last].reshape(-1) for part in states)),
            )
            for first, last in _groups(len(tree.nodes))
        ]
        return _Searched(tree, leaves, states, groups)

    @property
    def embeddings(self) -> np.ndarray:
        """What the last search imagined [trees, nodes, ...], in the order of the torch model's embeddings."""
        assert self._searched is not None
        latents, cells, prefixes, depths = self._searched.states
        latents = latents[:, :, : self.latent_size]
        if not self.cell_size:
            return latents
        output, memory = np.split(cells, 2, axis=2)
        cell = output[:, :, : self.cell_size], memory[:, :, : self.cell_size]
        return np.concatenate((latents, *cell, prefixes[..., None], depths[..., None]), axis=2)


def _groups(rows: int) -> list[tuple[int, int]]:
    """Return the beginnings and ends of groups of nearly equal size, whole fours but for the last."""
    count = -(-rows // ROWS_TOGETHER)
    size = -(-rows // (4 * max(count, 1))) * 4
    return [(first, min(first + size, rows)) for first in range(0, rows, size)] if rows else []
