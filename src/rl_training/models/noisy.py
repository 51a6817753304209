"""Linear layers with learned noise on their weights (Fortunato et al. 2018, arXiv 1706.10295)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

INITIAL_SIGMA = 0.5


class NoisyLinear(nn.Module):
    """Factorised Gaussian noise; the layer is deterministic where it is told not to use it."""

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, inputs: int, outputs: int, *, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=generator))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), INITIAL_SIGMA * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), INITIAL_SIGMA / math.sqrt(outputs)))
        self.register_buffer("noise_in", torch.zeros(inputs))
        self.register_buffer("noise_out", torch.zeros(outputs))

    @torch.no_grad()
    def resample(self, generator: torch.Generator) -> None:
        """Draw fresh noise, which stays until the next call."""
        for noise in (self.noise_in, self.noise_out):
            noise.normal_(generator=generator)
            noise.copy_(noise.sign() * noise.abs().sqrt())

    def forward(self, features: Tensor, noisy: bool) -> Tensor:
        """Map features [B, inputs] to [B, outputs]."""
        if not noisy:
            return nn.functional.linear(features, self.weight, self.bias)
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return nn.functional.linear(features, weight, self.bias + self.bias_sigma * self.noise_out)
