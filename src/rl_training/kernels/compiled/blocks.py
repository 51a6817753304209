"""Matrices in blocks of sixteen columns, and their products.

A matrix of R rows and C columns lies in a flat array as [C / 16][R][16], its columns padded by zeros. Whatever the
size, a product then reads and writes memory in order, and sixteen columns are one vector. Six rows at a time keep the
processor's units for multiplication busy; where the compiler knows how far elements lie apart, hardly anything else
is left to do, so products are compiled into the functions that call them.
"""

from __future__ import annotations

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, load, multiply_add, number, spread, store, transpose_eight
from rl_training.search.compilation import part


@part()
def padded(width: int) -> int:
    """Return the number of columns with the padding."""
    return (width + LANES - 1) // LANES * LANES


@part(forceinline=True)
def six_rows(
    a: np.ndarray, at: int, row: int, step: int, panel: int, inner: int, b: np.ndarray, b_at: int,
    start: np.ndarray, start_at: int, start_row: int, out: np.ndarray, out_at: int,
) -> None:  # fmt: skip
    """Do what `block_product` does for six rows, whose sums and factors fill the registers."""
    sum0, sum1 = load(start, start_at), load(start, start_at + start_row)
    sum2, sum3 = load(start, start_at + 2 * start_row), load(start, start_at + 3 * start_row)
    sum4, sum5 = load(start, start_at + 4 * start_row), load(start, start_at + 5 * start_row)
    for first in range(0, inner, LANES):
        place = at + first // LANES * panel
        for k in range(min(inner - first, LANES)):
            lanes, left = load(b, b_at + (first + k) * LANES), place + k * step
            sum0 = multiply_add(number(a, left), lanes, sum0)
            sum1 = multiply_add(number(a, left + row), lanes, sum1)
            sum2 = multiply_add(number(a, left + 2 * row), lanes, sum2)
            sum3 = multiply_add(number(a, left + 3 * row), lanes, sum3)
            sum4 = multiply_add(number(a, left + 4 * row), lanes, sum4)
            sum5 = multiply_add(number(a, left + 5 * row), lanes, sum5)
    store(out, out_at, sum0)
    store(out, out_at + LANES, sum1)
    store(out, out_at + 2 * LANES, sum2)
    store(out, out_at + 3 * LANES, sum3)
    store(out, out_at + 4 * LANES, sum4)
    store(out, out_at + 5 * LANES, sum5)


@part(forceinline=True)
def four_rows(
    a: np.ndarray, at: int, row: int, step: int, panel: int, inner: int, b: np.ndarray, b_at: int,
    start: np.ndarray, start_at: int, start_row: int, out: np.ndarray, out_at: int,
) -> None:  # fmt: skip
    """Do what `block_product` does for four rows."""
    sum0, sum1 = load(start, start_at), load(start, start_at + start_row)
    sum2, sum3 = load(start, start_at + 2 * start_row), load(start, start_at + 3 * start_row)
    for first in range(0, inner, LANES):
        place = at + first // LANES * panel
        for k in range(min(inner - first, LANES)):
            lanes, left = load(b, b_at + (first + k) * LANES), place + k * step
            sum0 = multiply_add(number(a, left), lanes, sum0)
            sum1 = multiply_add(number(a, left + row), lanes, sum1)
            sum2 = multiply_add(number(a, left + 2 * row), lanes, sum2)
            sum3 = multiply_add(number(a, left + 3 * row), lanes, sum3)
    store(out, out_at, sum0)
    store(out, out_at + LANES, sum1)
    store(out, out_at + 2 * LANES, sum2)
    store(out, out_at + 3 * LANES, sum3)


@part(forceinline=True)
def block_product(
    a: np.ndarray,
    at: int,
    row: int,
    step: int,
    panel: int,
    rows: int,
    inner: int,
    b: np.ndarray,
    b_at: int,
    start: np.ndarray,
    start_at: int,
    start_row: int,
    out: np.ndarray,
    out_at: int,
) -> None:
    """Write `start` plus a [rows, inner] times sixteen columns b [inner, 16] to out [rows, 16].

    Element (i, k) of a lies at `at + i * row + k // 16 * panel + k % 16 * step`. A `start_row` of 0 repeats one row.
    """
    index = 0
    while rows - index >= 6 and rows - index != 8:  # eight are twice four
        six_rows(
            a, at + index * row, row, step, panel, inner, b, b_at,
            start, start_at + index * start_row, start_row, out, out_at + index * LANES,
        )  # fmt: skip
        index += 6
    while rows - index >= 4:
        four_rows(
            a, at + index * row, row, step, panel, inner, b, b_at,
            start, start_at + index * start_row, start_row, out, out_at + index * LANES,
        )  # fmt: skip
        index += 4
    while index < rows:
        one = load(start, start_at + index * start_row)
        for first in range(0, inner, LANES):
            place = at + index * row + first // LANES * panel
            for k in range(min(inner - first, LANES)):
                one = multiply_add(number(a, place + k * step), load(b, b_at + (first + k) * LANES), one)
        store(out, out_at + index * LANES, one)
        index += 1


@part()
def product(
    a: np.ndarray,
    at: int,
    rows: int,
    inner: int,
    b: np.ndarray,
    b_at: int,
    columns: int,
    bias: np.ndarray,
    bias_at: int,
    bias_step: int,
    out: np.ndarray,
    out_at: int,
) -> None:
    """Write bias [columns] plus a [rows, inner] times b [inner, columns] to out [rows, columns].

    A `bias_step` of 0 repeats sixteen numbers for all columns.
    """
    for column in range(0, columns, LANES):
        block_product(
            a, at, LANES, 1, rows * LANES, rows, inner,
            b, b_at + column * inner, bias, bias_at + column * bias_step, 0, out, out_at + column * rows,
        )  # fmt: skip


@part()
def add_transposed_product(
    a: np.ndarray, at: int, rows: int, inner: int, b: np.ndarray, b_at: int, columns: int, out: np.ndarray, out_at: int
) -> None:
    """Add the transpose of a [inner, rows] times b [inner, columns] to out [rows, columns]."""
    for column in range(0, columns, LANES):
        to = out_at + column * rows
        for first in range(0, rows, LANES):
            block_product(
                a, at + first * inner, 1, LANES, LANES * LANES, min(rows - first, LANES), inner,
                b, b_at + column * inner, out, to + first * LANES, LANES, out, to + first * LANES,
            )  # fmt: skip


@part()
def add_column_sums(a: np.ndarray, at: int, rows: int, columns: int, out: np.ndarray, out_at: int) -> None:
    """Add the sum of the rows of a [rows, columns] to out [columns]."""
    for column in range(0, columns, LANES):
        sums, place = load(out, out_at + column), at + column * rows
        for index in range(rows):
            sums = sums + load(a, place + index * LANES)
        store(out, out_at + column, sums)


@part()
def fill(out: np.ndarray, at: int, size: int, value: float) -> None:
    """Write one number to a range that is a multiple of sixteen long."""
    lanes = spread(np.float32(value))
    for index in range(at, at + size, LANES):
        store(out, index, lanes)


@part()
def transpose(a: np.ndarray, at: int, rows: int, columns: int, out: np.ndarray, out_at: int) -> None:
    """Write the transpose of a [rows, columns] to out [columns, rows], with its padding."""
    if rows % LANES:
        fill(out, out_at, columns * padded(rows), 0.0)
    across, down = columns - columns % 8, rows - rows % 8
    for column in range(columns):
        source = at + column // LANES * rows * LANES + column % LANES
        target = out_at + column * LANES
        if column < across and column % 8 == 0:
            for index in range(0, down, 8):
                to = target + index // LANES * columns * LANES + index % LANES
                transpose_eight(a, source + index * LANES, LANES, out, to, LANES)
        for index in range(down if column < across else 0, rows):
            out[target + index // LANES * columns * LANES + index % LANES] = number(a, source + index * LANES)


@part()
def pack(
    source: np.ndarray, at: int, row: int, step: int, rows: int, columns: int, out: np.ndarray, out_at: int
) -> None:
    """Write a matrix, whose rows lie `row` and columns `step` numbers apart, in blocks."""
    if columns % LANES:
        fill(out, out_at, rows * padded(columns), 0.0)
    whole = columns if step == 1 else 0
    whole -= whole % LANES
    for column in range(0, whole, LANES):
        for index in range(rows):
            store(out, out_at + column * rows + index * LANES, load(source, at + index * row + column))
    for column in range(whole, columns):  # one after the other: where `row` is 1, memory is read in order
        given, target = at + column * step, out_at + column // LANES * rows * LANES + column % LANES
        for index in range(rows):
            out[target + index * LANES] = number(source, given + index * row)


@part()
def unpack(
    blocks: np.ndarray, at: int, rows: int, columns: int, out: np.ndarray, out_at: int, row: int, step: int
) -> None:
    """Write a matrix in blocks to rows that lie `row` and columns that lie `step` numbers apart."""
    whole = columns if step == 1 else 0
    whole -= whole % LANES
    for column in range(0, whole, LANES):
        for index in range(rows):
            store(out, out_at + index * row + column, load(blocks, at + column * rows + index * LANES))
    for column in range(whole, columns):
        given, target = at + column // LANES * rows * LANES + column % LANES, out_at + column * step
        for index in range(rows):
            out[target + index * row] = number(blocks, given + index * LANES)


@part()
def gather(
    source: np.ndarray, columns: int, indices: np.ndarray, first: int, rows: int, out: np.ndarray, out_at: int
) -> None:
    """Write rows of a flat array [N, columns] in blocks; empty `indices` name consecutive rows from `first` on."""
    for index in range(rows):
        given = (indices[first + index] if len(indices) else first + index) * columns
        target = out_at + index * LANES
        for column in range(columns):
            out[target + column // LANES * rows * LANES + column % LANES] = number(source, given + column)
