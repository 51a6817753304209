"""Exponentials of float32 numbers, one at a time or sixteen at once, and the logistic function."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from rl_training.kernels.compiled.lanes import LANES, LanesType, at_least, at_most, operation, spread, tanh
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


@operation
def power_of_two(typing: Any, lanes: Any) -> Any:
    """Return 2**n for lanes that hold n + `_ROUNDING`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shift = ir.Constant(_INTEGERS, [23] * LANES)
        return builder.bitcast(builder.shl(builder.bitcast(arguments[0], _INTEGERS), shift), _FLOATS)

    return _LANES_TYPE(_LANES_TYPE), generate


@operation
def ascending(typing: Any) -> Any:
    """Return the numbers from 0 on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_FLOATS, [float(index) for index in range(LANES)])

    return _LANES_TYPE(), generate


@operation
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
    x = at_least(at_most(x, spread(np.float32(88.0))), spread(np.float32(-87.0)))
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
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e**-x) of sixteen numbers."""
    half = spread(np.float32(0.5))
    return half * tanh(half * x) + half
