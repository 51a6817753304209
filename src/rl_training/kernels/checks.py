"""Kernels take the place of an algorithm's methods, and the first call of each is compared with the method itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import RunFailure
from rl_training.models.optimizers import FlatOptimizer

TOLERANCE = 1e-3
"""Largest difference from the method's result, as a share of the result's norm; rounding stays far below it."""


class KernelMismatch(RunFailure):
    """A kernel and the algorithm's own code disagree; the message names the kernel and the repair."""

    def __init__(self, kernel: str, what: str) -> None:
        super().__init__(
            f"the kernel `{kernel}` and the algorithm's own code disagree about {what}: the algorithm or its network "
            "was changed where the kernel cannot see it; train with --set acceleration=off, or give what was changed "
            "a class of its own"
        )


def replace_method(
    algorithm: Any, method: str, function: Callable[..., Any], check: Callable[..., None] | None = None
) -> None:
    """Put `function` in the place of a method; before its first call, `check` gets the method and the arguments."""
    reference = getattr(algorithm, method)

    def first_call(*arguments: Any) -> Any:
        if check is not None:
            with eager():
                check(reference, *arguments)
        setattr(algorithm, method, function)
        return function(*arguments)

    first_call.replacement = function  # type: ignore[attr-defined]
    setattr(algorithm, method, first_call)


def replacement(algorithm: Any, method: str) -> Any:
    """Return the function that was put in the place of a method, None if it is the class's own."""
    found = vars(algorithm).get(method)
    return getattr(found, "replacement", found)


def replace_gradient(
    algorithm: Any, kernel: str, method: str, function: Callable[..., dict[str, Tensor]], optimizer: FlatOptimizer
) -> None:
    """Replace a method that fills the gradients of an optimizer's parameters and returns metrics."""

    def check(reference: Callable[..., Any], *arguments: Any) -> None:
        reference(*arguments)
        expected = optimizer.gradient.clone()
        function(*arguments)
        compare(kernel, "the gradient of this run's first update", optimizer.gradient, expected)

    replace_method(algorithm, method, function, check)


def compare(kernel: str, what: str, found: Tensor, expected: Tensor) -> None:
    """Raise where a kernel's result differs from the expected one by more than rounding."""
    difference, size = torch.linalg.vector_norm(found - expected), torch.linalg.vector_norm(expected)
    # What is not finite is not the kernel's doing: the run is about to stop for it.
    if size.isfinite() and not difference <= TOLERANCE * size + 1e-6:
        raise KernelMismatch(kernel, f"{what} (difference {difference:.2e}, norm {size:.2e})")


@contextmanager
def eager() -> Iterator[None]:
    """Compile nothing of torch here: what runs once would not pay."""
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled, and importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
