"""A barrier for threads that share an update.

Python's own barriers would take the interpreter's lock several times for each of the few tenths of a millisecond that
a thread works between two of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from rl_training.kernels.compiled.lanes import operation
from rl_training.search.compilation import part

_WORD = ir.IntType(64)
_LOOKS = 2_000  # at the others, before the core is offered to another thread
BROKEN = 1 << 62
"""As the number of threads that have arrived: nobody waits any more, since one has failed."""


def _counter(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, array).data


@operation
def add_one(typing: Any, counter: Any) -> Any:
    """Add 1 to the only number of an int64 array, with no other thread in between, and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _counter(context, builder, signature.args[0], arguments[0])
        return builder.atomic_rmw("add", place, ir.Constant(_WORD, 1), "seq_cst")

    return types.int64(counter), generate


@operation
def current(typing: Any, counter: Any) -> Any:
    """Return the only number of an int64 array as the last thread has left it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _counter(context, builder, signature.args[0], arguments[0])
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(counter), generate


@operation
def yield_core(typing: Any) -> Any:
    """Let another thread run on this core, if one waits for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@part()
def barrier(arrived: np.ndarray, parts: int) -> None:
    """Wait until as many threads have arrived as there are parts; `arrived` [1] counts arrivals at all barriers.

    Its number may be set to `BROKEN` at any time.
    """
    if parts == 1:
        return
    passed = add_one(arrived) // parts
    looks = 0
    while True:
        count = current(arrived)
        if count // parts != passed or count >= BROKEN:
            return
        looks += 1
        if looks > _LOOKS:
            yield_core()
