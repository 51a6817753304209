"""Actor and critic on any supported observation and action space."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.distributions import Distribution
from rl_training.models.encoders import has_weights, make_encoder
from rl_training.models.heads import make_action_head
from rl_training.models.layers import StackedMLP, linear, linear_backward

ACTOR = 0  # the first of the two stacks; the second is the critic's
DEFAULT_HIDDEN_SIZES = (64, 64)


class Trace(NamedTuple):
    """What the networks made of a batch, for `backward`."""

    hidden: list[Tensor]  # the stacks' trace
    output: Tensor  # [B, outputs] of the action head's layer
    value: Tensor  # [B]


class ActorCritic(nn.Module):
    """A shared encoder, two hidden stacks evaluated as one, an action head and a value head."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden_sizes: tuple[int, ...] | None,
        activation: str,
        orthogonal_init: bool,
        log_std: str,
        log_std_init: float,
        use_sde: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(observation_space, orthogonal=orthogonal_init, generator=generator)
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
        """Return the policy alone."""
        distribution: Distribution = self.head(self.policy_latent(observation), mask)
        return distribution

    @property
    def plain(self) -> bool:
        """Whether `backward` knows the gradient of all weights."""
        return not has_weights(self.encoder) and self.stacks.slope is not None and self.head.plain

    def trace(self, observation: Observation) -> Trace:
        """Return what `forward` makes its distributions of, without autograd, for `backward`."""
        hidden = self.stacks.trace(self.encoder(observation))
        actor, critic = hidden[-1].unbind(0)
        return Trace(hidden, self.head.linear(actor), self.value_head(critic).squeeze(-1))

    def backward(self, trace: Trace, by_policy: tuple[Tensor, ...], by_value: Tensor) -> None:
        """Overwrite the gradients, given a loss's by the policy, as its distribution tells, and by the values [B]."""
        actor, critic = trace.hidden[-1].unbind(0)
        by_latent = self.stacks.room(trace.hidden[-1])
        self.head.backward(actor, by_policy, out=by_latent[ACTOR])
        linear_backward(self.value_head, critic, by_value.unsqueeze(1), out=by_latent[1 - ACTOR])
        self.stacks.backward(trace.hidden, by_latent)
