"""Passes of networks for continuous actions: hidden layers of one activation, and a head with few outputs.

Weights stay where torch keeps them. Everything else lies in one array, `work`: the activations of a pass in blocks, its
input anywhere and the hidden layers one after another. Functions with few arrays are compiled in less time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import padded
from rl_training.kernels.compiled.heads import head_forward, pack_row
from rl_training.kernels.compiled.lanes import LANES, number
from rl_training.kernels.compiled.layers import (
    Scratch,
    derivative_product,
    layer_backward,
    layer_forward,
    layer_gradient,
)
from rl_training.search.compilation import part


class Stack(NamedTuple):
    """Networks of one shape."""

    sizes: np.ndarray  # [layers + 1] widths of the input and of the hidden layers
    places: np.ndarray  # [networks, layers, 4], as `kernels.compiled.layers` takes them
    heads: np.ndarray  # [networks, linear layers of a head, 4]
    size: int  # outputs of each layer of a head
    activation: int


@part()
def hidden_width(stack: Stack) -> int:
    """Return how many numbers all hidden layers take for each row."""
    width = 0
    for layer in range(1, len(stack.sizes)):
        width += padded(stack.sizes[layer])
    return width


@part()
def put_columns(
    source: np.ndarray, given: int, first: int, rows: int, columns: int, begin: int, work: np.ndarray, at: int
) -> None:
    """Write rows of a matrix [N, columns], which lies at `given`, to the columns of blocks from `begin` on."""
    for row in range(rows):
        for column in range(columns):
            to = begin + column
            place = at + to // LANES * rows * LANES + row * LANES + to % LANES
            work[place] = number(source, given + (first + row) * columns + column)


@part()
def hidden_forward(
    flat: np.ndarray, stack: Stack, network: int, rows: int, work: np.ndarray, input_at: int, hidden_at: int,
    scratch: Scratch,
) -> int:  # fmt: skip
    """Write the outputs of all hidden layers from `hidden_at` on and return where the last one begins."""
    for layer in range(len(stack.sizes) - 1):
        inputs, outputs = stack.sizes[layer], stack.sizes[layer + 1]
        layer_forward(
            work, input_at, rows, inputs, flat, stack.places[network, layer], outputs, stack.activation,
            scratch, work, hidden_at,
        )  # fmt: skip
        input_at = hidden_at
        hidden_at += rows * padded(outputs)
    return input_at


@part()
def hidden_backward(
    flat: np.ndarray,
    stack: Stack,
    network: int,
    rows: int,
    work: np.ndarray,
    input_at: int,
    last: int,
    grad_at: int,
    other_at: int,
    add: bool,
    scratch: Scratch,
    gradient: np.ndarray,
) -> None:
    """Write or add the gradient of all hidden layers, given that with respect to the last one's outputs at `grad_at`.

    The region at `other_at` is as large as the widest layer.
    """
    for layer in range(len(stack.sizes) - 2, -1, -1):
        inputs, outputs, place = stack.sizes[layer], stack.sizes[layer + 1], stack.places[network, layer]
        derivative_product(work, last, rows, stack.sizes[:0], rows, outputs, stack.activation, work, grad_at)
        seen = last - rows * padded(inputs) if layer else input_at
        layer_gradient(work, seen, rows, inputs, work, grad_at, outputs, place, add, scratch, gradient)
        if layer:
            layer_backward(work, grad_at, rows, outputs, flat, place, inputs, scratch, other_at)
            grad_at, other_at, last = other_at, grad_at, seen


@part()
def input_gradient(
    flat: np.ndarray,
    stack: Stack,
    network: int,
    total: int,
    indices: np.ndarray,
    work: np.ndarray,
    last: int,
    first: int,
    count: int,
    grad_at: int,
    other_at: int,
    scratch: Scratch,
    head_at: int,
    out_at: int,
) -> None:
    """Write the gradient [rows, count] with respect to the inputs from `first` on, for some rows of `total`.

    `indices` name the rows; at `grad_at` lies the gradient with respect to the last hidden layer's outputs. The region
    at `head_at` has room for a head.
    """
    rows = len(indices)
    for layer in range(len(stack.sizes) - 2, -1, -1):
        inputs, outputs, place = stack.sizes[layer], stack.sizes[layer + 1], stack.places[network, layer]
        derivative_product(work, last, total, indices, rows, outputs, stack.activation, work, grad_at)
        if layer:
            layer_backward(work, grad_at, rows, outputs, flat, place, inputs, scratch, other_at)
            grad_at, other_at = other_at, grad_at
            last -= total * padded(inputs)
        else:  # a head whose inputs are the layer's outputs
            width = padded(outputs)
            for column in range(count):
                weights = place[0] + (first + column) * place[1]
                pack_row(flat, weights, place[2], outputs, work, head_at + column * width)
                work[head_at + count * width + column] = np.float32(0.0)
            head_forward(work, grad_at, rows, outputs, work, head_at, count, work, out_at)
