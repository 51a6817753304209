"""Products of rows with a weight in tiles, shaped so that all sums stay in the processor's registers.

A weight [outputs, inputs] lies in a flat array as [outputs / TILE, inputs, TILE]. Every row's sums are taken in the
same order, however many rows there are and whichever processor it is.
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, multiply_add, number, store
from rl_training.kernels.search.perceptron_layout import TILE
from rl_training.search.compilation import part

# 32 registers of 16 numbers hold eight sums; 16 registers of 8 numbers hold four, and with eight write some to memory.
WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


@part()
def four_rows_wide(
    activations: np.ndarray,
    at: int,
    stride: int,
    to: int,
    outputs: int,
    weights: np.ndarray,
    weight: int,
    bias: int,
    inputs: int,
) -> None:
    """Multiply four rows with TILE columns of a weight: eight sums of LANES numbers at once."""
    low0 = low1 = low2 = low3 = load(weights, bias)
    high0 = high1 = high2 = high3 = load(weights, bias + LANES)
    for k in range(inputs):
        low, high = load(weights, weight + TILE * k), load(weights, weight + TILE * k + LANES)
        x0, x1 = number(activations, at + k), number(activations, at + stride + k)
        x2, x3 = number(activations, at + 2 * stride + k), number(activations, at + 3 * stride + k)
        low0, high0 = multiply_add(x0, low, low0), multiply_add(x0, high, high0)
        low1, high1 = multiply_add(x1, low, low1), multiply_add(x1, high, high1)
        low2, high2 = multiply_add(x2, low, low2), multiply_add(x2, high, high2)
        low3, high3 = multiply_add(x3, low, low3), multiply_add(x3, high, high3)
    store(activations, to, low0)
    store(activations, to + LANES, high0)
    store(activations, to + outputs, low1)
    store(activations, to + outputs + LANES, high1)
    store(activations, to + 2 * outputs, low2)
    store(activations, to + 2 * outputs + LANES, high2)
    store(activations, to + 3 * outputs, low3)
    store(activations, to + 3 * outputs + LANES, high3)


@part()
def four_rows_narrow(
    activations: np.ndarray,
    at: int,
    stride: int,
    to: int,
    outputs: int,
    weights: np.ndarray,
    weight: int,
    bias: int,
    inputs: int,
) -> None:
    """Multiply four rows with TILE columns of a weight: four sums of LANES numbers at once."""
    for lane in range(0, TILE, LANES):
        sum0 = sum1 = sum2 = sum3 = load(weights, bias + lane)
        for k in range(inputs):
            lanes, place = load(weights, weight + TILE * k + lane), at + k
            sum0 = multiply_add(number(activations, place), lanes, sum0)
            sum1 = multiply_add(number(activations, place + stride), lanes, sum1)
            sum2 = multiply_add(number(activations, place + 2 * stride), lanes, sum2)
            sum3 = multiply_add(number(activations, place + 3 * stride), lanes, sum3)
        store(activations, to + lane, sum0)
        store(activations, to + outputs + lane, sum1)
        store(activations, to + 2 * outputs + lane, sum2)
        store(activations, to + 3 * outputs + lane, sum3)


four_rows = four_rows_wide if WIDE else four_rows_narrow


@part()
def one_row(
    activations: np.ndarray,
    at: int,
    to: int,
    outputs: int,
    weights: np.ndarray,
    weight: int,
    bias: int,
    inputs: int,
) -> None:
    """Multiply one row with the whole weight, two tiles at a time: more sums at once hide the latency of each."""
    column = 0
    while column + 2 * TILE <= outputs:
        first, second = weight + column * inputs, weight + (column + TILE) * inputs
        low0, high0 = load(weights, bias + column), load(weights, bias + column + LANES)
        low1, high1 = load(weights, bias + column + TILE), load(weights, bias + column + TILE + LANES)
        for k in range(inputs):
            x = number(activations, at + k)
            low0 = multiply_add(x, load(weights, first + TILE * k), low0)
            high0 = multiply_add(x, load(weights, first + TILE * k + LANES), high0)
            low1 = multiply_add(x, load(weights, second + TILE * k), low1)
            high1 = multiply_add(x, load(weights, second + TILE * k + LANES), high1)
        store(activations, to + column, low0)
        store(activations, to + column + LANES, high0)
        store(activations, to + column + TILE, low1)
        store(activations, to + column + TILE + LANES, high1)
        column += 2 * TILE
    if column < outputs:
        first = weight + column * inputs
        low0, high0 = load(weights, bias + column), load(weights, bias + column + LANES)
        for k in range(inputs):
            low0 = multiply_add(number(activations, at + k), load(weights, first + TILE * k), low0)
            high0 = multiply_add(number(activations, at + k), load(weights, first + TILE * k + LANES), high0)
        store(activations, to + column, low0)
        store(activations, to + column + LANES, high0)


@part()
def multiply(
    rows: int,
    activations: np.ndarray,
    source: int,
    stride: int,
    target: int,
    outputs: int,
    weights: np.ndarray,
    weight: int,
    bias: int,
    inputs: int,
) -> None:
    """Write the rows at `source` times a weight, plus its bias [outputs], to `target`."""
    together = rows - rows % 4
    for column in range(0, outputs, TILE):
        for row in range(0, together, 4):
            at, to = source + row * stride, target + row * outputs + column
            four_rows(activations, at, stride, to, outputs, weights, weight + column * inputs, bias + column, inputs)
    for row in range(together, rows):
        one_row(activations, source + row * stride, target + row * outputs, outputs, weights, weight, bias, inputs)
