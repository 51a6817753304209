"""Faster twins of methods that compute gradients, checked by their first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.kernels.mismatch import KernelMismatch
from rl_training.models.optimizers import FlatOptimizer

TOLERANCE = 1e-3
"""Largest difference of a twin's gradient, as a share of the gradient's norm; rounding stays far below it."""


class Twin(NamedTuple):
    """The twin of a method that fills the gradients of an optimizer's parameters and returns metrics."""

    method: str
    function: Callable[..., dict[str, Tensor]]
    optimizer: FlatOptimizer


def step_in(algorithm: Any, kernel: str, twins: list[Twin]) -> None:
    """Put twins in the place of an algorithm's methods."""
    for twin in twins:
        setattr(algorithm, twin.method, _Checked(algorithm, kernel, twin))


class _Checked:
    """A twin until its first call, which makes sure that it computes what autograd does."""

    def __init__(self, algorithm: Any, kernel: str, twin: Twin) -> None:
        self.algorithm = algorithm
        self.kernel = kernel
        self.twin = twin
        self.reference = getattr(algorithm, twin.method)

    def __call__(self, *arguments: Any) -> dict[str, Tensor]:
        gradient = self.twin.optimizer.gradient
        with torch.compiler.set_stance("force_eager"):  # compiling what runs once would not pay
            self.reference(*arguments)
        expected = gradient.clone()
        found = self.twin.function(*arguments)
        difference, size = torch.linalg.vector_norm(gradient - expected), torch.linalg.vector_norm(expected)
        # What is not finite is not the kernel's doing: the run is about to stop for it.
        if size.isfinite() and not difference <= TOLERANCE * size + 1e-6:
            raise KernelMismatch(
                self.kernel, f"the gradient of this run's first update (difference {difference:.2e}, norm {size:.2e})"
            )
        setattr(self.algorithm, self.twin.method, self.twin.function)
        return found
