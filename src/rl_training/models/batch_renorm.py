"""Networks whose layers see batch-renormalised inputs (Ioffe 2017, arXiv 1702.03275), as CrossQ needs them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models.layers import StackedMLP, parameter_pairs

# Of CrossQ's published code.
EPSILON = 1e-3  # added to variances
RATE = 0.01  # how far the running statistics move at a training pass
MAX_RATIO, MAX_OFFSET = 3.0, 5.0  # how far a batch may seem to differ from the running statistics


class BatchRenorm(nn.Module):
    """Normalises each feature of `count` stacked networks, then scales and shifts it.

    In training mode by the statistics of the batch, which gradients pass through, corrected so that the outcome is that
    of the running statistics as long as the two do not lie too far apart. The first `warmup` passes go without the
    correction, which is plain batch normalisation. In evaluation mode by the running statistics, which stay as
    they are.
    """

    def __init__(self, count: int, width: int, *, warmup: int) -> None:
        super().__init__()
        self.warmup = warmup
        self.scale = nn.Parameter(torch.ones(count, 1, width))
        self.shift = nn.Parameter(torch.zeros(count, 1, width))
        self.mean: Tensor
        self.var: Tensor
        self.passes: Tensor
        self.register_buffer("mean", torch.zeros(count, 1, width))
        self.register_buffer("var", torch.ones(count, 1, width))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [count, B, width] to the same shape."""
        if not self.training:
            slope = self.scale * (self.var + EPSILON).rsqrt()
            return torch.addcmul(self.shift - self.mean * slope, inputs, slope)
        var, mean = torch.var_mean(inputs, dim=1, correction=0, keepdim=True)
        ratio, offset = self._correction(mean.detach(), var.detach())
        self._follow(mean.detach(), var.detach())
        # (inputs - mean) / std * ratio + offset, scaled and shifted, with one operation of the inputs' size.
        slope = self.scale * ratio * (var + EPSILON).rsqrt()
        return torch.addcmul(self.shift + self.scale * offset - mean * slope, inputs, slope)

    def _correction(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor and the offset that lead from the batch's statistics to the running ones."""
        warm = self.passes >= self.warmup
        max_ratio, max_offset = torch.where(warm, MAX_RATIO, 1.0), torch.where(warm, MAX_OFFSET, 0.0)
        running_std = (self.var + EPSILON).sqrt()
        ratio = ((var + EPSILON).sqrt() / running_std).clamp(1.0 / max_ratio, max_ratio)
        return ratio, ((mean - self.mean) / running_std).clamp(-max_offset, max_offset)

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        self.mean.lerp_(mean, RATE)
        self.var.lerp_(var, RATE)
        self.passes.add_(1)


class RenormalizedMLP(StackedMLP):
    """Stacked perceptrons whose inputs and hidden layers are batch-renormalised."""

    def __init__(
        self, count: int, inputs: int, hidden_sizes: tuple[int, ...], *arguments: Any, warmup: int, **settings: Any
    ) -> None:
        """Take what stacked perceptrons take, and the training passes before running statistics count."""
        super().__init__(count, inputs, hidden_sizes, *arguments, **settings)
        self.norms = nn.ModuleList(BatchRenorm(count, width, warmup=warmup) for width in (inputs, *hidden_sizes))

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs]."""
        norms = iter(self.norms)
        hidden = features.expand(self.count, *features.shape)
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
            hidden = torch.baddbmm(bias, next(norms)(hidden), weight)
            if layer < self.activated:
                hidden = self.activation(hidden)
        for norm in norms:  # without an output layer the last hidden one is still to be normalised
            hidden = norm(hidden)
        return hidden

    def one(self, network: int, features: Tensor) -> Tensor:
        """Map features [B, inputs] through a single network to [B, outputs]."""
        outputs: Tensor = self(features)[network]
        return outputs
