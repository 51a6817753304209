"""Discrete actions, numbered 0 to n - 1 inside the networks. B is the batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor


class DiscreteActions:
    """Converts actions between the networks' numbering from 0 and the environment's."""

    def __init__(self, space: Space[Any]) -> None:
        assert isinstance(space, spaces.Discrete)
        self.count = int(space.n)
        self.start = int(space.start)

    def random(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return uniformly random legal actions [count]."""
        score = torch.rand((count, self.count), generator=generator, device=generator.device)
        return (score if mask is None else score.masked_fill(~mask, -1.0)).argmax(dim=1)

    def to_env(self, action: Tensor) -> np.ndarray:
        """Return the actions [B] as the environment numbers them, from the space's `start`."""
        host: np.ndarray = action.cpu().numpy()
        return host + self.start if self.start else host

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """Return the actions numbered from 0, as int64, for those of the environment."""
        return action.astype(np.int64) - self.start
