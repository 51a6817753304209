"""Temporally extended exploration (Dabney et al. 2021, arXiv 2006.01782): random actions that are kept for a while.

Single random actions cancel each other out; one that is repeated takes an agent somewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.models.discrete import DiscreteActions


class RepeatedActions:
    """The random actions that environments are repeating, and how often each still will."""

    def __init__(self, actions: DiscreteActions, *, exponent: float, limit: int, device: torch.device) -> None:
        """A repetition takes n of at most `limit` steps with a probability in proportion to n ** -exponent."""
        self.actions = actions
        self.device = device
        shares = torch.arange(1, limit + 1, dtype=torch.float64).pow(-exponent).cumsum(0)
        # The sums need double precision, which not every device has; the result does not.
        self._cumulative = (shares / shares[-1]).float().to(device)
        self._action: Tensor | None = None  # [num_envs]
        self._remaining: Tensor | None = None  # [num_envs] steps

    def durations(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw how many steps each of `count` random actions takes, [count]."""
        chance = torch.rand(count, generator=generator, device=self.device)
        return torch.searchsorted(self._cumulative, chance, right=True) + 1

    def step(self, best: Tensor, mask: Tensor | None, epsilon: float, generator: torch.Generator) -> Tensor:
        """Return the actions [num_envs] of one more step: those being repeated, fresh random ones, or the best.

        An environment that repeats nothing begins to with probability `epsilon`. What has become illegal is given up.
        """
        if self._action is None or self._remaining is None:
            self._action, self._remaining = torch.zeros_like(best), torch.zeros_like(best)
        repeating = self._remaining > 0
        if mask is not None:
            repeating &= mask.gather(1, self._action.unsqueeze(1)).squeeze(1)
        begins = ~repeating & (torch.rand(len(best), generator=generator, device=self.device) < epsilon)
        if begins.any():
            self._action = torch.where(begins, self.actions.random(len(best), mask, generator), self._action)
            self._remaining = torch.where(begins, self.durations(len(best), generator), self._remaining)
        exploring = repeating | begins
        self._remaining = torch.where(exploring, self._remaining - 1, 0)
        return torch.where(exploring, self._action, best)

    def end(self, ended: np.ndarray) -> None:
        """Repeat nothing across the end of an episode; `ended` [num_envs] says where one ended."""
        if self._remaining is not None:
            self._remaining = self._remaining.masked_fill(torch.as_tensor(ended, device=self.device), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return what each environment is repeating."""
        return {"action": self._action, "remaining": self._remaining}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on repeating."""
        self._action, self._remaining = (
            None if state[name] is None else state[name].to(self.device) for name in ("action", "remaining")
        )
