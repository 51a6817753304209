"""Linear layers with few outputs, whose weights are copied to rows [outputs, padded inputs] with biases behind them.

A product in blocks would calculate sixteen outputs where one is asked for. Outputs and their gradients are rows of a
flat array, [rows, outputs]. Several layers on the same inputs, such as a policy's means and deviations, are one head.
"""

from __future__ import annotations

import numpy as np

from rl_training.kernels.compiled.blocks import padded
from rl_training.kernels.compiled.lanes import LANES, load, multiply_add, number, spread, store, total
from rl_training.kernels.compiled.layers import SPARE, Scratch
from rl_training.search.compilation import part


@part()
def pack_row(flat: np.ndarray, given: int, step: int, size: int, packed: np.ndarray, at: int) -> None:
    """Copy numbers that lie `step` apart to a row, with its padding."""
    for index in range(padded(size)):
        packed[at + index] = number(flat, given + index * step) if index < size else np.float32(0.0)


@part()
def pack_head(flat: np.ndarray, places: np.ndarray, inputs: int, size: int, packed: np.ndarray, at: int) -> None:
    """Copy the weights, then the biases, of layers with `size` outputs each."""
    count, width = len(places) * size, padded(inputs)
    for output in range(count):
        place, column = places[output // size], output % size
        pack_row(flat, place[0] + column * place[2], place[1], inputs, packed, at + output * width)
        packed[at + count * width + output] = flat[place[3] + column]


@part()
def head_forward(
    x: np.ndarray,
    x_at: int,
    rows: int,
    inputs: int,
    packed: np.ndarray,
    at: int,
    count: int,
    out: np.ndarray,
    out_at: int,
) -> None:
    """Write `count` outputs for inputs [rows, inputs] in blocks."""
    width = padded(inputs)
    for row in range(rows):
        for output in range(count):
            sums = spread(0.0)
            for column in range(0, width, LANES):
                sums = sums + load(x, x_at + column * rows + row * LANES) * load(packed, at + output * width + column)
            out[out_at + row * count + output] = total(sums) + packed[at + count * width + output]


@part()
def head_backward(
    grad_outputs: np.ndarray,
    given: int,
    rows: int,
    inputs: int,
    packed: np.ndarray,
    at: int,
    count: int,
    grad: np.ndarray,
    grad_at: int,
) -> None:
    """Write the gradient with respect to the inputs [rows, inputs] in blocks."""
    width = padded(inputs)
    for column in range(0, width, LANES):
        for row in range(rows):
            sums = spread(0.0)
            for output in range(count):
                factor = number(grad_outputs, given + row * count + output)
                sums = multiply_add(factor, load(packed, at + output * width + column), sums)
            store(grad, grad_at + column * rows + row * LANES, sums)


@part()
def head_gradient(
    x: np.ndarray,
    at: int,
    rows: int,
    inputs: int,
    grad_outputs: np.ndarray,
    given: int,
    places: np.ndarray,
    size: int,
    add: bool,
    scratch: Scratch,
    gradient: np.ndarray,
) -> None:
    """Write or add the gradient of weights and biases, which lie at `places`."""
    count, panel = len(places) * size, scratch.panel
    for output in range(count):
        layer, column = output // size, output % size
        weight, row, step, bias = places[layer, 0], places[layer, 1], places[layer, 2], places[layer, 3]
        for first in range(0, inputs, LANES):
            sum0 = sum1 = sum2 = sum3 = spread(0.0)
            place, factor = at + first * rows, given + output
            for index in range(0, rows - rows % 4, 4):  # four sums: a single one would wait for itself
                here, factors = place + index * LANES, factor + index * count
                sum0 = multiply_add(number(grad_outputs, factors), load(x, here), sum0)
                sum1 = multiply_add(number(grad_outputs, factors + count), load(x, here + LANES), sum1)
                sum2 = multiply_add(number(grad_outputs, factors + 2 * count), load(x, here + 2 * LANES), sum2)
                sum3 = multiply_add(number(grad_outputs, factors + 3 * count), load(x, here + 3 * LANES), sum3)
            for index in range(rows - rows % 4, rows):
                sum0 = multiply_add(number(grad_outputs, factor + index * count), load(x, place + index * LANES), sum0)
            store(panel, SPARE, (sum0 + sum1) + (sum2 + sum3))
            for index in range(min(inputs - first, LANES)):
                to = weight + column * step + (first + index) * row
                gradient[to] = (gradient[to] if add else np.float32(0.0)) + panel[SPARE + index]
        bias_sum = gradient[bias + column] if add else np.float32(0.0)
        for index in range(rows):
            bias_sum += grad_outputs[given + index * count + output]
        gradient[bias + column] = bias_sum
