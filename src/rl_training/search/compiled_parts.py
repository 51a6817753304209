"""How the pieces of the compiled search are compiled.

Numba's counting of references is switched off: the arrays outlive every call, counting took half the time of a walk
through the tree, and without it a function that allocates memory does not compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.extending import register_jitable

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
PART_OPTIONS: Any = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Making every piece callable from Python would double the time of compilation."""


def part(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function that compiled functions call; for others it stays a Python function."""
    return register_jitable(**PART_OPTIONS, **options)


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, and keep the result on disk."""
    return njit(cache=True, nogil=True, **_OPTIONS)(function)
