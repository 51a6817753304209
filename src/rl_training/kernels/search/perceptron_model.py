"""Multi-layer perceptrons as a model, simulated as a whole in compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.kernels.search.evaluated_states import StateMemory
from rl_training.kernels.search.perceptron_layout import (
    LAYER,
    Cell,
    Dense,
    Layout,
    PackedMLP,
    Place,
    Scratch,
    padded,
)
from rl_training.search.model import ModelOutput
from rl_training.search.rule import Rule
from rl_training.search.tree import Buffers, Leaves, Tree

_ZERO = np.zeros(1, np.float32)
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

    Where it `remembers`, states that were evaluated since the weights changed are not evaluated again: for searches
    that return to the same roots.
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
        representation: Sequence[Dense] = (),
        trunk: Sequence[Dense] = (),
        cell: Cell | None = None,
        residual: bool = False,
        rescale: bool = False,
        changed: Callable[[], bool] = lambda: False,
        remembers: bool = False,
    ) -> None:
        """`represent` encodes observations, by any network; `action_rows` is [actions, width of the first layer].

        What it returns are latents, or the inputs of the layers of `representation`, whose outputs are scaled as well.
        """
        self.represent = represent
        self.changed = changed
        layout = Layout()
        self.latent_size = dynamics[-1].weight.shape[0]
        self.cell_size = 0 if cell is None else cell.state_weight.shape[1]
        start = layout.reserve(self.latent_size)
        before = layout.reserve(self.cell_size, 2)
        if representation:
            observed = layout.reserve(representation[0].weight.shape[1])
            layout.chain(representation, observed, rescale=rescale)
        latent = layout.chain(dynamics, start, action_rows=action_rows, residual=residual, rescale=rescale)
        layers = {"latent": layout.latest, "cell": -1, "discount": -1}
        layers |= _add_heads(layout, layout.chain(trunk, latent), value, policy)
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
            represented=len(representation),
            layers=np.array(layout.layers, LAYER),
            weights=np.zeros(layout.size, np.float32),
        )
        self._tensors, self._sources = layout.sources()
        self._buffers = Buffers()
        self._memory = StateMemory(self.packed, remembers=remembers)
        rows = np.zeros(ROWS_TOGETHER, np.int64)
        self._scratch = Scratch(np.zeros(ROWS_TOGETHER * layout.columns, np.float32), rows, rows.copy())
        self.keeps_embeddings = False
        """Whether `embeddings` can be read after a search; without, the memory of a few trees is used again."""
        self._places = np.empty((0, 0), np.int64)
        self.refresh()

    def refresh(self) -> None:
        """Copy the current parameters into the flat array."""
        given = [_ZERO, *(tensor.detach().cpu().numpy().ravel() for tensor in self._tensors)]
        np.take(np.concatenate(given), self._sources, out=self.packed.weights, mode="clip")
        self._memory.forget()

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the roots' observations; a recurrent cell starts empty."""
        from rl_training.kernels.search.perceptron_search import predict_mlp

        if self.changed():
            self.refresh()
        given = self.represent(observation)
        inputs = np.ascontiguousarray(given.float().cpu().numpy())
        rows, actions = len(inputs), self.packed.actions
        latents = np.empty((rows, self.latent_size), np.float32) if self.packed.represented else inputs
        values, logits = np.empty(rows, np.float32), np.empty(rows * actions, np.float32)
        predict_mlp(self.packed, inputs, latents, values, logits, self._scratch, _together(rows))
        nothing = torch.zeros(rows)
        return ModelOutput(
            prior_logits=torch.from_numpy(logits.reshape(rows, actions)),
            value=torch.from_numpy(values),
            reward=nothing,
            discount=nothing,
            embedding=torch.from_numpy(latents),
        )

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations of a search whose roots are made."""
        from rl_training.kernels.search.perceptron_search import search_mlp

        batch, nodes = tree.nodes.shape
        keeps = self.keeps_embeddings or self._memory.remembers
        together = batch if keeps else min(_together(batch), batch)
        self._places = self._buffers.array("places", np.int64, batch, nodes)
        states = self._memory.reserve(together, nodes)
        roots = np.ascontiguousarray(root.embedding.float().cpu().numpy())
        bits = roots.view(np.uint32)
        search_mlp(
            rule, tree, self.packed, leaves, roots, bits, self._places, states, self._scratch, together, not keeps
        )

    @property
    def embeddings(self) -> np.ndarray:
        """What the last search imagined [trees, nodes, ...], in the order of the torch model's embeddings."""
        assert self.keeps_embeddings
        memory = self._memory.states
        count = len(memory.states)
        latents = memory.latents.reshape(count, -1)[self._places, : self.latent_size]
        if not self.cell_size:
            return latents
        states = memory.states[self._places]
        cells = memory.cells.reshape(count, 2, -1)[self._places, :, : self.cell_size].reshape(*self._places.shape, -1)
        depths = states["depth"][..., None]
        return np.concatenate((latents, np.where(depths > 0, cells, 0.0), states["prefix"][..., None], depths), axis=2)


def _add_heads(layout: Layout, features: Place, value: Sequence[Dense], policy: Sequence[Dense]) -> dict[str, int]:
    """Add the heads of value and policy, as one layer where each is one: that pads the outputs but once."""
    atoms, actions = len(value[-1].bias), len(policy[-1].bias)
    joined = len(value) == len(policy) == 1 and value[0].is_plain and policy[0].is_plain
    if joined:
        layout.join(value[0], policy[0], features)
    else:
        layout.chain(value, features)
    of_value = layout.latest
    if not joined:
        layout.chain(policy, features)
    return {
        "value": of_value,
        "atoms": atoms,
        "policy": layout.latest,
        "policy_from": atoms if joined else 0,
        "actions": actions,
    }


def _together(rows: int) -> int:
    """Return how many rows to take at a time, in groups of nearly equal size: whole fours."""
    groups = max(-(-rows // ROWS_TOGETHER), 1)
    return max(-(-rows // (4 * groups)), 1) * 4
