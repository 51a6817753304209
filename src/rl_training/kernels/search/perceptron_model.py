"""Multi-layer perceptrons as a model, laid out in flat arrays for the compiled search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rl_training.search.model import ModelOutput
from rl_training.search.rule import Rule
from rl_training.search.tree import Leaves, Tree

TILE = 32
"""Outputs are computed so many at a time, and layers padded to it."""
IDENTITY, RELU, TANH, ELU, GELU, SILU = range(6)
ACTIVATIONS = {"identity": IDENTITY, "relu": RELU, "tanh": TANH, "elu": ELU, "gelu": GELU, "silu": SILU}


@dataclass(frozen=True)
class Dense:
    """A linear layer, then a layer normalisation if it has one, then an activation."""

    weight: Tensor  # [outputs, inputs]
    bias: Tensor  # [outputs]
    activation: str = "identity"
    norm: tuple[Tensor, Tensor] | None = None  # gain [outputs] and shift [outputs]


class PackedMLP(NamedTuple):
    """What the compiled search reads."""

    weights: np.ndarray  # flat float32: of each layer weight [outputs / TILE, inputs, TILE], bias, gain, shift
    layers: np.ndarray  # [layers] of LAYER, in the order of evaluation
    latent_stride: int
    latent: int  # layers whose outputs are the next latent, the reward and so on
    reward: int
    value: int
    policy: int
    discount: int  # -1 where it is constant
    constant_discount: float


_FIELDS = "source stride inputs target outputs width weight bias norm activation action_rows residual rescale"
LAYER = np.dtype([(name, np.int64) for name in _FIELDS.split()])
"""A layer: columns where its input and output stand among the activations, sizes, and offsets among the weights."""


class _Layout:
    """Places for the layers' outputs among the activations, and for their parameters among the weights."""

    def __init__(self, latent_size: int) -> None:
        self.layers: list[tuple[int, ...]] = []
        self.columns = padded(latent_size)
        self.size = 0
        self.tensors: list[tuple[int, Tensor, bool]] = []  # offset, parameter, whether it is a weight
        self.latent_size = latent_size

    def chain(
        self,
        layers: Sequence[Dense],
        source: int,
        *,
        action_rows: Tensor | None = None,
        residual: bool = False,
        rescale: bool = False,
    ) -> int:
        """Add layers one after another to the output of the layer `source` (-1: the latent); return the last."""
        for position, layer in enumerate(layers):
            last = position == len(layers) - 1
            width, inputs = layer.weight.shape
            column, given = self._output(source)
            if inputs != given:
                raise ValueError(f"a layer of {inputs} inputs follows {given} outputs")
            entry = {
                "source": column,
                "stride": padded(given),
                "inputs": inputs,
                "target": self.columns,
                "outputs": padded(width),
                "width": width,
                "weight": self._place(layer.weight, padded(width) * inputs, is_weight=True),
                "bias": self._place(layer.bias, padded(width)),
                "norm": self._place_norm(layer.norm),
                "activation": ACTIVATIONS[layer.activation],
                "action_rows": -1 if action_rows is None else self._place(action_rows, action_rows.numel()),
                "residual": residual and last,
                "rescale": rescale and last,
            }
            self.layers.append(tuple(int(entry[name]) for name in _FIELDS.split()))
            self.columns += padded(width)
            action_rows = None  # they enter the first layer only
            source = len(self.layers) - 1
        return source

    def _output(self, layer: int) -> tuple[int, int]:
        """Return the column and the width of a layer's output."""
        if layer < 0:
            return 0, self.latent_size
        fields = dict(zip(_FIELDS.split(), self.layers[layer], strict=True))
        return fields["target"], fields["width"]

    def _place_norm(self, norm: tuple[Tensor, Tensor] | None) -> int:
        """Place gain and shift one after the other."""
        if norm is None:
            return -1
        gain, shift = norm
        offset = self._place(gain, gain.numel())
        self._place(shift, shift.numel())
        return offset

    def _place(self, tensor: Tensor, size: int, *, is_weight: bool = False) -> int:
        offset = self.size
        self.tensors.append((offset, tensor, is_weight))
        self.size += size
        return offset


def padded(width: int) -> int:
    """Return the width of whole tiles that hold so many outputs."""
    return -(-width // TILE) * TILE


def tiled(weight: np.ndarray) -> np.ndarray:
    """Return a weight [outputs, inputs] as [outputs / TILE, inputs, TILE], zeros behind the last output."""
    outputs, inputs = weight.shape
    if outputs % TILE:
        weight = np.concatenate((weight, np.zeros((-outputs % TILE, inputs), np.float32)))
    return weight.reshape(-1, TILE, inputs).transpose(0, 2, 1)


class MLPModel:
    """A model whose steps are perceptrons, simulated as a whole in compiled code.

    The weights are copied; `changed` says whether the originals changed since it was asked last, and `refresh` copies
    them again.

    The next latent is the dynamics' output for the latent, with the action's row added before the first layer's
    normalisation and activation; the latent is added to it where `residual`, and it is scaled to [0, 1] where
    `rescale`. Reward (of the next latent), value and policy (of the trunk's output for the next latent) are heads. A
    reward or value of one output is a plain number, one of 2S + 1 outputs the logits of a two-hot distribution over the
    integers -S..S of the transformed number.
    """

    def __init__(
        self,
        initial: Callable[[Any], ModelOutput],
        *,
        action_rows: Tensor,
        dynamics: Sequence[Dense],
        reward: Sequence[Dense],
        value: Sequence[Dense],
        policy: Sequence[Dense],
        discount: float | Sequence[Dense],
        trunk: Sequence[Dense] = (),
        residual: bool = False,
        rescale: bool = False,
        changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`initial` encodes observations, by any network; `action_rows` is [actions, width of the first layer]."""
        self.initial = initial
        self.changed = changed
        self._scratch = np.empty(0, np.float32)
        layout = _Layout(dynamics[-1].weight.shape[0])
        latent = layout.chain(dynamics, -1, action_rows=action_rows, residual=residual, rescale=rescale)
        features = layout.chain(trunk, latent)
        self.packed = PackedMLP(
            reward=layout.chain(reward, latent),
            value=layout.chain(value, features),
            policy=layout.chain(policy, features),
            discount=layout.chain(discount, latent) if isinstance(discount, Sequence) else -1,
            constant_discount=math.nan if isinstance(discount, Sequence) else float(discount),
            latent=latent,
            latent_stride=padded(layout.latent_size),
            layers=np.array(layout.layers, LAYER),
            weights=np.zeros(layout.size, np.float32),
        )
        self.latent_size = layout.latent_size
        self.columns = layout.columns
        """Numbers that all layers together put out for one state."""
        self.latents = np.zeros((0, 0, layout.latent_size), np.float32)
        """What the last search imagined, [trees, nodes, latent]; the next one overwrites it."""
        self._tensors = layout.tensors
        self.refresh()

    def refresh(self) -> None:
        """Copy the current parameters into the flat array."""
        for offset, tensor, is_weight in self._tensors:
            values = tensor.detach().cpu().numpy()
            if is_weight:
                values = tiled(values)
            self.packed.weights[offset : offset + values.size] = values.ravel()

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations of a search whose roots are made."""
        from rl_training.kernels.search.perceptron_search import search_mlp

        if self.changed():
            self.refresh()
        batch, nodes = tree.nodes.shape
        stride = self.packed.latent_stride
        rows = batch * nodes
        if self._scratch.size < rows * stride + batch * self.columns:
            self._scratch = np.zeros(rows * stride + batch * self.columns, np.float32)
        latents = self._scratch[: rows * stride].reshape(rows, stride)
        activations = self._scratch[rows * stride :][: batch * self.columns]
        latents[::nodes, : self.latent_size] = root.embedding.float().cpu().numpy()
        search_mlp(rule, tree, self.packed, leaves, latents, activations)
        self.latents = latents.reshape(batch, nodes, stride)[:, :, : self.latent_size]
