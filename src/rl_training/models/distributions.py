"""Action distributions: small, without validation, with randomness passed in. B is the batch size."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
ILLEGAL = -1e8  # logit of a masked action: its probability is exactly 0 in single precision, its gradient finite


class Distribution(Protocol):
    """The methods that a policy needs from its action distribution."""

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw actions [B, ...]."""

    def mode(self) -> Tensor:
        """Return the most likely actions [B, ...]."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log probabilities [B] of actions."""

    def entropy(self) -> Tensor:
        """Return the entropies [B]."""


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Set the logits of illegal actions, where the mask is False, so low that their probability is 0."""
    return logits if mask is None else logits.masked_fill(~mask, ILLEGAL)


class Categorical:
    """One choice among n, given logits [B, n]."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = functional.log_softmax(logits, dim=-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sample by the exponential race: argmax of p / Exp(1) has the distribution p."""
        probs = self.log_probs.exp()
        race = torch.empty_like(probs).exponential_(generator=generator)
        return (probs / race).argmax(dim=-1)

    def mode(self) -> Tensor:
        """Return the most likely choices [B]."""
        return self.log_probs.argmax(dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log probabilities [B] of choices [B]."""
        return -functional.nll_loss(self.log_probs, action, reduction="none")

    def entropy(self) -> Tensor:
        """Return the entropies [B]."""
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)


class MultiCategorical:
    """Several independent choices, given concatenated logits [B, sum(n)]."""

    def __init__(self, logits: Tensor, choices: tuple[int, ...]) -> None:
        self.parts = [Categorical(part) for part in logits.split(choices, dim=-1)]

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw choices [B, variables]."""
        return torch.stack([part.sample(generator) for part in self.parts], dim=-1)

    def mode(self) -> Tensor:
        """Return the most likely choices [B, variables]."""
        return torch.stack([part.mode() for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log probabilities [B] of choices [B, variables]."""
        return torch.stack([part.log_prob(action[:, i]) for i, part in enumerate(self.parts)]).sum(dim=0)

    def entropy(self) -> Tensor:
        """Return the entropies [B]."""
        return torch.stack([part.entropy() for part in self.parts]).sum(dim=0)


class Bernoulli:
    """Independent binary variables, given logits [B, bits]."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sample bits [B, bits] as bytes."""
        uniform = torch.empty_like(self.logits).uniform_(generator=generator)
        return (uniform < torch.sigmoid(self.logits)).to(torch.int8)

    def mode(self) -> Tensor:
        """Return the most likely bits [B, bits] as bytes."""
        return (self.logits > 0).to(torch.int8)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log probabilities [B] of bits [B, bits]."""
        losses = functional.binary_cross_entropy_with_logits(
            self.logits, action.to(self.logits.dtype), reduction="none"
        )
        return -losses.sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return the entropies [B]."""
        probs = torch.sigmoid(self.logits)
        return functional.binary_cross_entropy_with_logits(self.logits, probs, reduction="none").sum(dim=-1)


def clipped_gaussian_log_prob(mean: Tensor, log_std: Tensor, action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the log-densities [B] of normal variables [B, d] that were clipped to [low, high].

    A bound is taken with the whole probability of the values beyond it.
    """
    std = log_std.exp()
    within = -(0.5 * ((action - mean) / std).square() + log_std + LOG_SQRT_2PI)
    below, above = torch.special.log_ndtr((low - mean) / std), torch.special.log_ndtr((mean - high) / std)
    return torch.where(action <= low, below, torch.where(action >= high, above, within)).sum(dim=-1)


class DiagonalGaussian:
    """Independent normal variables, given mean [B, d] and log standard deviation [B, d] or [d]."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std.expand_as(mean)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw actions [B, d]."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        """Return the means [B, d]."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log densities [B] of actions [B, d]."""
        standard = (action - self.mean) * torch.exp(-self.log_std)
        return -(0.5 * standard.square() + self.log_std + LOG_SQRT_2PI).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return the entropies [B]."""
        return (self.log_std + (0.5 + LOG_SQRT_2PI)).sum(dim=-1)
