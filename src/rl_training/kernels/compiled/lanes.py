"""Sixteen float32 numbers as one compiled value.

A product of matrices is fast when its sums stay in registers. The compiler keeps explicit vectors there; in plain loops
over arrays it must assume that outputs overwrite inputs. Processors with narrower vectors use several for each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from rl_training.search.compilation import part

LANES = 16
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
"""Whether the processor has registers for all lanes."""


class LanesType(types.Type):
    """The compiler's name for sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Float32Lanes")


_LANES_TYPE = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def operation(definition: Callable[..., Any]) -> Any:
    """Make an operation of the compiler; called, it takes the definition's arguments but the first."""
    return intrinsic(definition)


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.bitcast(_place(context, builder, kind, array, index), _VECTOR.as_pointer())


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _spread(builder: Any, number: Any) -> Any:
    empty, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(empty, number, first), empty, everywhere)


def _indices(numbers: Iterable[int]) -> Any:
    chosen = list(numbers)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)


def _halves(builder: Any, lanes: Any) -> list[Any]:
    half = lanes.type.count // 2
    return [builder.shuffle_vector(lanes, lanes, _indices(range(at, at + half))) for at in (0, half)]


@operation
def number(typing: Any, array: Any, index: Any) -> Any:
    """Read one number; brackets would first look whether the index counts from the end, which inner loops notice."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(context, builder, signature.args[0], *arguments), align=4)

    return types.float32(array, types.intp), generate


@operation
def load(typing: Any, array: Any, index: Any) -> Any:
    """Read sixteen numbers from a flat float32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *arguments), align=4)

    return _LANES_TYPE(array, types.intp), generate


@operation
def store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write sixteen numbers to a flat float32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, index, lanes = arguments
        builder.store(lanes, _address(context, builder, signature.args[0], target, index), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES_TYPE), generate


@operation
def transpose_eight(typing: Any, source: Any, at: Any, row: Any, target: Any, to: Any, step: Any) -> Any:
    """Transpose eight rows of eight numbers; rows lie `row` numbers apart in the source and `step` in the target."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, at, row, target, to, step = arguments
        vector = ir.VectorType(ir.FloatType(), 8)

        def place(array: int, given: Any, first: Any, apart: Any, number: int) -> Any:
            index = builder.add(first, builder.mul(apart, ir.Constant(first.type, number)))
            return builder.bitcast(_place(context, builder, signature.args[array], given, index), vector.as_pointer())

        rows = [builder.load(place(0, source, at, row, number), align=4) for number in range(8)]
        for half in (4, 2, 1):  # swap the quarters beside the diagonal, then those of each quarter, and so on
            for upper in (number for number in range(8) if not number & half):
                pair = rows[upper], rows[upper + half]
                kept = [lane if not lane & half else 8 + lane - half for lane in range(8)]
                rows[upper] = builder.shuffle_vector(*pair, _indices(kept))
                rows[upper + half] = builder.shuffle_vector(*pair, _indices(lane + half for lane in kept))
        for number in range(8):
            builder.store(rows[number], place(3, target, to, step, number), align=4)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp, types.intp), generate


@operation
def spread(typing: Any, value: Any) -> Any:
    """Return lanes that all hold one float32 number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _spread(builder, arguments[0])

    return _LANES_TYPE(types.float32), generate


@operation
def multiply_add(typing: Any, factor: Any, lanes: Any, addend: Any) -> Any:
    """Return factor * lanes + addend for one factor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        factor, lanes, addend = arguments
        return builder.fadd(
            builder.fmul(_spread(builder, factor), lanes, flags=["contract"]), addend, flags=["contract"]
        )

    return _LANES_TYPE(types.float32, _LANES_TYPE, _LANES_TYPE), generate


@operation
def root(typing: Any, lanes: Any) -> Any:
    """Return the square roots."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f32"), arguments)

    return _LANES_TYPE(_LANES_TYPE), generate


@operation
def where_above(typing: Any, left: Any, right: Any, then: Any, otherwise: Any) -> Any:
    """Return `then` in the lanes where left > right, else `otherwise`; a comparison with NaN does not hold."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # By halves: where sixteen truth values are more than one vector has, the compiler would pack and unpack them.
        halves = [
            builder.select(builder.fcmp_ordered(">", left, right), then, otherwise)
            for left, right, then, otherwise in zip(*(_halves(builder, lanes) for lanes in arguments), strict=True)
        ]
        return builder.shuffle_vector(*halves, _indices(range(LANES)))

    return _LANES_TYPE(_LANES_TYPE, _LANES_TYPE, _LANES_TYPE, _LANES_TYPE), generate


@operation
def at_most(typing: Any, lanes: Any, limit: Any) -> Any:
    """Return the lanes, or the limit's where they are above it; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _bounded(builder, ">", *arguments)

    return _LANES_TYPE(_LANES_TYPE, _LANES_TYPE), generate


@operation
def at_least(typing: Any, lanes: Any, limit: Any) -> Any:
    """Return the lanes, or the limit's where they are below it; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _bounded(builder, "<", *arguments)

    return _LANES_TYPE(_LANES_TYPE, _LANES_TYPE), generate


def _bounded(builder: Any, comparison: str, lanes: Any, limit: Any) -> Any:
    if WIDE:  # one instruction
        return builder.select(builder.fcmp_ordered(comparison, lanes, limit), limit, lanes)
    halves = [
        builder.select(builder.fcmp_ordered(comparison, half, bound), bound, half)
        for half, bound in zip(_halves(builder, lanes), _halves(builder, limit), strict=True)
    ]
    return builder.shuffle_vector(*halves, _indices(range(LANES)))


@operation
def total(typing: Any, lanes: Any) -> Any:
    """Return the sum of the lanes, added in pairs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (sums,) = arguments
        while sums.type.count > 1:
            sums = builder.fadd(*_halves(builder, sums))
        return builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))

    return types.float32(_LANES_TYPE), generate


@operation
def nonzero(typing: Any, lanes: Any) -> Any:
    """Return sixteen bits, the first lane's lowest, that say which lanes are not zero; NaN is not."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.fcmp_unordered("!=", arguments[0], ir.Constant(_VECTOR, [0.0] * LANES))
        return builder.zext(builder.bitcast(bits, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(_LANES_TYPE), generate


@operation
def lowest_bit(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set; one must be."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@operation
def count_bits(typing: Any, bits: Any) -> Any:
    """Return how many bits are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


def _element_wise(instruction: str) -> Any:
    """Return the operation that applies an instruction to each pair of lanes."""

    @operation
    def apply(typing: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments, flags=["contract"])

        return _LANES_TYPE(_LANES_TYPE, _LANES_TYPE), generate

    return apply


def _give_operator(function: Any, instruction: str) -> None:
    """Let Python's operator work on lanes."""
    apply = _element_wise(instruction)

    options: Any = {"_nrt": False, "error_model": "numpy"}

    @overload(function, strict=False, jit_options=options)
    def operate(left: Any, right: Any) -> Any:
        if isinstance(left, LanesType) and isinstance(right, LanesType):
            return lambda left, right: apply(left, right)
        return None


for _function, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _give_operator(_function, _instruction)


@part()
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangents to within a few units in the last place."""
    top, bottom = tanh_parts(x)
    return top / bottom


@part()
def tanh_parts(x: Any) -> Any:
    """Return numerators and denominators of the hyperbolic tangents.

    They are polynomials of degrees 13 and 6, whose coefficients Eigen and XLA use as well; beyond the limits the
    nearest float32 number to the tangent is 1.
    """
    x = at_least(at_most(x, spread(7.90531110763549805)), spread(-7.90531110763549805))
    square = x * x
    top = spread(-2.76076847742355e-16) * square + spread(2.00018790482477e-13)
    top = top * square + spread(-8.60467152213735e-11)
    top = top * square + spread(5.12229709037114e-08)
    top = top * square + spread(1.48572235717979e-05)
    top = top * square + spread(6.37261928875436e-04)
    top = top * square + spread(4.89352455891786e-03)
    bottom = spread(1.19825839466702e-06) * square + spread(1.18534705686654e-04)
    bottom = bottom * square + spread(2.26843463243900e-03)
    bottom = bottom * square + spread(4.89352518554385e-03)
    return x * top, bottom


@part()
def relu(x: Any) -> Any:
    """Return what is positive of each lane; NaN stays NaN."""
    # A choice between zero and x would become a store of some lanes where x is overwritten, ten times as slow.
    zero = spread(0.0)
    return x * where_above(zero, x, zero, spread(1.0))
