"""Hidden layers of perceptrons, with weights where torch keeps them.

Inputs and outputs of layers lie in blocks (`kernels.compiled.blocks`), weights and their gradients in the flat memory
of an optimizer. A layer's place there is the index of its weight, how far the weights of two inputs and of two outputs
lie apart, and the index of its bias. A product packs sixteen columns of the weight at a time into `panel`, which the
nearest cache holds: of weights that change after each use, a copy in blocks would not pay.
"""

from __future__ import annotations

import numpy as np

from rl_training.kernels.compiled.blocks import block_product
from rl_training.kernels.compiled.lanes import (
    LANES,
    load,
    multiply_add,
    number,
    spread,
    store,
    transpose_eight,
    where_above,
)
from rl_training.kernels.compiled.perceptrons import TANH, activate
from rl_training.search.compilation import part

ZEROS, SPARE, PANEL = 0, LANES, LANES + LANES * LANES
"""Where the memory of a panel holds sixteen zeros, sixteen rows for anything, and the panel itself."""
_FEW = 4  # rows for which packing a weight takes longer than their product


def panel_size(widest: int) -> int:
    """Return how many numbers the memory of a panel takes, for layers with so many inputs and outputs at most."""
    return PANEL + (widest + 1) * LANES


@part()
def pack_panel(flat: np.ndarray, at: int, row: int, step: int, rows: int, columns: int, panel: np.ndarray) -> None:
    """Write up to sixteen columns of a matrix, which lie `step` and rows `row` numbers apart, with their padding."""
    packed = 0
    if columns == LANES and step == 1:
        for index in range(rows):
            store(panel, PANEL + index * LANES, load(flat, at + index * row))
        packed = rows
    elif columns == LANES and row == 1:
        packed = rows - rows % 8
        for index in range(0, packed, 8):
            transpose_eight(flat, at + index, step, panel, PANEL + index * LANES, LANES)
            transpose_eight(flat, at + index + 8 * step, step, panel, PANEL + index * LANES + 8, LANES)
    for index in range(packed, rows):
        store(panel, PANEL + index * LANES, spread(0.0))
        for column in range(columns):
            panel[PANEL + index * LANES + column] = number(flat, at + index * row + column * step)


@part()
def layer_forward(
    x: np.ndarray,
    at: int,
    rows: int,
    inputs: int,
    flat: np.ndarray,
    place: np.ndarray,
    outputs: int,
    activation: int,
    panel: np.ndarray,
    out: np.ndarray,
    out_at: int,
) -> None:
    """Write the activated outputs of a layer, [rows, outputs]."""
    weight, row, step, bias = place[0], place[1], place[2], place[3]
    if rows < _FEW and step == 1 and outputs % (4 * LANES) == 0:
        for index in range(rows):
            one_row(x, at + index * LANES, rows, inputs, flat, weight, row, bias, outputs, out, out_at + index * LANES)
        activate(out, out_at, rows * outputs, activation)
        return
    start = PANEL + inputs * LANES
    for column in range(0, outputs, LANES):
        width, to = min(outputs - column, LANES), out_at + column * rows
        pack_panel(flat, weight + column * step, row, step, inputs, width, panel)
        store(panel, start, spread(0.0))
        for index in range(width):
            panel[start + index] = number(flat, bias + column + index)
        block_product(x, at, LANES, 1, rows * LANES, rows, inputs, panel, PANEL, panel, start, 0, out, to)
        activate(out, to, rows * LANES, activation)


@part()
def one_row(
    x: np.ndarray,
    at: int,
    rows: int,
    inputs: int,
    flat: np.ndarray,
    weight: int,
    row: int,
    bias: int,
    outputs: int,
    out: np.ndarray,
    out_at: int,
) -> None:
    """Write one row of a layer's sums, by weights that lie together for each input."""
    for column in range(0, outputs, 4 * LANES):
        place = bias + column
        sum0, sum1 = load(flat, place), load(flat, place + LANES)
        sum2, sum3 = load(flat, place + 2 * LANES), load(flat, place + 3 * LANES)
        for k in range(inputs):
            factor, place = number(x, at + k // LANES * rows * LANES + k % LANES), weight + k * row + column
            sum0 = multiply_add(factor, load(flat, place), sum0)
            sum1 = multiply_add(factor, load(flat, place + LANES), sum1)
            sum2 = multiply_add(factor, load(flat, place + 2 * LANES), sum2)
            sum3 = multiply_add(factor, load(flat, place + 3 * LANES), sum3)
        to = out_at + column * rows
        store(out, to, sum0)
        store(out, to + rows * LANES, sum1)
        store(out, to + 2 * rows * LANES, sum2)
        store(out, to + 3 * rows * LANES, sum3)


@part()
def layer_gradient(
    x: np.ndarray,
    at: int,
    rows: int,
    inputs: int,
    grad: np.ndarray,
    grad_at: int,
    outputs: int,
    place: np.ndarray,
    add: bool,
    panel: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Write or add the gradient of weight and bias, given that with respect to the layer's sums [rows, outputs]."""
    weight, row, step, bias = place[0], place[1], place[2], place[3]
    for column in range(0, outputs, LANES):
        width, given = min(outputs - column, LANES), grad_at + column * rows
        sums = spread(0.0)
        for index in range(rows):
            sums = sums + load(grad, given + index * LANES)
        store(panel, SPARE, sums)
        put_block(panel, 1, width, gradient, bias + column, 0, 1, add)
        for first in range(0, inputs, LANES):
            height = min(inputs - first, LANES)
            block_product(
                x, at + first * rows, 1, LANES, LANES * LANES, height, rows,
                grad, given, panel, ZEROS, 0, panel, SPARE,
            )  # fmt: skip
            put_block(panel, height, width, gradient, weight + first * row + column * step, row, step, add)


@part()
def put_block(
    panel: np.ndarray, rows: int, columns: int, out: np.ndarray, out_at: int, row: int, step: int, add: bool
) -> None:
    """Write or add the spare rows of a panel to a matrix, whose rows lie `row` and columns `step` numbers apart."""
    for index in range(rows):
        given, to = SPARE + index * LANES, out_at + index * row
        if columns == LANES and step == 1:
            store(out, to, load(panel, given) + load(out, to) if add else load(panel, given))
        else:
            for column in range(columns):
                before = out[to + column * step] if add else np.float32(0.0)
                out[to + column * step] = before + panel[given + column]


@part()
def layer_backward(
    grad: np.ndarray,
    grad_at: int,
    rows: int,
    outputs: int,
    flat: np.ndarray,
    place: np.ndarray,
    inputs: int,
    panel: np.ndarray,
    out_at: int,
) -> None:
    """Write the gradient with respect to a layer's inputs [rows, inputs], given that with respect to its sums."""
    weight, row, step = place[0], place[1], place[2]
    for column in range(0, inputs, LANES):
        pack_panel(flat, weight + column * row, step, row, outputs, min(inputs - column, LANES), panel)
        to = out_at + column * rows
        block_product(grad, grad_at, LANES, 1, rows * LANES, rows, outputs, panel, PANEL, panel, ZEROS, 0, grad, to)


@part()
def derivative_product(
    outputs: np.ndarray,
    at: int,
    total: int,
    indices: np.ndarray,
    rows: int,
    columns: int,
    activation: int,
    grad: np.ndarray,
    grad_at: int,
) -> None:
    """Multiply a gradient [rows, columns] by the derivative of the activation that gave outputs [total, columns].

    Row r belongs to row indices[r] of the outputs, and to row r where `indices` is empty.
    """
    one, zero = spread(1.0), spread(0.0)
    for column in range(0, columns, LANES):
        for row in range(rows):
            source = indices[row] if len(indices) else row
            output = load(outputs, at + column * total + source * LANES)
            place = grad_at + column * rows + row * LANES
            if activation == TANH:
                store(grad, place, load(grad, place) * (one - output * output))
            else:
                store(grad, place, load(grad, place) * where_above(output, zero, one, zero))
