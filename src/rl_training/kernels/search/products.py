"""Products of rows with a weight in tiles, shaped so that all sums stay in the processor's registers.

A weight [outputs, inputs] lies in a flat array as [outputs / TILE, inputs, TILE]. Every row's sums are taken in the
same order, however many rows there are and whichever processor it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rl_training.kernels.compiled.lanes import LANES, WIDE
from rl_training.kernels.search.perceptron_layout import TILE
from rl_training.search.compilation import part

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
# Registers of 16 numbers hold a tile's sums for six rows; those of 8 numbers, of which there are half as many, half a
# tile's. More sums than that would be written to memory and read again in every step.
_VECTORS = 2 if WIDE else 1


def _block_product(rows: int, vectors: int) -> Any:
    """Return the compiled function that multiplies so many rows with so many vectors of a weight's columns.

    It takes an array of activations, where the rows begin and how far they lie apart, where to write the products and
    how far those lie apart, an array of weights, where the weight and its bias begin there, and the number of inputs.
    """

    def product(
        typing: Any,
        values: Any,
        at: Any,
        stride: Any,
        to: Any,
        outputs: Any,
        weights: Any,
        weight: Any,
        bias: Any,
        inputs: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
            values, at, stride, to, outputs, weights, weight, bias, inputs = arguments
            data, parameters = (
                context.make_array(kind)(context, builder, array).data
                for kind, array in ((signature.args[0], values), (signature.args[5], weights))
            )

            def constant(value: int) -> ir.Constant:
                return ir.Constant(ir.IntType(64), value)

            def address(array: Any, index: Any) -> Any:
                return builder.bitcast(builder.gep(array, [index]), _VECTOR.as_pointer())

            biases = [
                builder.load(address(parameters, builder.add(bias, constant(LANES * vector))), align=4)
                for vector in range(vectors)
            ]
            sums = [[cgutils.alloca_once_value(builder, bias) for bias in biases] for _ in range(rows)]
            starts = [builder.add(at, builder.mul(stride, constant(row))) for row in range(rows)]
            # A vector's columns lie in the tile `vector // 2`, in its first or its second half.
            columns = []
            for vector in range(vectors):
                tile = builder.mul(inputs, constant(vector * LANES // TILE * TILE))
                columns.append(builder.add(builder.add(weight, tile), constant(vector * LANES % TILE)))
            with cgutils.for_range(builder, inputs) as loop:
                offset = builder.mul(loop.index, constant(TILE))
                lanes = [builder.load(address(parameters, builder.add(one, offset)), align=4) for one in columns]
                for row in range(rows):
                    number = builder.load(builder.gep(data, [builder.add(starts[row], loop.index)]), align=4)
                    factor = _spread(builder, number)
                    for vector in range(vectors):
                        step = builder.fmul(factor, lanes[vector], flags=["contract"])
                        place = sums[row][vector]
                        builder.store(builder.fadd(step, builder.load(place), flags=["contract"]), place)
            for row in range(rows):
                start = builder.add(to, builder.mul(outputs, constant(row)))
                for vector in range(vectors):
                    target = address(data, builder.add(start, constant(LANES * vector)))
                    builder.store(builder.load(sums[row][vector]), target, align=4)
            return context.get_dummy_value()

        integers = (types.intp,) * 3
        return types.void(values, *integers, types.intp, weights, *integers), generate

    return intrinsic(product)


def _spread(builder: Any, number: Any) -> Any:
    empty, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(empty, number, first), empty, everywhere)


_six_rows, _four_rows = _block_product(6, _VECTORS), _block_product(4, _VECTORS)
# Alone, a row has but few sums at once, and each waits for the one before: two tiles together hide that.
_two_tiles, _one_tile = _block_product(1, 4), _block_product(1, 2)


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
    """Multiply one row with the whole weight."""
    whole = outputs - outputs % (2 * TILE)
    for column in range(0, whole, 2 * TILE):
        place = weight + column * inputs
        _two_tiles(activations, at, 0, to + column, outputs, weights, place, bias + column, inputs)
    if whole < outputs:
        place = weight + whole * inputs
        _one_tile(activations, at, 0, to + whole, outputs, weights, place, bias + whole, inputs)


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
    # Rows are taken in sixes and fours, as many of them as possible.
    together = rows - rows % 2 if rows >= 6 else rows - rows % 4
    sixes = together // 6 * 6
    if (together - sixes) % 4 != 0:
        sixes -= 6
    for column in range(0, outputs, LANES * _VECTORS):
        # The tile's beginning, and the half of it.
        place = weight + column // TILE * TILE * inputs + column % TILE
        for row in range(0, sixes, 6):
            at, to = source + row * stride, target + row * outputs + column
            _six_rows(activations, at, stride, to, outputs, weights, place, bias + column, inputs)
        for row in range(sixes, together, 4):
            at, to = source + row * stride, target + row * outputs + column
            _four_rows(activations, at, stride, to, outputs, weights, place, bias + column, inputs)
    for row in range(together, rows):
        one_row(activations, source + row * stride, target + row * outputs, outputs, weights, weight, bias, inputs)
