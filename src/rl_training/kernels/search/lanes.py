"""Sixteen float32 numbers as one compiled value.

A product of matrices is fast when its sums stay in registers. The compiler finds that for explicit vectors; of plain
loops over arrays it must fear that outputs overwrite inputs. Processors with narrower vectors take several each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16
_VECTOR = ir.VectorType(ir.FloatType(), LANES)


class LanesType(types.Type):
    """The compiler's name for sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Float32Lanes")


_LANES_TYPE = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _operation(definition: Callable[..., Any]) -> Any:
    """Make an operation of the compiler; called, it takes the definition's arguments but the first."""
    return intrinsic(definition)


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.bitcast(_place(context, builder, kind, array, index), _VECTOR.as_pointer())


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@_operation
def number(typing: Any, array: Any, index: Any) -> Any:
    """Read one number; brackets would first look whether the index counts from the end, which inner loops notice."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(context, builder, signature.args[0], *arguments), align=4)

    return types.float32(array, types.intp), generate


@_operation
def load(typing: Any, array: Any, index: Any) -> Any:
    """Read sixteen numbers from a flat float32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *arguments), align=4)

    return _LANES_TYPE(array, types.intp), generate


@_operation
def store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write sixteen numbers to a flat float32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, index, lanes = arguments
        builder.store(lanes, _address(context, builder, signature.args[0], target, index), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES_TYPE), generate


@_operation
def multiply_add(typing: Any, factor: Any, lanes: Any, addend: Any) -> Any:
    """Return factor * lanes + addend for one factor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        factor, lanes, addend = arguments
        empty, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        spread = builder.shuffle_vector(builder.insert_element(empty, factor, first), empty, everywhere)
        return builder.fadd(builder.fmul(spread, lanes, flags=["contract"]), addend, flags=["contract"])

    return _LANES_TYPE(types.float32, _LANES_TYPE, _LANES_TYPE), generate
