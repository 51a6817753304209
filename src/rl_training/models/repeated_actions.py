"""Temporally extended exploration (Dabney et al. 2021, arXiv 2006.01782): random actions that are repeated.

Single random actions cancel each other out; repeated ones take an agent to distant states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.models.discrete import DiscreteActions


class RepeatedActions:
    """The random actions that environments are repeating, and the remaining steps of each."""

    def __init__(self, actions: DiscreteActions, *, exponent: float, limit: int, device: torch.device) -> None:
        """A random action lasts n of at most `limit` steps with a probability proportional to n ** -exponent."""
        self.actions = actions
        self.device = device
        shares = torch.arange(1, limit + 1, dtype=torch.float64).pow(-exponent).cumsum(0)
        # The cumulative sums need double precision, which not every device has; the result does not.
        self._cumulative = (shares / shares[-1]).float().to(device)
        self._action: Tensor | None = None  # [num_envs]
        self._remaining: Tensor | None = None  # [num_envs] steps

    def durations(self, count: int, generator: torch.Generator) -> Tensor:
        """Sample the number of steps [count] that each of `count` random actions lasts."""
        chance = torch.rand(count, generator=generator, device=self.device)
        return torch.searchsorted(self._cumulative, chance, right=True) + 1

    def step(self, best: Tensor, mask: Tensor | None, epsilon: float, generator: torch.Generator) -> Tensor:
        """Return the actions [num_envs] of the next step: the repeated ones, new random ones, or the best.

        An environment without a repetition starts one with probability `epsilon`. A repetition ends if it becomes
        illegal.
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
        """Stop repetitions where `ended` [num_envs] is true, so that none crosses the end of an episode."""
        if self._remaining is not None:
            self._remaining = self._remaining.masked_fill(torch.as_tensor(ended, device=self.device), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the repeated actions and their remaining steps."""
        return {"action": self._action, "remaining": self._remaining}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the repeated actions and their remaining steps."""
        self._action, self._remaining = (
            None if state[name] is None else state[name].to(self.device) for name in ("action", "remaining")
        )
