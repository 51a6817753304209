"""A policy for any action space that is trained by the likelihood of given actions. B is the batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.continuous import ActionScale
from rl_training.models.discrete import DiscreteActions
from rl_training.models.distributions import DiagonalGaussian, Distribution, clipped_gaussian_log_prob
from rl_training.models.encoders import Encoder
from rl_training.models.heads import make_action_head
from rl_training.models.layers import StackedMLP, linear

LOG_STD_BOUNDS = (-5.0, 2.0)


class BoundedGaussianHead(nn.Module):
    """Normal distributions of actions in [-1, 1]: means squashed by tanh, one learned deviation per dimension."""

    def __init__(self, space: Space[Any], latent: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.scale = ActionScale(space)
        self.linear = linear(latent, self.scale.size, orthogonal=False, generator=generator)
        self.log_std = nn.Parameter(torch.zeros(self.scale.size))  # before it is squashed into its bounds

    def forward(self, latent: Tensor, mask: Tensor | None) -> DiagonalGaussian:
        """Return the distributions for latents [B, latent]."""
        low, high = LOG_STD_BOUNDS
        return DiagonalGaussian(torch.tanh(self.linear(latent)), low + (high - low) * torch.sigmoid(self.log_std))

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions in the environment's bounds."""
        return self.scale.to_env(action)

    def env_log_prob(self, distribution: DiagonalGaussian, action: np.ndarray) -> Tensor | None:
        """Return the log-densities [B] of clipped actions in the environment's format; None for integers."""
        if self.scale.whole:
            return None
        device = self.log_std.device
        taken, bound = torch.as_tensor(self.scale.from_env(action), device=device), torch.ones((), device=device)
        within = taken.abs() < 1.0  # a bound has a probability, which no stretch changes
        stretch = (within * self.scale.log_stretch(device)).sum(dim=1)
        return clipped_gaussian_log_prob(distribution.mean, distribution.log_std, taken, -bound, bound) - stretch


class PolicyNetwork(nn.Module):
    """An encoder, hidden layers, and the head of the action space."""

    def __init__(
        self,
        encoder: Encoder,
        action_space: Space[Any],
        *,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.hidden = StackedMLP(1, self.encoder.width, hidden_sizes, activation, orthogonal=False, generator=generator)
        self.head: Any
        if isinstance(action_space, spaces.Box):
            self.head = BoundedGaussianHead(action_space, self.hidden.outputs, generator=generator)
        else:
            self.head = make_action_head(
                action_space,
                self.hidden.outputs,
                log_std="state_independent",
                log_std_init=0.0,
                use_sde=False,
                orthogonal=False,
                generator=generator,
            )

    def forward(self, observation: Observation, mask: Tensor | None = None) -> Distribution:
        """Return the distributions over actions."""
        distribution: Distribution = self.head(self.hidden.one(0, self.encoder(observation)), mask)
        return distribution


def stored_actions(space: Space[Any], action: np.ndarray) -> np.ndarray:
    """Return environment actions [..., *shape] as networks represent them, with at most one axis per action."""
    if isinstance(space, spaces.Box):
        return ActionScale(space).from_env(action)
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(space).from_env(action)
    leading = action.shape[: action.ndim - len(space.shape or ())]
    if isinstance(space, spaces.MultiDiscrete):
        return (action.astype(np.int64) - space.start).reshape(*leading, -1)
    return action.astype(np.int8).reshape(*leading, -1)
