"""Exploration that lasts: generalised state-dependent noise, and random actions that are repeated.

The noise of gSDE (Raffin et al. 2020, arXiv 2005.05719) is a linear function of the policy's latent and stays fixed for
several steps, so that exploration is smooth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.models.discrete import DiscreteActions


def marginal_log_std(latent: Tensor, log_std: Tensor) -> Tensor:
    """Return the log standard deviations [B, size] of the noise for latents [B, latent], given log_std [latent, size].

    No gradient flows through the latents, as in the paper.
    """
    variance = latent.detach().square() @ log_std.exp().square()
    return 0.5 * torch.log(variance + 1e-6)


def draw_matrices(log_std: Tensor, num_envs: int, generator: torch.Generator) -> Tensor:
    """Draw one noise matrix per environment, [num_envs, latent, size], given log_std [latent, size]."""
    noise = torch.empty((num_envs, *log_std.shape), device=log_std.device).normal_(generator=generator)
    return noise * log_std.exp()


def matrix_noise(latent: Tensor, matrices: Tensor) -> Tensor:
    """Return the noise [num_envs, size] of each environment's matrix and latent."""
    return torch.bmm(latent.unsqueeze(1), matrices).squeeze(1)


class ExplorationMatrices:
    """The noise matrices in use, which are redrawn every few steps."""

    def __init__(self, sample_freq: int, device: torch.device) -> None:
        """`sample_freq` is the number of steps after which matrices are redrawn; -1: only after `forget`."""
        self.sample_freq = sample_freq
        self.device = device
        self._matrices: Tensor | None = None  # [num_envs, latent, size]
        self._age = 0

    def forget(self) -> None:
        """Draw new matrices at the next step."""
        self._matrices = None

    def step(self, log_std: Tensor, num_envs: int, generator: torch.Generator) -> Tensor:
        """Return the matrices [num_envs, latent, size] for the next step."""
        if self._matrices is None or self._age == self.sample_freq:
            self._matrices = draw_matrices(log_std, num_envs, generator)
            self._age = 0
        self._age += 1
        return self._matrices

    def state_dict(self) -> dict[str, Any]:
        """Return the matrices and their age."""
        return {"matrices": self._matrices, "age": self._age}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the saved matrices and their age."""
        matrices = state["matrices"]
        self._matrices = None if matrices is None else matrices.to(self.device)
        self._age = state["age"]


class RepeatedActions:
    """The random actions that environments are repeating, and the remaining steps of each.

    Single random actions cancel each other out; repeated ones take an agent to distant states (Dabney et al. 2021,
    arXiv 2006.01782).
    """

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
