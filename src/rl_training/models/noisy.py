"""Linear layers with learned noise on their weights (Fortunato et al. 2018, arXiv 1706.10295)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from rl_training.models.layers import ACTIVATIONS

INITIAL_SIGMA = 0.5


class NoisyLinear(nn.Module):
    """A linear layer with factorised Gaussian noise, which can be switched off per call."""

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
        """Draw new noise, which is used until the next call."""
        for noise in (self.noise_in, self.noise_out):
            noise.normal_(generator=generator)
            noise.copy_(noise.sign() * noise.abs().sqrt())

    def forward(self, features: Tensor, noisy: bool) -> Tensor:
        """Map features [B, inputs] to [B, outputs]."""
        if not noisy:
            return nn.functional.linear(features, self.weight, self.bias)
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return nn.functional.linear(features, weight, self.bias + self.bias_sigma * self.noise_out)


class NoisyMLP(nn.Module):
    """Noisy layers with an activation between them."""

    def __init__(self, sizes: tuple[int, ...], activation: str, *, generator: torch.Generator) -> None:
        """`sizes` are the widths from the input to the output."""
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.layers = nn.ModuleList(
            NoisyLinear(inputs, outputs, generator=generator) for inputs, outputs in pairwise(sizes)
        )

    def forward(self, hidden: Tensor, noisy: bool) -> Tensor:
        """Map [B, inputs] to [B, outputs]."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, noisy)
            if index < last:
                hidden = self.activation(hidden)
        return hidden
