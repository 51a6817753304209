"""Multi-layer perceptrons in flat arrays, as compiled code reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

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

    @property
    def is_plain(self) -> bool:
        """Whether it is linear and nothing else."""
        return self.activation == "identity" and self.norm is None


class Cell(NamedTuple):
    """A recurrent (LSTM) cell over the latents, whose output tells the sum of rewards since its last reset."""

    input_weight: Tensor  # [4 * size, latent]
    input_bias: Tensor  # [4 * size]
    state_weight: Tensor  # [4 * size, size]
    state_bias: Tensor  # [4 * size]
    horizon: int
    """The cell's state is reset after so many steps."""


class PackedMLP(NamedTuple):
    """What the compiled search reads. A column c of activations stands at c * rows."""

    weights: np.ndarray  # flat float32: of each layer weight [outputs / TILE, inputs, TILE], bias, gain, shift
    layers: np.ndarray  # [layers] of LAYER, in the order of evaluation
    latent_stride: int
    latent: int  # layers whose outputs are the next latent, the reward and so on
    reward: int
    value: int
    atoms: int  # outputs that are the value's; those of a policy in the same layer come after them
    policy: int
    policy_from: int  # the first of the policy's outputs
    actions: int
    discount: int  # -1 where it is constant
    constant_discount: float
    cell: int  # layer with the recurrent cell's gates of the latent, before the one with those of its state; or -1
    cell_stride: int  # padded size of the cell's output and memory, which stand one after the other
    cell_before: int  # column of the state that a step begins with
    cell_after: int  # column of the one it ends with
    horizon: int
    represented: int  # the first layers, which encode observations; 0 where roots are given as latents


class Scratch(NamedTuple):
    """Memory of an evaluation."""

    activations: np.ndarray  # float32, [columns, rows] of the layers' inputs and outputs
    order: np.ndarray  # [rows] int64, which state each row is
    actions: np.ndarray  # [rows] int64, the actions that lead to them


_FIELDS = "source stride inputs target outputs width weight bias norm activation action_rows residual rescale"
LAYER = np.dtype([(name, np.int64) for name in _FIELDS.split()])
"""A layer: columns where its input and output stand among the activations, sizes, and offsets among the weights."""
Pack = Callable[[np.ndarray], np.ndarray]


class Place(NamedTuple):
    """A column of the activations, and how many numbers stand there for each row."""

    column: int
    width: int


class Layout:
    """Places for the layers' outputs among the activations, and for their parameters among the weights."""

    def __init__(self) -> None:
        self.layers: list[tuple[int, ...]] = []
        self.columns = 0
        self.size = 0
        self.tensors: list[tuple[int, tuple[Tensor, ...], Pack]] = []  # offset, parameters, how they are laid out

    def chain(
        self,
        layers: Sequence[Dense],
        source: Place,
        *,
        action_rows: Tensor | None = None,
        residual: bool = False,
        rescale: bool = False,
    ) -> Place:
        """Add layers one after another, the first of which reads `source`; return where the last one writes."""
        for position, layer in enumerate(layers):
            last = position == len(layers) - 1
            width, inputs = layer.weight.shape
            if inputs != source.width:
                raise ValueError(f"a layer of {inputs} inputs follows {source.width} outputs")
            source = self._add(
                source,
                width,
                weight=self._place((layer.weight,), padded(width) * inputs, tiled),
                bias=self._place((layer.bias,), padded(width)),
                norm=self._place_norm(layer.norm),
                activation=ACTIVATIONS[layer.activation],
                action_rows=-1 if action_rows is None else self._place((action_rows,), action_rows.numel()),
                residual=residual and last,
                rescale=rescale and last,
            )
            action_rows = None  # they enter the first layer only
        return source

    def join(self, first: Dense, second: Dense, source: Place) -> None:
        """Add two plain layers that read the same inputs as one, whose outputs come after one another."""
        if not first.weight.shape[1] == second.weight.shape[1] == source.width:
            raise ValueError(f"layers of {first.weight.shape[1]} and {second.weight.shape[1]} inputs cannot be joined")
        width = len(first.weight) + len(second.weight)
        self._add(
            source,
            width,
            weight=self._place((first.weight, second.weight), padded(width) * source.width, tiled),
            bias=self._place((first.bias, second.bias), padded(width)),
        )

    def gates(self, weight: Tensor, bias: Tensor, source: Place) -> None:
        """Add the layer with a recurrent cell's four gates, each of them padded."""
        width, inputs = 4 * padded(len(bias) // 4), weight.shape[1]
        pack_weight: Pack = lambda values: tiled(_padded_gates(values))  # noqa: E731 - one line says it all
        self._add(
            source,
            width,
            weight=self._place((weight,), width * inputs, pack_weight),
            bias=self._place((bias,), width, _padded_gates),
        )

    def reserve(self, width: int, count: int = 1) -> Place:
        """Return room for as many parts of so many numbers one after the other, each of them padded."""
        place = Place(self.columns, width)
        self.columns += count * padded(width)
        return place

    def sources(self) -> tuple[list[Tensor], np.ndarray]:
        """Return the parameters, and for each weight where its number lies when they stand one after the other.

        At 0 lies the zero that pads layers; the parameters begin behind it.
        """
        found, begin = np.zeros(self.size, np.int64), 1
        for offset, tensors, pack in self.tensors:
            counts = [tensor.numel() for tensor in tensors]
            ends = begin + np.cumsum(counts)
            parts = [
                np.arange(end - count, end).reshape(tensor.shape)
                for tensor, count, end in zip(tensors, counts, ends, strict=True)
            ]
            places = pack(np.concatenate(parts)).ravel()
            found[offset : offset + len(places)] = places
            begin = int(ends[-1])
        return [tensor for _, tensors, _ in self.tensors for tensor in tensors], found

    @property
    def latest(self) -> int:
        """The number of the layer added last."""
        return len(self.layers) - 1

    def _add(self, source: Place, width: int, **fields: int) -> Place:
        target = self.reserve(width)
        entry = {
            **dict.fromkeys(("norm", "action_rows"), -1),
            **dict.fromkeys(("activation", "residual", "rescale"), 0),
            "source": source.column,
            "stride": padded(source.width),
            "inputs": source.width,
            "target": target.column,
            "outputs": padded(width),
            "width": width,
            **fields,
        }
        self.layers.append(tuple(int(entry[name]) for name in _FIELDS.split()))
        return target

    def _place_norm(self, norm: tuple[Tensor, Tensor] | None) -> int:
        """Place gain and shift one after the other."""
        if norm is None:
            return -1
        gain, shift = norm
        return self._place(norm, gain.numel() + shift.numel())

    def _place(self, tensors: tuple[Tensor, ...], size: int, pack: Pack = np.ravel) -> int:
        """Return the offset of parameters that are joined by their first axis before they are laid out."""
        offset = self.size
        self.tensors.append((offset, tensors, pack))
        self.size += size
        return offset


def padded(width: int) -> int:
    """Return the width of whole tiles that hold so many outputs."""
    return -(-width // TILE) * TILE


def tiled(weight: np.ndarray) -> np.ndarray:
    """Return a weight [outputs, inputs] as [outputs / TILE, inputs, TILE], zeros behind the last output."""
    outputs, inputs = weight.shape
    if outputs % TILE:
        weight = np.concatenate((weight, np.zeros((-outputs % TILE, inputs), weight.dtype)))
    return weight.reshape(-1, TILE, inputs).transpose(0, 2, 1)


def _padded_gates(values: np.ndarray) -> np.ndarray:
    """Return weights or biases of four gates [4 * size, ...] as [4 * padded size, ...], zeros behind each."""
    size = len(values) // 4
    room = np.zeros((4, padded(size), *values.shape[1:]), values.dtype)
    room[:, :size] = values.reshape(4, size, *values.shape[1:])
    return room.reshape(4 * padded(size), *values.shape[1:])
