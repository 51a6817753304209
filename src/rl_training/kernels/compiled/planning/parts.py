"""The parts of a planning network in compiled code: its layers and blocks, for ranges of rows.

The last two thirds of the functions' arguments are places: regions of `trace` and `grad`, and rows of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import padded
from rl_training.kernels.compiled.lanes import LANES, load, relu, spread, store, where_above
from rl_training.kernels.compiled.planning.affine import affine, input_gradient, pack_layer, weight_gradient
from rl_training.kernels.compiled.planning.row_blocks import (
    norm_relu,
    norm_relu_backward,
    rescale_backward,
    rescale_row,
)
from rl_training.search.compilation import part

TRUNK, POLICY, VALUE, REWARD, REWARD_LOGITS, GATES, STATE_GATES, BLOCK_LAYERS = range(8)
REPRESENTATION, DYNAMICS, PROJECTOR, PREDICTOR, GOAL = range(5)

BLOCK = np.dtype(
    [(name, np.int64) for name in ("first", "second", "gain", "shift", "normed", "active", "output", "scales")]
)
"""Two layers with a normalisation: their numbers, where gain and shift lie in the optimizer's memory, where the rows
after the normalisation, after ReLU and after the second layer are, and where the rows' inverse deviations are."""


class Regions(NamedTuple):
    """Where activations lie in `trace`, and their gradients in `grad`."""

    features: int  # of observations
    encoded: int  # latents of observations
    states: int  # latents of the unroll
    trunk: int
    policy: int
    value: int
    gates: int
    memory: int
    shown: int
    output: int
    reward: int
    reward_logits: int


class Network(NamedTuple):
    """A planning network."""

    layers: np.ndarray  # [layers] of LAYER; those of blocks come last
    blocks: np.ndarray  # [blocks] of BLOCK
    regions: Regions
    action_rows: int  # in the optimizer's memory
    latent: int
    horizon: int  # of the value prefix, 0 without
    consistency: bool
    eps: float  # of the normalisations


class Memory(NamedTuple):
    """What a call works in."""

    values: np.ndarray  # packed weights
    transposed: np.ndarray
    gradient: np.ndarray  # packed like the weights
    trace: np.ndarray
    grad: np.ndarray  # begins with sixteen zeros
    scales: np.ndarray  # inverse deviations of the normalisations, by block and row
    spans: np.ndarray  # [2, rows] ranges of the encoded latents and of the unroll's
    chunk: int


@part()
def run_block(
    network: Network, number: int, flat: np.ndarray, memory: Memory, total: int, source: int, first: int, to: int,
    rows: int, action: np.ndarray, action_at: int,
) -> None:  # fmt: skip
    """Run a block for rows from `first` on of the region at `source`, written from row `to` on.

    The rows of actions from `action_at` on enter the dynamics before the normalisation.
    """
    block, trace = network.blocks[number], memory.trace
    layer = network.layers[block.first]
    width, panel = layer.outputs, total * LANES
    affine(layer, memory.values, trace, total, source, first, block.normed, to, rows)
    for row in range(rows):
        place = (to + row) * LANES
        if number == DYNAMICS:
            given = network.action_rows + action[action_at + row] * width
            for column in range(width // LANES):
                target = block.normed + place + column * panel
                store(trace, target, load(trace, target) + load(flat, given + column * LANES))
        memory.scales[block.scales + to + row] = norm_relu(
            trace, block.normed + place, block.active + place, panel, width, flat, block.gain, block.shift, network.eps
        )
    affine(network.layers[block.second], memory.values, trace, total, block.active, to, block.output, to, rows)


@part()
def hidden_backward(
    network: Network, number: int, flat: np.ndarray, gradient: np.ndarray, memory: Memory, total: int, first: int,
    rows: int,
) -> None:  # fmt: skip
    """Write the gradients between a block's layers, given that with respect to rows of its output."""
    block = network.blocks[number]
    layer, second, panel = network.layers[block.first], network.layers[block.second], total * LANES
    grad = memory.grad
    input_gradient(second, memory.transposed, grad, total, block.output, first, block.active, first, rows, False)
    for row in range(first, first + rows):
        place = row * LANES
        norm_relu_backward(
            memory.trace, grad, block.normed + place, block.active + place, panel, layer.outputs, flat, block.gain,
            block.shift, memory.scales[block.scales + row], gradient,
        )  # fmt: skip


@part()
def block_weights(
    network: Network, number: int, memory: Memory, total: int, source: int, first: int, to: int, rows: int
) -> None:
    """Add the gradients of a block's layers."""
    block, trace, grad = network.blocks[number], memory.trace, memory.grad
    second, layer = network.layers[block.second], network.layers[block.first]
    weight_gradient(second, memory.gradient, trace, grad, total, block.active, to, block.output, to, rows)
    weight_gradient(layer, memory.gradient, trace, grad, total, source, first, block.normed, to, rows)


@part()
def rescale_rows(
    memory: Memory, which: int, total: int, source: int, target: int, first: int, rows: int, width: int
) -> None:
    """Write rows scaled to [0, 1] and keep their ranges."""
    for row in range(first, first + rows):
        place = row * LANES
        memory.spans[which, row] = rescale_row(memory.trace, source + place, target + place, total * LANES, width)


@part()
def rescale_rows_backward(
    memory: Memory, which: int, total: int, source: int, target: int, first: int, rows: int, width: int
) -> None:
    """Write the gradients before `rescale_rows`."""
    for row in range(first, first + rows):
        place, span = row * LANES, memory.spans[which, row]
        rescale_backward(memory.trace, memory.grad, source + place, target + place, total * LANES, width, span)


@part()
def relu_layer(network: Network, number: int, memory: Memory, total: int, source: int, target: int, first: int) -> None:
    """Run a layer with ReLU for all rows from `first` on."""
    layer = network.layers[number]
    affine(layer, memory.values, memory.trace, total, source, first, target, first, total - first)
    for column in range(0, padded(layer.outputs), LANES):
        for place in range(target + column * total + first * LANES, target + (column + LANES) * total, LANES):
            store(memory.trace, place, relu(load(memory.trace, place)))


@part()
def relu_layer_backward(
    network: Network, number: int, memory: Memory, total: int, source: int, target: int, first: int, add: bool
) -> None:
    """Write or add the gradient with respect to the layer's input, given that of its result; add that of the layer."""
    layer, zero = network.layers[number], spread(0.0)
    for column in range(0, padded(layer.outputs), LANES):
        for place in range(target + column * total + first * LANES, target + (column + LANES) * total, LANES):
            store(memory.grad, place, where_above(load(memory.trace, place), zero, load(memory.grad, place), zero))
    layer_backward(network, number, memory, total, source, target, first, add)


@part()
def layer_backward(
    network: Network, number: int, memory: Memory, total: int, source: int, target: int, first: int, add: bool
) -> None:
    """Do what `relu_layer_backward` does, for a layer without ReLU."""
    layer, rows, grad = network.layers[number], total - first, memory.grad
    weight_gradient(layer, memory.gradient, memory.trace, grad, total, source, first, target, first, rows)
    input_gradient(layer, memory.transposed, grad, total, target, first, source, first, rows, add)


@part()
def copy_rows(values: np.ndarray, total: int, source: int, target: int, rows: int, width: int) -> None:
    """Copy the first rows of a region."""
    for column in range(0, width, LANES):
        for place in range(column * total, column * total + rows * LANES, LANES):
            store(values, target + place, load(values, source + place))


@part()
def pack_network(network: Network, flat: np.ndarray, memory: Memory) -> None:
    """Pack all weights; the biases of a recurrent cell's gates are added up."""
    for number in range(len(network.layers)):
        layer = network.layers[number]
        if layer.inputs == 0:
            continue
        pack_layer(layer, flat, memory.values, memory.transposed)
    if network.horizon:
        gates, state = network.layers[GATES], network.layers[STATE_GATES]
        for index in range(gates.outputs):
            memory.values[gates.bias + index] += flat[state.bias_flat + index]
