"""Scalars as distributions over integers, after a transform that compresses large ones (Schrittwieser et al. 2020).

A number x becomes y = sign(x)(sqrt(|x| + 1) - 1) + 0.001x, and y is represented by its two neighbouring integers in
-S..S. A network predicts logits over the 2S + 1 integers; their mean, transformed back, is the predicted number.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LINEAR = 0.001  # keeps the transform invertible and Lipschitz


def squash(x: Tensor) -> Tensor:
    """Return sign(x)(sqrt(|x| + 1) - 1) + 0.001x."""
    return torch.sign(x) * (torch.sqrt(x.abs() + 1) - 1) + _LINEAR * x


def unsquash(y: Tensor) -> Tensor:
    """Return the x that `squash` maps to y."""
    # The usual formula subtracts nearly equal numbers; this one does not.
    shifted = y.abs() + 1 + _LINEAR
    root = 2 * shifted / (torch.sqrt(1 + 4 * _LINEAR * shifted) + 1)
    return torch.sign(y) * (root * root - 1)


def expected_scalar(logits: Tensor) -> Tensor:
    """Return the numbers [...] that logits [..., 2S + 1] represent."""
    size = logits.shape[-1] // 2
    support = torch.arange(-size, size + 1, dtype=logits.dtype, device=logits.device)
    return unsquash(logits.softmax(-1) @ support)


def scalar_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy [...] of logits [..., 2S + 1] with targets split between the two nearest integers."""
    size = logits.shape[-1] // 2
    place = squash(target).clamp(-size, size) + size
    lower = place.floor().clamp(max=2 * size - 1)
    share = place - lower  # weight of the upper integer
    index = lower.long().unsqueeze(-1)
    log_probability = logits.log_softmax(-1)
    below = log_probability.gather(-1, index).squeeze(-1)
    above = log_probability.gather(-1, index + 1).squeeze(-1)
    return -(below + share * (above - below))


def clipped(target: Tensor, size: int) -> Tensor:
    """Return 1 for targets beyond the support -S..S and 0 for the others."""
    return (squash(target).abs() > size).float()
