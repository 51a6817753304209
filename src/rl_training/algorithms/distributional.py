"""Losses for return distributions: categorical (C51) and quantile (QR-DQN). B is the batch size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def project_categorical(probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Shift a categorical distribution by reward + discount * z and project it back onto its support.

    `probs` [B, atoms], `reward` and `discount` [B], `support` [atoms], evenly spaced (Bellemare et al. 2017,
    arXiv 1707.06887, algorithm 1). Returns [B, atoms].
    """
    atoms = support.shape[0]
    spacing = (support[-1] - support[0]) / (atoms - 1)
    moved = (reward.unsqueeze(1) + discount.unsqueeze(1) * support).clamp(support[0], support[-1])
    position = (moved - support[0]) / spacing  # [B, atoms] in units of atoms
    # Each atom receives from every shifted atom closer than one spacing a share that falls linearly with the distance.
    atom = torch.arange(atoms, device=probs.device, dtype=probs.dtype)
    share = (1 - (position.unsqueeze(2) - atom).abs()).clamp_min(0)  # [B, moved, atoms]
    return torch.bmm(probs.unsqueeze(1), share).squeeze(1)


def categorical_loss(logits: Tensor, target_probs: Tensor) -> Tensor:
    """Return the cross-entropies [B] between predictions [B, atoms] and target distributions [B, atoms]."""
    return -(target_probs * functional.log_softmax(logits, dim=-1)).sum(dim=-1)


def quantile_huber_loss(quantiles: Tensor, target: Tensor) -> Tensor:
    """Return the quantile Huber losses [B] (Dabney et al. 2018, arXiv 1710.10044, equation 10).

    `quantiles` [B, N] predicted at the midpoints of N equal fractions, `target` [B, M] samples of the return.
    Summed over the predicted quantiles, averaged over the targets.
    """
    count = quantiles.shape[1]
    fraction = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, N, M]
    huber = functional.smooth_l1_loss(
        quantiles.unsqueeze(2).expand_as(error), target.unsqueeze(1).expand_as(error), reduction="none"
    )
    weight = (fraction.view(1, -1, 1) - (error.detach() < 0).to(error.dtype)).abs()
    return (weight * huber).mean(dim=2).sum(dim=1)
