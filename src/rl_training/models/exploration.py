"""Noise of generalised state-dependent exploration, gSDE (Raffin et al. 2020, arXiv 2005.05719).

The noise is a linear function of the policy's latent and stays fixed for several steps, so that exploration is smooth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


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
