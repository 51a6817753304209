"""Exponentials of float32 numbers, and what networks make of them: expectations, and a recurrent cell's gates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rl_training.kernels.compiled.lanes import LANES, LanesType, load, spread, store, tanh, total, where_above
from rl_training.kernels.search.perceptron_layout import TILE
from rl_training.search.compilation import part

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
# Added to a number below 2**22, 1.5 * 2**23 leaves the nearest integer in the lowest bits; 127 is the exponent of 2**0.
_ROUNDING = np.float32(1.5 * 2**23 + 127)
_LANES_TYPE = LanesType()
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


@part(fastmath={"contract"})
def exponential(x: np.float32) -> np.float32:
    """Return e**x of a float32 to float32's precision, by arithmetic that vectorises; below e**-87 it stays there."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    power = np.floor(x * _LOG2_E + np.float32(0.5))
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    # Taylor coefficients: within half a power of two the first term left out is below 1e-7.
    series = np.float32(1 / 5040)
    series = series * rest + np.float32(1 / 720)
    series = series * rest + np.float32(1 / 120)
    series = series * rest + np.float32(1 / 24)
    series = series * rest + np.float32(1 / 6)
    series = series * rest + np.float32(0.5)
    series = series * rest + np.float32(1.0)
    series = series * rest + np.float32(1.0)
    # A float's exponent stands above its 23 bits of fraction, 127 meaning 2**0.
    return series * np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)


def _operation(definition: Any) -> Any:
    return intrinsic(definition)


@_operation
def power_of_two(typing: Any, lanes: Any) -> Any:
    """Return 2**n for lanes that hold n + `_ROUNDING`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shift = ir.Constant(_INTEGERS, [23] * LANES)
        return builder.bitcast(builder.shl(builder.bitcast(arguments[0], _INTEGERS), shift), _FLOATS)

    return _LANES_TYPE(_LANES_TYPE), generate


@_operation
def ascending(typing: Any) -> Any:
    """Return the numbers from 0 on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_FLOATS, [float(index) for index in range(LANES)])

    return _LANES_TYPE(), generate


@_operation
def highest(typing: Any, lanes: Any) -> Any:
    """Return the largest of the lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (values,) = arguments
        width = LANES
        while width > 1:
            width //= 2
            one, other = (
                builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(ir.IntType(32), width), indices))
                for indices in (list(range(width)), list(range(width, 2 * width)))
            )
            values = builder.select(builder.fcmp_ordered(">", one, other), one, other)
        return builder.extract_element(values, ir.Constant(ir.IntType(32), 0))

    return types.float32(_LANES_TYPE), generate


@part()
def exponentials(x: Any) -> Any:
    """Return e**x of sixteen numbers, as `exponential` does; NaN stays NaN."""
    x = where_above(x, spread(np.float32(88.0)), spread(np.float32(88.0)), x)
    x = where_above(spread(np.float32(-87.0)), x, spread(np.float32(-87.0)), x)
    rounded = x * spread(_LOG2_E) + spread(_ROUNDING)
    power = rounded - spread(_ROUNDING)
    rest = (x - power * spread(_LN2_HIGH)) - power * spread(_LN2_LOW)
    series = spread(np.float32(1 / 5040)) * rest + spread(np.float32(1 / 720))
    series = series * rest + spread(np.float32(1 / 120))
    series = series * rest + spread(np.float32(1 / 24))
    series = series * rest + spread(np.float32(1 / 6))
    series = series * rest + spread(np.float32(0.5))
    series = series * rest + spread(np.float32(1.0))
    series = series * rest + spread(np.float32(1.0))
    return series * power_of_two(rounded)


@part()
def expectation(values: np.ndarray, start: int, width: int) -> float:
    """Return the scalar that `width` logits over the integers -S..S stand for: their mean, then the inverse transform.

    What stands behind the logits up to a multiple of TILE is overwritten.
    """
    end = start + (width + TILE - 1) // TILE * TILE
    for index in range(start + width, end):
        values[index] = -np.inf
    top0 = top1 = spread(np.float32(-np.inf))
    for index in range(start, end, TILE):
        logits0, logits1 = load(values, index), load(values, index + LANES)
        top0, top1 = where_above(logits0, top0, logits0, top0), where_above(logits1, top1, logits1, top1)
    top = spread(highest(where_above(top0, top1, top0, top1)))
    total0 = total1 = weighted0 = weighted1 = spread(np.float32(0.0))
    place0 = ascending() - spread(np.float32(width // 2))
    place1 = place0 + spread(np.float32(LANES))
    for index in range(start, end, TILE):
        weight0 = exponentials(load(values, index) - top)
        weight1 = exponentials(load(values, index + LANES) - top)
        total0, total1 = total0 + weight0, total1 + weight1
        weighted0, weighted1 = weight0 * place0 + weighted0, weight1 * place1 + weighted1
        place0, place1 = place0 + spread(np.float32(TILE)), place1 + spread(np.float32(TILE))
    mean = total(weighted0 + weighted1) / total(total0 + total1)
    # The inverse of sign(x)(sqrt(|x|+1)-1) + 0.001x, in the form that subtracts no nearly equal numbers.
    shifted = abs(mean) + 1.001
    root = 2.0 * shifted / (math.sqrt(1.0 + 0.004 * shifted) + 1.0)
    return math.copysign(root * root - 1.0, mean)


@part()
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e**-x) of sixteen numbers."""
    half = spread(np.float32(0.5))
    return half * tanh(half * x) + half


@part()
def step_cell(
    values: np.ndarray, ours: int, theirs: int, memory: int, output_to: int, memory_to: int, stride: int
) -> None:
    """Make one step of an LSTM cell, whose parts are `stride` numbers wide.

    Its four gates are the sums of those at `ours` and `theirs`; the memory before the step stands at `memory`, output
    and memory after it are written to `output_to` and `memory_to`.
    """
    for index in range(0, stride, LANES):
        enter = sigmoid(load(values, ours + index) + load(values, theirs + index))
        first, second = ours + stride + index, theirs + stride + index
        keep = sigmoid(load(values, first) + load(values, second))
        new = tanh(load(values, first + stride) + load(values, second + stride))
        show = sigmoid(load(values, first + 2 * stride) + load(values, second + 2 * stride))
        kept = keep * load(values, memory + index) + enter * new
        store(values, output_to + index, show * tanh(kept))
        store(values, memory_to + index, kept)
