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

    def explore(self, action: Tensor, mask: Tensor | None, epsilon: float, generator: torch.Generator) -> Tensor:
        """Return actions [B], each replaced by a random legal one with probability epsilon."""
        if epsilon <= 0:
            return action
        explore = torch.rand(len(action), generator=generator, device=action.device) < epsilon
        if not explore.any():  # the action is about to leave the device, so the transfer costs nothing more
            return action
        return torch.where(explore, self.random(len(action), mask, generator), action)

    def explored_log_prob(self, best: Tensor, taken: np.ndarray, mask: Tensor | None, epsilon: float) -> Tensor:
        """Return the log-probabilities [B] with which `explore` makes `best` [B] the actions `taken` [B]."""
        action = torch.as_tensor(taken, device=best.device)
        legal = torch.full_like(action, self.count) if mask is None else mask.sum(dim=1)
        return torch.log(epsilon / legal + (1.0 - epsilon) * (action == best))

    def to_env(self, action: Tensor) -> np.ndarray:
        """Return the actions [B] as the environment numbers them, from the space's `start`."""
        host: np.ndarray = action.cpu().numpy()
        return host + self.start if self.start else host

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """Return the actions numbered from 0, as int64, for those of the environment."""
        return action.astype(np.int64) - self.start
