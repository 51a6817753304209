"""Products with matrices of which many elements are zero, such as what a ReLU lets through.

Sixty-four bits say which elements of a stretch of a row are not zero. Only these are multiplied, each with sixty-four
columns at once: the sums stay in registers, and finding the next bit costs nothing beside them. The sums are those of
`kernels.compiled.blocks`, in the same order.
"""

from __future__ import annotations

import numpy as np

from rl_training.kernels.compiled.lanes import LANES, count_bits, load, lowest_bit, multiply_add, nonzero, number, store
from rl_training.search.compilation import part

WORD = 64
"""How many elements the bits of one number stand for, and how many columns are summed at once."""
_PANELS = WORD // LANES
_MOST_NONZERO = 0.65  # share beyond which the product of all elements takes less time


@part()
def mostly_nonzero(x: np.ndarray, at: int, rows: int, columns: int, bits: np.ndarray) -> bool:
    """Write which elements of x [rows, columns] in blocks are not zero, as bits [columns / 64, rows].

    Return whether they are so many that skipping the others does not pay. `columns` is a multiple of 64.
    """
    found = 0
    for first in range(0, columns, WORD):
        for row in range(rows):
            place, word = at + first * rows + row * LANES, 0
            for panel in range(_PANELS):
                word |= nonzero(load(x, place + panel * rows * LANES)) << (panel * LANES)
            bits[first // WORD * rows + row] = word
            found += count_bits(word)
    return found > _MOST_NONZERO * rows * columns


@part()
def transpose_bits(bits: np.ndarray, at: int, count: int, out_at: int) -> None:
    """Write the transpose of `count` rows of 64 bits; rows that lack count as zeros.

    Swaps the quarters beside the diagonal of a square of bits, then those of each quarter, and so on.
    """
    for row in range(WORD):
        bits[out_at + row] = bits[at + row] if row < count else 0
    half, low = WORD // 2, (1 << (WORD // 2)) - 1
    while half > 0:
        row = 0
        while row < WORD:
            upper, lower = bits[out_at + row], bits[out_at + row + half]
            swapped = ((upper >> half) ^ lower) & low
            bits[out_at + row + half] = lower ^ swapped
            bits[out_at + row] = upper ^ (swapped << half)
            row = (row + half + 1) & ~half
        half >>= 1
        low ^= low << half


@part(forceinline=True)
def add_sparse_product(
    a: np.ndarray,
    at: int,
    row: int,
    step: int,
    panel: int,
    rows: int,
    bits: np.ndarray,
    bits_at: int,
    b: np.ndarray,
    b_at: int,
    b_panel: int,
    out: np.ndarray,
    out_at: int,
    out_row: int,
    out_panel: int,
) -> None:
    """Add a [rows, 64] times b [64, 64] to out [rows, 64], where one number of bits tells what is not zero in a row.

    Element (i, k) of a lies at `at + i * row + k // 16 * panel + k % 16 * step`. The columns of b and of out are four
    times sixteen, `b_panel` and `out_panel` numbers apart.
    """
    for index in range(rows):
        to, left, word = out_at + index * out_row, at + index * row, bits[bits_at + index]
        sum0, sum1 = load(out, to), load(out, to + out_panel)
        sum2, sum3 = load(out, to + 2 * out_panel), load(out, to + 3 * out_panel)
        while word != 0:
            k = lowest_bit(word)
            word &= word - 1
            factor, place = number(a, left + (k >> 4) * panel + (k & 15) * step), b_at + k * LANES
            sum0 = multiply_add(factor, load(b, place), sum0)
            sum1 = multiply_add(factor, load(b, place + b_panel), sum1)
            sum2 = multiply_add(factor, load(b, place + 2 * b_panel), sum2)
            sum3 = multiply_add(factor, load(b, place + 3 * b_panel), sum3)
        store(out, to, sum0)
        store(out, to + out_panel, sum1)
        store(out, to + 2 * out_panel, sum2)
        store(out, to + 3 * out_panel, sum3)
