"""Multi-layer perceptrons as a model, simulated as a whole in compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.kernels.search.perceptron_layout import LAYER, Cell, Dense, Layout, NodeStates, PackedMLP, padded
from rl_training.search.model import ModelOutput
from rl_training.search.rule import Rule
from rl_training.search.tree import Buffers, Leaves, Tree, make_leaves

ROWS_TOGETHER = 48
"""Trees are searched so many at a time: what the layers put out for them fits the processor's cache."""


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
        self.keeps_embeddings = False
        """Whether `embeddings` can be read after a search; without, the memory of a few trees is used again."""
        self._shape = (0, 0)
        self._states: NodeStates
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
        predict_mlp(self.packed, inputs, self._roots, self._activations, _together(rows))
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

        self._shape = batch, nodes = tree.nodes.shape
        together, array, packed = _together(batch), self._buffers.array, self.packed
        rows = nodes * (batch if self.keeps_embeddings else min(together, batch))
        self._states = NodeStates(
            latents=array("latents", np.float32, rows * packed.latent_stride),
            cells=array("cells", np.float32, rows * 2 * packed.cell_stride),
            prefixes=array("prefixes", np.float32, rows),
            depths=array("depths", np.float32, rows),
        )
        roots = np.ascontiguousarray(root.embedding.float().cpu().numpy())
        search_mlp(rule, tree, packed, leaves, roots, self._states, self._activations, together)

    @property
    def embeddings(self) -> np.ndarray:
        """What the last search imagined [trees, nodes, ...], in the order of the torch model's embeddings."""
        assert self.keeps_embeddings
        latents, cells, prefixes, depths = (part.reshape(*self._shape, -1) for part in self._states)
        latents = latents[:, :, : self.latent_size]
        if not self.cell_size:
            return latents
        output, memory = np.split(cells, 2, axis=2)
        cell = output[:, :, : self.cell_size], memory[:, :, : self.cell_size]
        return np.concatenate((latents, *cell, prefixes, depths), axis=2)


def _together(rows: int) -> int:
    """Return how many rows to take at a time, in groups of nearly equal size: whole fours."""
    groups = max(-(-rows // ROWS_TOGETHER), 1)
    return max(-(-rows // (4 * groups)), 1) * 4
