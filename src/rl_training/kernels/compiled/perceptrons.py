"""Forward and backward passes of perceptrons whose weights lie in blocks.

A perceptron is described by `sizes`, the widths from its input to its output, and by its `activation` between the
layers. Its packed weights are, layer after layer, the weight [inputs, outputs] in blocks and the padded bias [outputs].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rl_training.kernels.compiled.blocks import (
    add_column_sums,
    add_transposed_product,
    pack,
    padded,
    product,
    transpose,
    unpack,
)
from rl_training.kernels.compiled.lanes import LANES, load, relu, spread, store, tanh, where_above
from rl_training.search.compilation import part

TANH, RELU = 0, 1
_ZEROS = 0  # where the memory of passes holds sixteen zeros


def packed_size(sizes: tuple[int, ...]) -> int:
    """Return how many numbers the packed weights take."""
    return sum((inputs + 1) * _padded(outputs) for inputs, outputs in pairwise(sizes))


def transposed_size(sizes: tuple[int, ...]) -> int:
    """Return how many numbers the transposed weights of all layers but the first take."""
    return sum(outputs * _padded(inputs) for inputs, outputs in pairwise(sizes[1:]))


def trace_size(sizes: tuple[int, ...]) -> int:
    """Return how many numbers a forward pass writes for each row."""
    return sum(map(_padded, sizes))


def _padded(width: int) -> int:
    return width + -width % LANES


@part()
def pack_layers(flat: np.ndarray, places: np.ndarray, sizes: np.ndarray, packed: np.ndarray, at: int) -> int:
    """Pack the weights of a flat array and return where they end.

    A layer's place is the index of its weight, how far the weights of two inputs and of two outputs lie apart, and the
    index of its bias.
    """
    for layer in range(len(sizes) - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        weight, row, step, bias = places[layer, 0], places[layer, 1], places[layer, 2], places[layer, 3]
        pack(flat, weight, row, step, inputs, outputs, packed, at)
        at += inputs * padded(outputs)
        pack(flat, bias, 0, 1, 1, outputs, packed, at)
        at += padded(outputs)
    return at


@part()
def pack_transposed_layers(
    flat: np.ndarray, places: np.ndarray, sizes: np.ndarray, transposed: np.ndarray, at: int
) -> None:
    """Pack the transposed weights of all layers but the first, which `backward` needs, from a flat array."""
    for layer in range(1, len(sizes) - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        pack(flat, places[layer, 0], places[layer, 2], places[layer, 1], outputs, inputs, transposed, at)
        at += outputs * padded(inputs)


@part()
def unpack_layers(packed: np.ndarray, at: int, places: np.ndarray, sizes: np.ndarray, flat: np.ndarray) -> int:
    """Do the reverse of `pack_layers`."""
    for layer in range(len(sizes) - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        weight, row, step, bias = places[layer, 0], places[layer, 1], places[layer, 2], places[layer, 3]
        unpack(packed, at, inputs, outputs, flat, weight, row, step)
        at += inputs * padded(outputs)
        unpack(packed, at, 1, outputs, flat, bias, 0, 1)
        at += padded(outputs)
    return at


@part()
def transpose_layers(packed: np.ndarray, at: int, sizes: np.ndarray, transposed: np.ndarray, to: int) -> None:
    """Write the transposed weights of all layers but the first, which `backward` needs."""
    for layer in range(len(sizes) - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        if layer:
            transpose(packed, at, inputs, outputs, transposed, to)
            to += outputs * padded(inputs)
        at += (inputs + 1) * padded(outputs)


@part()
def activate(values: np.ndarray, at: int, size: int, activation: int) -> None:
    """Apply an activation in place."""
    if activation == TANH:
        for index in range(at, at + size, LANES):
            store(values, index, tanh(load(values, index)))
    else:
        for index in range(at, at + size, LANES):
            store(values, index, relu(load(values, index)))


@part()
def activation_backward(outputs: np.ndarray, at: int, size: int, activation: int, grad: np.ndarray, to: int) -> None:
    """Turn the gradient with respect to an activation's outputs into that with respect to its inputs, in place."""
    if activation == TANH:
        one = spread(1.0)
        for index in range(0, size, LANES):
            output = load(outputs, at + index)
            store(grad, to + index, load(grad, to + index) * (one - output * output))
    else:
        zero, one = spread(0.0), spread(1.0)  # multiplied, for the reason that `relu` gives
        for index in range(0, size, LANES):
            store(grad, to + index, load(grad, to + index) * where_above(load(outputs, at + index), zero, one, zero))


@part()
def forward(
    packed: np.ndarray, at: int, sizes: np.ndarray, activation: int, rows: int, trace: np.ndarray, input_at: int
) -> int:
    """Write every layer's output behind the input [rows, inputs] and return where the last one begins."""
    layers = len(sizes) - 1
    for layer in range(layers):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        width, output = padded(outputs), input_at + rows * padded(inputs)
        bias = at + inputs * width
        product(trace, input_at, rows, inputs, packed, at, width, packed, bias, 1, trace, output)
        if layer < layers - 1:
            activate(trace, output, rows * width, activation)
        at, input_at = bias + width, output
    return input_at


@part()
def backward(
    transposed: np.ndarray,
    transposed_end: int,
    gradient: np.ndarray,
    gradient_end: int,
    sizes: np.ndarray,
    activation: int,
    rows: int,
    trace: np.ndarray,
    output: int,
    grad: np.ndarray,
    grad_at: int,
    other_at: int,
) -> None:
    """Add the gradient of packed weights, given that with respect to the output [rows, outputs] at `grad_at`.

    The regions of transposed weights and of gradients are given by their ends, since layers are passed from the last to
    the first. `grad` begins with sixteen zeros; the region at `other_at` is as large as the widest layer.
    """
    for layer in range(len(sizes) - 2, -1, -1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        width = padded(outputs)
        seen = output - rows * padded(inputs)  # the layer's input
        gradient_end -= width
        add_column_sums(grad, grad_at, rows, width, gradient, gradient_end)
        gradient_end -= inputs * width
        add_transposed_product(trace, seen, inputs, rows, grad, grad_at, width, gradient, gradient_end)
        if layer:
            in_width = padded(inputs)
            transposed_end -= outputs * in_width
            product(grad, grad_at, rows, outputs, transposed, transposed_end, in_width, grad, _ZEROS, 0, grad, other_at)
            activation_backward(trace, seen, rows * in_width, activation, grad, other_at)
            grad_at, other_at = other_at, grad_at
        output = seen
