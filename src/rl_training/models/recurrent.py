"""Actor and critic with a memory: recurrent layers over sequences of observations.

A memory is one vector of floats per environment, zero at the start of an episode, so that it is stored and passed on
like an observation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.distributions import Distribution
from rl_training.models.encoders import Encoder
from rl_training.models.heads import make_action_head
from rl_training.models.layers import StackedMLP, linear


class Sequences(NamedTuple):
    """Which rows of a batch follow each other in time: S sequences, one after the other."""

    lengths: Tensor  # [S] int64, at least 1 each
    memory: Tensor  # [S, memory size] before each sequence's first row


class Step(NamedTuple):
    """What the model makes of one step of every environment."""

    actor: Tensor  # [B, width] the actor's last hidden layer
    value: Tensor  # [B]
    memory: Tensor  # [B, memory size] after the step


class RecurrentActorCritic(nn.Module):
    """An encoder, recurrent layers, one stack of hidden layers each for actor and critic, and their heads."""

    def __init__(
        self,
        encoder: Encoder,
        action_space: Space[Any],
        *,
        kind: str,
        size: int,
        layers: int,
        separate_critic: bool,
        hidden_sizes: tuple[int, ...] | None = None,
        activation: str = "tanh",
        orthogonal_init: bool = True,
        log_std: str = "state_independent",
        log_std_init: float = 0.0,
        use_sde: bool = False,
        generator: torch.Generator,
    ) -> None:
        """`hidden_sizes` None: heads directly on the recurrent layers."""
        super().__init__()
        self.encoder = encoder
        make = nn.LSTM if kind == "lstm" else nn.GRU
        count = 2 if separate_critic else 1
        self.memories = nn.ModuleList(make(encoder.width, size, layers) for _ in range(count))
        for memory in self.memories:
            _initialize(memory, orthogonal=orthogonal_init, generator=generator)
        self.vectors = 2 if kind == "lstm" else 1  # of a recurrent layer's state
        self.size, self.layers = size, layers
        self.actor, self.critic = (
            StackedMLP(1, size, hidden_sizes or (), activation, orthogonal=orthogonal_init, generator=generator)
            for _ in range(2)
        )
        self.head = make_action_head(
            action_space,
            self.actor.outputs,
            log_std=log_std,
            log_std_init=log_std_init,
            use_sde=use_sde,
            orthogonal=orthogonal_init,
            generator=generator,
        )
        self.value_head = linear(self.critic.outputs, 1, orthogonal=orthogonal_init, gain=1.0, generator=generator)

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of."""
        return len(self.memories) * self.vectors * self.layers * self.size

    def step(self, observation: Observation, memory: Tensor) -> Step:
        """Take one step from observations [B, ...] and memories [B, memory size]."""
        features = self.encoder(observation).unsqueeze(0)  # [1, B, width]
        outputs, states = zip(
            *(one(features, state) for one, state in zip(self.memories, self._states(memory), strict=True)), strict=True
        )
        after = torch.cat([self._flat(state) for state in states], dim=1)
        return Step(self.actor.one(0, outputs[0][0]), self._value(outputs[-1][0]), after)

    def run(self, observation: Observation, mask: Tensor | None, sequences: Sequences) -> tuple[Distribution, Tensor]:
        """Return the policy and the values [B] of the rows of sequences, from one call of the recurrent layers.

        Sequences are padded at the back, where nothing follows; padding is left out of everything that comes after.
        """
        lengths = sequences.lengths
        features = self.encoder(observation)  # [B, width]
        longest, count = int(lengths.max()), len(lengths)
        column = torch.repeat_interleave(torch.arange(count, device=lengths.device), lengths)  # [B] the row's sequence
        first = torch.cumsum(lengths, 0) - lengths
        row = torch.arange(len(features), device=lengths.device) - first[column]  # [B] its place in the sequence
        padded = features.new_zeros(longest, count, features.shape[1])
        padded[row, column] = features
        outputs = [
            one(padded, state)[0][row, column]
            for one, state in zip(self.memories, self._states(sequences.memory), strict=True)
        ]
        return self.head(self.actor.one(0, outputs[0]), mask), self._value(outputs[-1])

    def policy_of(self, actor: Tensor, mask: Tensor | None) -> Distribution:
        """Return the policy for the actor's last hidden layer [B, width]."""
        distribution: Distribution = self.head(actor, mask)
        return distribution

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions [B, ...] in the format of the environment's action space."""
        return self.head.env_action(action)

    def _value(self, features: Tensor) -> Tensor:
        value: Tensor = self.value_head(self.critic.one(0, features)).squeeze(-1)
        return value

    def _states(self, memory: Tensor) -> list[Any]:
        """Return the states of the recurrent layers, as torch takes them, from flat memories [B, memory size]."""
        parts = memory.view(len(memory), len(self.memories), self.vectors, self.layers, self.size)
        parts = parts.permute(1, 2, 3, 0, 4).contiguous()  # [memories, vectors, layers, B, size]
        return [tuple(part) if self.vectors == 2 else part[0] for part in parts]

    def _flat(self, state: Any) -> Tensor:
        """Return one recurrent layer's state as rows of a flat memory."""
        vectors = torch.stack(state) if self.vectors == 2 else state.unsqueeze(0)  # [vectors, layers, B, size]
        return vectors.permute(2, 0, 1, 3).flatten(1)


def _initialize(memory: nn.Module, *, orthogonal: bool, generator: torch.Generator) -> None:
    """Draw a recurrent layer's weights: orthogonal with zero biases, or uniform as torch does."""
    with torch.no_grad():
        for name, weight in memory.named_parameters():
            if orthogonal and "weight" in name:
                nn.init.orthogonal_(weight, generator=generator)
            elif orthogonal:
                weight.zero_()
            else:
                bound = 1 / math.sqrt(weight.shape[-1] if "weight_hh" in name else memory.hidden_size)  # type: ignore[arg-type]
                nn.init.uniform_(weight, -bound, bound, generator=generator)
