"""Action values of discrete actions, as numbers or as distributions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.encoders import has_weights, make_encoder
from rl_training.models.layers import ACTIVATIONS, linear
from rl_training.models.noisy import NoisyLinear

DEFAULT_HIDDEN_SIZES = (64, 64)


class Stream(nn.Module):
    """Hidden layers and an output layer; noisy ones where asked."""

    def __init__(self, sizes: tuple[int, ...], activation: str, *, noisy: bool, generator: torch.Generator) -> None:
        """`sizes` are the widths from the input to the output."""
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.is_noisy = noisy
        self.layers = nn.ModuleList(
            NoisyLinear(inputs, outputs, generator=generator)
            if noisy
            else linear(inputs, outputs, orthogonal=False, generator=generator)
            for inputs, outputs in pairwise(sizes)
        )

    def forward(self, hidden: Tensor, noisy: bool) -> Tensor:
        """Map [B, inputs] to [B, outputs]."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, noisy) if self.is_noisy else layer(hidden)
            if index < last:
                hidden = self.activation(hidden)
        return hidden


class QNetwork(nn.Module):
    """An encoder and one stream, or with `dueling` two: Q = V + A - mean A (Wang et al. 2016, arXiv 1511.06581)."""

    def __init__(
        self,
        observation_space: Space[Any],
        num_actions: int,
        *,
        outputs: int,
        hidden_sizes: tuple[int, ...] | None,
        activation: str,
        dueling: bool,
        noisy: bool,
        generator: torch.Generator,
    ) -> None:
        """`outputs` per action: 1 for a value, the number of atoms or quantiles for a distribution."""
        super().__init__()
        self.num_actions = num_actions
        self.outputs = outputs
        self.encoder = make_encoder(observation_space, orthogonal=False, generator=generator)
        if hidden_sizes is None:
            hidden_sizes = () if has_weights(self.encoder) else DEFAULT_HIDDEN_SIZES
        widths = (self.encoder.width, *hidden_sizes)
        self.advantage = Stream((*widths, num_actions * outputs), activation, noisy=noisy, generator=generator)
        self.value = Stream((*widths, outputs), activation, noisy=noisy, generator=generator) if dueling else None

    def forward(self, observation: Observation, noisy: bool = False) -> Tensor:
        """Return [B, actions, outputs]."""
        features = self.encoder(observation)
        advantage: Tensor = self.advantage(features, noisy).view(-1, self.num_actions, self.outputs)
        if self.value is None:
            return advantage
        value = self.value(features, noisy).unsqueeze(1)
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def resample(self, generator: torch.Generator) -> None:
        """Draw fresh noise for every noisy layer."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.resample(generator)
