"""Networks with batch renormalisation (Ioffe 2017, arXiv 1702.03275), as CrossQ uses it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rl_training.models.layers import StackedMLP, parameter_pairs

# The constants of CrossQ's published code.
EPSILON = 1e-3  # added to variances
RATE = 0.01  # step of the running statistics per training pass
MAX_RATIO, MAX_OFFSET = 3.0, 5.0  # bounds of the correction from batch statistics to running statistics


class _Renormalize(torch.autograd.Function):
    """Normalises features [count, B, width] by the statistics of the batch, through which gradients flow.

    Returns ((inputs - mean) / std * ratio + offset) * scale + shift. Its gradient is written out, since autograd takes
    about as long for that of the statistics as for the matrix products of a network.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        scale: Tensor,
        shift: Tensor,
        centred: Tensor,
        var: Tensor,
        ratio: Tensor,
        offset: Tensor,
    ) -> Tensor:
        """Normalise `inputs`, given them less their mean, their variance and the correction, which are constants."""
        inverse_std = (var + EPSILON).rsqrt()
        ctx.save_for_backward(centred, inverse_std, ratio, offset, scale)
        return torch.addcmul(shift + scale * offset, centred, scale * ratio * inverse_std)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to inputs, scale and shift."""
        centred, inverse_std, ratio, offset, scale = ctx.saved_tensors
        weight, rows = scale * ratio * inverse_std, grad.shape[1]
        total = grad.sum(1, keepdim=True)
        projected = (grad * centred).sum(1, keepdim=True) * inverse_std  # on the normalised inputs
        grad_inputs = torch.addcmul(weight * total / -rows, grad, weight)
        grad_inputs.addcmul_(centred, weight * inverse_std * projected / -rows)
        return grad_inputs, projected * ratio + total * offset, total, None, None, None, None


class BatchRenorm(nn.Module):
    """Normalises each feature of `count` stacked networks, then scales and shifts it.

    In training mode, it normalises by the statistics of the batch, through which gradients flow, and corrects the
    result to that of the running statistics, within bounds. The first `warmup` passes skip the correction, which is
    plain batch normalisation. In evaluation mode, it normalises by the running statistics and does not change them.
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
            weight = self.scale * (self.var + EPSILON).rsqrt()
            return torch.addcmul(self.shift - self.mean * weight, inputs, weight)
        with torch.no_grad():
            mean = inputs.mean(1, keepdim=True)
            centred = inputs - mean
            var = centred.square().mean(1, keepdim=True)
            correction = self._correction(mean, var)
            self._follow(mean, var)
        normalized: Tensor = _Renormalize.apply(inputs, self.scale, self.shift, centred, var, *correction)
        return normalized

    def _correction(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor and the offset that correct batch statistics to the running statistics."""
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
    """Stacked perceptrons with batch renormalisation of inputs and hidden layers."""

    def __init__(
        self, count: int, inputs: int, hidden_sizes: tuple[int, ...], *arguments: Any, warmup: int, **settings: Any
    ) -> None:
        """Takes the arguments of `StackedMLP`, and the number of training passes before running statistics are used."""
        super().__init__(count, inputs, hidden_sizes, *arguments, **settings)
        self.norms = nn.ModuleList(BatchRenorm(count, width, warmup=warmup) for width in (inputs, *hidden_sizes))

    def forward(self, features: Tensor, networks: Tensor | None = None) -> Tensor:
        """Map features [B, inputs], shared by all networks, to [count, B, outputs]; there is no choice of networks."""
        assert networks is None
        norms = iter(self.norms)
        hidden = features.expand(self.count, *features.shape)
        for layer, (weight, bias) in enumerate(parameter_pairs(self)):
            hidden = torch.baddbmm(bias, next(norms)(hidden), weight)
            if layer < self.activated:
                hidden = self.activation(hidden)
        for norm in norms:  # without an output layer, the last hidden layer still has to be normalised
            hidden = norm(hidden)
        return hidden

    def one(self, network: int, features: Tensor) -> Tensor:
        """Map features [B, inputs] through a single network to [B, outputs]."""
        outputs: Tensor = self(features)[network]
        return outputs
