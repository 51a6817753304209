"""Values of states, and of discrete actions by several critics. B is the batch size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.encoders import Encoder
from rl_training.models.layers import StackedMLP


class ValueNetwork(nn.Module):
    """One value per observation."""

    def __init__(
        self, encoder: Encoder, *, hidden_sizes: tuple[int, ...], activation: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = StackedMLP(
            1, self.encoder.width, hidden_sizes, activation, orthogonal=False, generator=generator, outputs=1
        )

    def forward(self, observation: Observation) -> Tensor:
        """Return values [B]."""
        return self.network.one(0, self.encoder(observation)).squeeze(1)


class StackedQNetwork(nn.Module):
    """Several critics of state and discrete action, evaluated together."""

    def __init__(
        self,
        encoder: Encoder,
        num_actions: int,
        *,
        count: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.networks = StackedMLP(
            count,
            self.encoder.width,
            hidden_sizes,
            activation,
            orthogonal=False,
            generator=generator,
            outputs=num_actions,
        )

    def forward(self, observation: Observation, action: Tensor) -> Tensor:
        """Return the values [count, B, 1] of actions [B]."""
        every = self.networks(self.encoder(observation))  # [count, B, actions]
        chosen: Tensor = every.gather(2, action.view(1, -1, 1).expand(every.shape[0], -1, 1))
        return chosen
