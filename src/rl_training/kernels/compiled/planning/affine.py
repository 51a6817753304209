"""Linear layers over ranges of rows: outputs, and gradients with respect to inputs and weights.

All matrices of a pass have `total` rows and lie in blocks; a range is given by its first row and its number of rows.
Activations and their gradients lie at the same places of two arrays, `trace` and `grad`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.kernels.compiled.blocks import block_product, pack, padded, unpack
from rl_training.kernels.compiled.lanes import LANES, load, store
from rl_training.search.compilation import part

LAYER = np.dtype([(name, np.int64) for name in ("inputs", "outputs", "flat", "bias_flat", "at", "bias", "transposed")])
"""A layer: its sizes, where weight [outputs, inputs] and bias begin in the optimizer's memory, where the weight in
blocks [inputs, outputs], the bias [outputs] and the transposed weight in blocks [outputs, inputs] are packed."""


@part()
def pack_layer(layer: Any, flat: np.ndarray, values: np.ndarray, transposed: np.ndarray) -> None:
    """Pack weight and bias of a flat array."""
    inputs, outputs = layer.inputs, layer.outputs
    pack(flat, layer.flat, 1, inputs, inputs, outputs, values, layer.at)
    pack(flat, layer.bias_flat, 0, 1, 1, outputs, values, layer.bias)
    pack(flat, layer.flat, inputs, 1, outputs, inputs, transposed, layer.transposed)


@part()
def unpack_gradient(layer: Any, packed: np.ndarray, gradient: np.ndarray) -> None:
    """Write the packed gradient of a layer to the order of the flat array."""
    unpack(packed, layer.at, layer.inputs, layer.outputs, gradient, layer.flat, 1, layer.inputs)
    unpack(packed, layer.bias, 1, layer.outputs, gradient, layer.bias_flat, 0, 1)


@part()
def affine(
    layer: Any, values: np.ndarray, trace: np.ndarray, total: int, source: int, first: int, target: int, to: int,
    rows: int,
) -> None:  # fmt: skip
    """Write the outputs for rows of the inputs at `source` from `first` on to rows at `target` from `to` on."""
    for column in range(0, padded(layer.outputs), LANES):
        block_product(
            trace, source + first * LANES, LANES, 1, total * LANES, rows, layer.inputs,
            values, layer.at + column * layer.inputs, values, layer.bias + column, 0,
            trace, target + column * total + to * LANES,
        )  # fmt: skip


@part()
def add_product(
    layer: Any, values: np.ndarray, trace: np.ndarray, total: int, source: int, first: int, target: int, to: int,
    rows: int,
) -> None:  # fmt: skip
    """Add what `affine` writes, without the bias."""
    for column in range(0, padded(layer.outputs), LANES):
        place = target + column * total + to * LANES
        block_product(
            trace, source + first * LANES, LANES, 1, total * LANES, rows, layer.inputs,
            values, layer.at + column * layer.inputs, trace, place, LANES, trace, place,
        )  # fmt: skip


@part()
def input_gradient(
    layer: Any, transposed: np.ndarray, grad: np.ndarray, total: int, output: int, first: int, target: int, to: int,
    rows: int, add: bool,
) -> None:  # fmt: skip
    """Write or add the gradient with respect to rows of the inputs; `grad` begins with sixteen zeros."""
    for column in range(0, padded(layer.inputs), LANES):
        place = target + column * total + to * LANES
        block_product(
            grad, output + first * LANES, LANES, 1, total * LANES, rows, layer.outputs,
            transposed, layer.transposed + column * layer.outputs,
            grad, place if add else 0, LANES if add else 0, grad, place,
        )  # fmt: skip


@part()
def weight_gradient(
    layer: Any, gradient: np.ndarray, trace: np.ndarray, grad: np.ndarray, total: int, source: int, first: int,
    output: int, to: int, rows: int,
) -> None:  # fmt: skip
    """Add the packed gradient of a layer, given rows of its inputs and of the gradient with respect to its outputs."""
    inputs = layer.inputs
    for column in range(0, padded(layer.outputs), LANES):
        given, target = output + column * total + to * LANES, layer.at + column * inputs
        for start in range(0, inputs, LANES):
            place = target + start * LANES
            block_product(
                trace, source + start * total + first * LANES, 1, LANES, LANES * LANES, min(inputs - start, LANES),
                rows, grad, given, gradient, place, LANES, gradient, place,
            )  # fmt: skip
        sums = load(gradient, layer.bias + column)
        for row in range(rows):
            sums = sums + load(grad, given + row * LANES)
        store(gradient, layer.bias + column, sums)
