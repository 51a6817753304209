"""How the pieces of the compiled search are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import register_jitable


def part(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function that compiled functions call.

    It stays a Python function for others: making every piece callable from Python would triple the compilation.
    """
    return register_jitable(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
