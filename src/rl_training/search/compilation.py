"""Compilation by numba: which functions are compiled, how, and when a cached result is out of date.

The formulas of the search are plain Python functions, marked by `part`. A function made by `compiled` imports numba at
its first call and is compiled together with every part that it calls. Reference counting is switched off: the arrays
outlive every call, counting took half the time of a walk through the tree, and a function that allocates memory does
not compile without it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

logger = logging.getLogger("rl_training")

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
# Making every part callable from Python would double the compilation time.
_PART_OPTIONS: Any = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_PACKAGE = Path(__file__).parent.parent

_waiting: list[tuple[Callable[..., Any], dict[str, Any]]] = []
_choices: list[tuple[Callable[..., Any], str]] = []
_parts: set[str] = set()
_registered = False


def part(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function that compiled functions call; called from Python it stays a Python function."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        _parts.add(function.__qualname__)
        if _registered:
            _register_part(function, options)
        else:
            _waiting.append((function, options))
        return function

    return mark


def chosen_by_class(attribute: str) -> Callable[..., Any]:
    """Return a function that calls `type(first argument).<attribute>` with all of its arguments.

    In compiled code the choice is made by type at compile time, so that it costs nothing.
    """

    def dispatch(first: Any, *rest: Any) -> Any:
        return getattr(type(first), attribute)(first, *rest)

    if _registered:
        _register_choice(dispatch, attribute)
    else:
        _choices.append((dispatch, attribute))
    return dispatch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to be called from Python, compiled at its first call and cached on disk."""

    @functools.cache
    def dispatcher() -> Any:
        return _compile(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return dispatcher()(*arguments)

    return call


def prepare_compiler() -> None:
    """Import numba and tell it what there is to compile, which the first compiled call would do otherwise."""
    from numba.core.registry import cpu_target

    _register()
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


@functools.cache
def source_stamp() -> str:
    """Return a hash of all files that compiled functions may come from.

    Numba checks only the file of the compiled function itself; after a change of a callee it would use a stale result.
    """
    digest = hashlib.sha256()
    for folder in ("search", "kernels"):
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(function: Callable[..., Any]) -> Any:
    from numba import njit

    _register()
    dispatcher = njit(cache=True, nogil=True, **_OPTIONS)(function)
    dispatcher._cache._cache_file._source_stamp = source_stamp()
    dispatcher.compile = _parts_only_linked(function.__qualname__)(dispatcher.compile)
    if not dispatcher._cache._cache_file._load_index():
        _announce()
    return dispatcher


@contextmanager
def _parts_only_linked(outermost: str) -> Iterator[None]:
    """Let numba optimize and generate machine code for the outermost function only, with all parts linked into it.

    Otherwise it does both for each part as well, with all that the part calls, though nothing ever runs that code: it
    would take twice as long.
    """
    from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
    from numba.core.compiler_lock import global_compiler_lock

    library: Any = CPUCodeLibrary
    codegen: Any = JITCPUCodegen
    steps = ("_optimize_final_module", "_finalize_final_module")
    if not all(hasattr(library, step) for step in steps) or not hasattr(codegen, "set_env"):
        yield  # another version of numba, which compiles the parts as well
        return

    def only_linked(name: str) -> bool:
        return name in _parts and name != outermost

    def optimize_others(self: Any) -> None:
        if not only_linked(self.name):
            optimize(self)

    def finish_others(self: Any) -> None:
        if only_linked(self.name):
            self._finalized = True
        else:
            finish(self)

    def set_defined(self: Any, name: str, env: Any) -> None:
        if self._engine.is_symbol_defined(name):
            set_env(self, name, env)

    with global_compiler_lock:
        optimize, finish, set_env = library._optimize_final_module, library._finalize_final_module, codegen.set_env
        library._optimize_final_module, library._finalize_final_module = optimize_others, finish_others
        codegen.set_env = set_defined
        try:
            yield
        finally:
            library._optimize_final_module, library._finalize_final_module = optimize, finish
            codegen.set_env = set_env


@functools.cache
def _announce() -> None:
    """Say once why nothing happens for some seconds."""
    logger.info("compiling for this processor, which takes some seconds and is kept for the next runs")


def _register() -> None:
    """Register all parts, and the functions that choose by class, with numba."""
    global _registered
    if _registered:
        return
    _registered = True
    for function, options in _waiting:
        _register_part(function, options)
    for function, attribute in _choices:
        _register_choice(function, attribute)


def _register_choice(function: Callable[..., Any], attribute: str) -> None:
    from numba.extending import overload

    overload(function, strict=False, jit_options=_PART_OPTIONS)(_chooser(attribute))


def _chooser(attribute: str) -> Callable[..., Any]:
    def choose(first: Any, *rest: Any) -> Any:
        return getattr(first.instance_class, attribute)

    return choose


def _register_part(function: Callable[..., Any], options: dict[str, Any]) -> None:
    from numba.extending import register_jitable

    register_jitable(**_PART_OPTIONS, **options)(function)
