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
from rl_training.kernels.compiled.lanes import (
    LANES,
    load,
    multiply_add,
    number,
    relu,
    spread,
    store,
    tanh,
    total,
    where_above,
)
from rl_training.search.compilation import part

TANH, RELU = 0, 1
NARROW = 4  # outputs up to which a layer's own products pay; those in blocks calculate sixteen
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
    return forward_with(packed, at, sizes, activation, rows, trace, input_at, packed, -1)


@part()
def forward_with(
    packed: np.ndarray,
    at: int,
    sizes: np.ndarray,
    activation: int,
    rows: int,
    trace: np.ndarray,
    input_at: int,
    transposed: np.ndarray,
    transposed_end: int,
) -> int:
    """Do what `forward` does; a narrow last layer uses its transposed weights, if these do not end at -1."""
    layers = len(sizes) - 1
    for layer in range(layers):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        width, output = padded(outputs), input_at + rows * padded(inputs)
        bias = at + inputs * width
        if layer and layer == layers - 1 and outputs <= NARROW and transposed_end >= 0:
            first = transposed_end - outputs * padded(inputs)
            narrow_product(trace, input_at, rows, inputs, transposed, first, outputs, packed, bias, output)
        else:
            product(trace, input_at, rows, inputs, packed, at, width, packed, bias, 1, trace, output)
        if layer < layers - 1:
            activate(trace, output, rows * width, activation)
        at, input_at = bias + width, output
    return input_at


@part()
def narrow_product(
    trace: np.ndarray,
    at: int,
    rows: int,
    inputs: int,
    transposed: np.ndarray,
    first: int,
    outputs: int,
    packed: np.ndarray,
    bias: int,
    to: int,
) -> None:
    """Write the few outputs of a layer for its inputs [rows, inputs], whose padding is zero; sums of single rows."""
    for output in range(outputs):
        for row in range(rows):
            sums = spread(0.0)
            for column in range(0, padded(inputs), LANES):
                weights = load(transposed, first + column * outputs + output * LANES)
                sums = sums + load(trace, at + column * rows + row * LANES) * weights
            trace[to + row * LANES + output] = total(sums) + packed[bias + output]


@part()
def add_narrow_gradient(
    trace: np.ndarray,
    at: int,
    rows: int,
    inputs: int,
    grad: np.ndarray,
    grad_at: int,
    outputs: int,
    spare: int,
    gradient: np.ndarray,
    to: int,
) -> None:
    """Add the gradient of a weight [inputs, outputs] with few outputs, given that with respect to them.

    Sixteen numbers of `grad` from `spare` on are overwritten.
    """
    for output in range(outputs):
        for first in range(0, inputs, LANES):
            sum0 = sum1 = sum2 = sum3 = spread(0.0)
            place, factor = at + first * rows, grad_at + output
            whole = rows - rows % 4
            for index in range(0, whole, 4):  # four sums: a single one would wait for itself
                here, given = place + index * LANES, factor + index * LANES
                sum0 = multiply_add(number(grad, given), load(trace, here), sum0)
                sum1 = multiply_add(number(grad, given + LANES), load(trace, here + LANES), sum1)
                sum2 = multiply_add(number(grad, given + 2 * LANES), load(trace, here + 2 * LANES), sum2)
                sum3 = multiply_add(number(grad, given + 3 * LANES), load(trace, here + 3 * LANES), sum3)
            for index in range(whole, rows):
                sum0 = multiply_add(number(grad, factor + index * LANES), load(trace, place + index * LANES), sum0)
            store(grad, spare, (sum0 + sum1) + (sum2 + sum3))
            for index in range(min(inputs - first, LANES)):
                gradient[to + (first + index) * LANES + output] += grad[spare + index]


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
        if outputs <= NARROW:
            add_narrow_gradient(trace, seen, rows, inputs, grad, grad_at, outputs, other_at, gradient, gradient_end)
        else:
            add_transposed_product(trace, seen, inputs, rows, grad, grad_at, width, gradient, gradient_end)
        if layer:
            in_width = padded(inputs)
            transposed_end -= outputs * in_width
            product(grad, grad_at, rows, outputs, transposed, transposed_end, in_width, grad, _ZEROS, 0, grad, other_at)
            activation_backward(trace, seen, rows * in_width, activation, grad, other_at)
            grad_at, other_at = other_at, grad_at
        output = seen
