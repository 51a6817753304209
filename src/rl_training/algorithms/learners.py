"""Learning together: several learners with the same weights, each with its share of every batch."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Learners(Protocol):
    """The learners of a run, as one of them sees them; all call the same methods in the same order."""

    @property
    def count(self) -> int:
        """How many there are."""

    def average(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its mean over all learners, the same bits for each, and return it."""


class OneLearner:
    """A learner without others."""

    count = 1

    def average(self, tensor: Tensor) -> Tensor:
        """Return the tensor as it is."""
        return tensor


ALONE = OneLearner()
