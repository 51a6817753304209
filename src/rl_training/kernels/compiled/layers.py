"""Hidden layers of perceptrons, with weights where torch keeps them.

Inputs and outputs of layers lie in blocks (`kernels.compiled.blocks`), weights and their gradients in the flat memory
of an optimizer. A layer's place there is the index of its weight, how far the weights of two inputs and of two outputs
lie apart, and the index of its bias. A product packs sixteen columns of the weight at a time into `panel`, which the
nearest cache holds: of weights that change after each use, a copy in blocks would not pay. Where enough of a product's
left side is zero, as after ReLU, only the rest is multiplied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.kernels.compiled.blocks import block_product, fill
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
from rl_training.kernels.compiled.sparse import WORD, add_sparse_product, mostly_nonzero, transpose_bits
from rl_training.search.compilation import part

ZEROS, SPARE, PANEL = 0, LANES, LANES + LANES * LANES
"""Where the memory of a panel holds sixteen zeros, sixteen rows for anything, and the panel itself."""
_FEW = 4  # rows for which packing a weight takes longer than their product


class Scratch(NamedTuple):
    """What products of layers work in."""

    panel: np.ndarray
    bits: np.ndarray  # twice those of the elements of a layer's inputs or outputs, `WORD` in each number


def panel_size(widest: int) -> int:
    """Return how many numbers the memory of a panel takes, for layers with so many inputs and outputs at most."""
    return PANEL + max((widest + 1) * LANES, WORD * WORD)


def bits_size(rows: int, widest: int) -> int:
    """Return how many numbers of bits products take, for so many rows of such layers."""
    return 2 * (rows + WORD) * (widest // WORD)


@part()
def pack_panel(
    flat: np.ndarray, at: int, row: int, step: int, rows: int, columns: int, panel: np.ndarray, to: int
) -> None:
    """Write up to sixteen columns of a matrix, which lie `step` and rows `row` numbers apart, with their padding."""
    packed = 0
    if columns == LANES and step == 1:
        for index in range(rows):
            store(panel, to + index * LANES, load(flat, at + index * row))
        packed = rows
    elif columns == LANES and row == 1:
        packed = rows - rows % 8
        for index in range(0, packed, 8):
            transpose_eight(flat, at + index, step, panel, to + index * LANES, LANES)
            transpose_eight(flat, at + index + 8 * step, step, panel, to + index * LANES + 8, LANES)
    for index in range(packed, rows):
        store(panel, to + index * LANES, spread(0.0))
        for column in range(columns):
            panel[to + index * LANES + column] = number(flat, at + index * row + column * step)


@part()
def sparse(x: np.ndarray, at: int, rows: int, inner: int, columns: int, scratch: Scratch) -> bool:
    """Return whether so much of x [rows, inner] is zero that skipping it pays; then the bits say what is not."""
    if rows < WORD or inner % WORD or columns % WORD:
        return False
    return not mostly_nonzero(x, at, rows, inner, scratch.bits)


@part()
def sparse_product(
    x: np.ndarray,
    at: int,
    rows: int,
    inner: int,
    flat: np.ndarray,
    weight: int,
    row: int,
    step: int,
    columns: int,
    scratch: Scratch,
    out: np.ndarray,
    out_at: int,
) -> None:
    """Add x [rows, inner], whose bits are known, times a matrix of a layer to out [rows, columns]."""
    for column in range(0, columns, WORD):
        for first in range(0, inner, WORD):
            for shift in range(0, WORD, LANES):
                given = weight + first * row + (column + shift) * step
                pack_panel(flat, given, row, step, WORD, LANES, scratch.panel, PANEL + shift * WORD)
            add_sparse_product(
                x, at + first * rows, LANES, 1, rows * LANES, rows, scratch.bits, first // WORD * rows,
                scratch.panel, PANEL, WORD * LANES, out, out_at + column * rows, LANES, rows * LANES,
            )  # fmt: skip


@part()
def sparse_gradient(
    x: np.ndarray,
    at: int,
    rows: int,
    inputs: int,
    grad: np.ndarray,
    grad_at: int,
    outputs: int,
    weight: int,
    row: int,
    add: bool,
    bits: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Write or add the gradient of a weight whose outputs lie together, for inputs x whose bits are known."""
    transposed = inputs // WORD * rows
    for begin in range(0, rows, WORD):
        for first in range(0, inputs, WORD):
            known = first // WORD * rows + begin
            transpose_bits(bits, known, min(rows - begin, WORD), transposed + begin // WORD * inputs + first)
    for column in range(0, outputs, WORD):
        for index in range(inputs if not add else 0):
            fill(gradient, weight + index * row + column, WORD, 0.0)
        for begin in range(0, rows, WORD):
            for first in range(0, inputs, LANES):
                add_sparse_product(
                    x, at + first * rows + begin * LANES, 1, LANES, LANES * LANES, LANES,
                    bits, transposed + begin // WORD * inputs + first,
                    grad, grad_at + column * rows + begin * LANES, rows * LANES,
                    gradient, weight + first * row + column, row, LANES,
                )  # fmt: skip


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
    scratch: Scratch,
    out: np.ndarray,
    out_at: int,
) -> None:
    """Write the activated outputs of a layer, [rows, outputs]."""
    panel = scratch.panel
    weight, row, step, bias = place[0], place[1], place[2], place[3]
    if rows < _FEW and step == 1 and outputs % (4 * LANES) == 0:
        for index in range(rows):
            one_row(x, at + index * LANES, rows, inputs, flat, weight, row, bias, outputs, out, out_at + index * LANES)
        activate(out, out_at, rows * outputs, activation)
        return
    if sparse(x, at, rows, inputs, outputs, scratch):
        for column in range(0, outputs, LANES):
            lanes = load(flat, bias + column)
            for index in range(rows):
                store(out, out_at + column * rows + index * LANES, lanes)
        sparse_product(x, at, rows, inputs, flat, weight, row, step, outputs, scratch, out, out_at)
        activate(out, out_at, rows * outputs, activation)
        return
    start = PANEL + inputs * LANES
    for column in range(0, outputs, LANES):
        width, to = min(outputs - column, LANES), out_at + column * rows
        pack_panel(flat, weight + column * step, row, step, inputs, width, panel, PANEL)
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
    scratch: Scratch,
    gradient: np.ndarray,
) -> None:
    """Write or add the gradient of weight and bias, given that with respect to the layer's sums [rows, outputs]."""
    panel = scratch.panel
    weight, row, step, bias = place[0], place[1], place[2], place[3]
    for column in range(0, outputs, LANES):
        width, given = min(outputs - column, LANES), grad_at + column * rows
        sums = spread(0.0)
        for index in range(rows):
            sums = sums + load(grad, given + index * LANES)
        store(panel, SPARE, sums)
        put_block(panel, 1, width, gradient, bias + column, 0, 1, add)
    if step == 1 and sparse(x, at, rows, inputs, outputs, scratch):
        sparse_gradient(x, at, rows, inputs, grad, grad_at, outputs, weight, row, add, scratch.bits, gradient)
        return
    for column in range(0, outputs, LANES):
        width, given = min(outputs - column, LANES), grad_at + column * rows
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
    scratch: Scratch,
    out_at: int,
) -> None:
    """Write the gradient with respect to a layer's inputs [rows, inputs], given that with respect to its sums."""
    panel = scratch.panel
    weight, row, step = place[0], place[1], place[2]
    if sparse(grad, grad_at, rows, outputs, inputs, scratch):
        fill(grad, out_at, rows * inputs, 0.0)
        sparse_product(grad, grad_at, rows, outputs, flat, weight, step, row, inputs, scratch, grad, out_at)
        return
    for column in range(0, inputs, LANES):
        width, to = min(inputs - column, LANES), out_at + column * rows
        pack_panel(flat, weight + column * row, step, row, outputs, width, panel, PANEL)
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
