"""Actor and critic on any supported observation and action space."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.distributions import Distribution
from rl_training.models.encoders import Encoder, has_weights
from rl_training.models.heads import make_action_head
from rl_training.models.layers import StackedMLP, linear

ACTOR = 0  # index of the actor's stack; the critic's is the second
DEFAULT_HIDDEN_SIZES = (64, 64)


class ActorCritic(nn.Module):
    """A shared encoder, one stack with the hidden layers of actor and critic, an action head and a value head."""

    def __init__(
        self,
        encoder: Encoder,
        action_space: Space[Any],
        *,
        hidden_sizes: tuple[int, ...] | None = None,
        activation: str = "tanh",
        orthogonal_init: bool = True,
        log_std: str = "state_independent",
        log_std_init: float = 0.0,
        use_sde: bool = False,
        generator: torch.Generator,
    ) -> None:
        """`hidden_sizes` None: the default widths after an encoder without weights, none after one with weights."""
        super().__init__()
        self.encoder = encoder
        if hidden_sizes is None:
            hidden_sizes = () if has_weights(self.encoder) else DEFAULT_HIDDEN_SIZES
        self.stacks = StackedMLP(
            2, self.encoder.width, hidden_sizes, activation, orthogonal=orthogonal_init, generator=generator
        )
        self.head = make_action_head(
            action_space,
            self.stacks.outputs,
            log_std=log_std,
            log_std_init=log_std_init,
            use_sde=use_sde,
            orthogonal=orthogonal_init,
            generator=generator,
        )
        self.value_head = linear(self.stacks.outputs, 1, orthogonal=orthogonal_init, gain=1.0, generator=generator)

    def forward(self, observation: Observation, mask: Tensor | None) -> tuple[Distribution, Tensor]:
        """Return the policy and the values [B] for observations [B, ...]."""
        actor, critic = self.stacks(self.encoder(observation)).unbind(0)  # each [B, width]
        return self.head(actor, mask), self.value_head(critic).squeeze(-1)

    def policy_latent(self, observation: Observation) -> Tensor:
        """Return the actor's last hidden layer [B, width]."""
        return self.stacks.one(ACTOR, self.encoder(observation))

    def policy(self, observation: Observation, mask: Tensor | None) -> Distribution:
        """Return the policy without the values."""
        distribution: Distribution = self.head(self.policy_latent(observation), mask)
        return distribution

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions [B, ...] in the format of the environment's action space."""
        return self.head.env_action(action)
