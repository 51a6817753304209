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
from rl_training.search.tree import Buffers, Leaves, Tree, leaves_of, make_leaves, trees_of

ROWS_TOGETHER = 32
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
        self._states = self._reserve(0, 0)
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
        leaves = make_leaves(rows, int(self.packed.layers[self.packed.policy]["width"]))
        inputs = np.ascontiguousarray(latent.float().cpu().numpy())
        for first, last in _groups(rows):
            predict_mlp(self.packed, inputs[first:last], leaves_of(leaves, first, last), self._activations)
        return ModelOutput(
            prior_logits=torch.from_numpy(leaves.logits),
            value=torch.from_numpy(leaves.values),
            reward=torch.from_numpy(leaves.rewards),
            discount=torch.from_numpy(leaves.discounts),
            embedding=latent,
        )

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations of a search whose roots are made."""
        from rl_training.kernels.search.perceptron_search import search_mlp

        batch, nodes = tree.nodes.shape
        self._states = states = self._reserve(batch, nodes)
        states.latents[::nodes, : self.latent_size] = root.embedding.float().cpu().numpy()
        for rest in states[1:]:
            rest[::nodes] = 0.0
        for first, last in _groups(batch):
            rows = slice(first * nodes, last * nodes)
            search_mlp(
                rule,
                trees_of(tree, first, last),
                self.packed,
                leaves_of(leaves, first, last),
                NodeStates(*(array[rows] for array in states)),
                self._activations,
            )

    def _reserve(self, batch: int, nodes: int) -> NodeStates:
        """Return memory for what is known of every node, uninitialised."""
        array, packed, rows = self._buffers.array, self.packed, batch * nodes
        return NodeStates(
            latents=array("latents", np.float32, rows, packed.latent_stride),
            cells=array("cells", np.float32, rows, 2 * packed.cell_stride),
            prefixes=array("prefixes", np.float32, rows),
            depths=array("depths", np.float32, rows),
        )

    @property
    def embeddings(self) -> np.ndarray:
        """What the last search imagined [trees * nodes, ...], in the order of the torch model's embeddings."""
        latents, cells, prefixes, depths = self._states
        if not self.cell_size:
            return latents[:, : self.latent_size]
        output, memory = (cells[:, start:][:, : self.cell_size] for start in (0, self.packed.cell_stride))
        return np.concatenate(
            (latents[:, : self.latent_size], output, memory, prefixes[:, None], depths[:, None]), axis=1
        )


def _groups(rows: int) -> list[tuple[int, int]]:
    """Return the beginnings and ends of groups of nearly equal size, whole fours but for the last."""
    count = -(-rows // ROWS_TOGETHER)
    size = -(-rows // (4 * max(count, 1))) * 4
    return [(first, min(first + size, rows)) for first in range(0, rows, size)] if rows else []
