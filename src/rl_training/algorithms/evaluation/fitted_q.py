"""Fitted Q evaluation (Le, Voloshin & Yue 2019, arXiv 1903.08738): the action values of a fixed policy from data.

Several members learn at once. Each has its own target network and weighs episodes by its own bootstrap resample, so
that their spread shows what another dataset of this kind would have given (Hao et al. 2021, arXiv 2102.03607).

M is the number of members, B the batch size, n the number of discrete actions. A policy is given by its outputs for
some observations: probabilities [B, n] of discrete actions, or K actions [K, B, size] that it samples, one if it is
deterministic.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.data.observations import Observation
from rl_training.models.continuous import StackedCritic
from rl_training.models.encoders import Encoder
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters

LAST_PART = 0.2
"""Part of the updates during which the step size falls to 0."""


@dataclass(frozen=True)
class FittedQParams:
    """Parameters of fitted Q evaluation."""

    members: int = 5
    """Number of networks, each with its own resample of the episodes."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: str = "relu"
    """Activation function of the hidden layers."""
    batch_size: int = 128
    """Transitions per update."""
    learning_rate: float = 1e-3
    """Adam's step size; in the last fifth of the updates it falls to 0, so that the estimate comes to rest."""
    tau: float = 0.05
    """Fraction by which the target networks move towards the networks at each update."""


class FittedQBatch(NamedTuple):
    """Transitions of one update."""

    observation: Observation  # [B, ...]
    action: Tensor  # [B] numbered from 0 if discrete, else [B, size]
    reward: Tensor  # [B] on the scale of `ValueScale`
    discount: Tensor  # [B] gamma, 0 where the episode terminated
    next_observation: Observation  # [B, ...]
    next_policy: Tensor  # [B, n] or [K, B, size]: the policy's outputs for the next observation
    weight: Tensor  # [M, B]


class ValueScale(NamedTuple):
    """Makes values of the dataset's size ones of the networks' size: value = center + scale * network."""

    center: float
    scale: float
    low: float
    """The least value that rewards like the dataset's can sum up to, -inf if there is no such value."""
    high: float
    """The largest one."""

    def reward(self, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the rewards for which the Bellman equation of the networks' outputs is that of the values."""
        return (reward + (discount - 1.0) * self.center) / self.scale

    def value(self, output: Tensor) -> Tensor:
        """Return the values of outputs."""
        return self.center + self.scale * output

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of outputs."""
        return (self.low - self.center) / self.scale, (self.high - self.center) / self.scale


def possible_values(lowest: float, highest: float, *, terminates: bool, gamma: float) -> tuple[float, float]:
    """Return the range of discounted sums of rewards between two numbers; episodes that end may sum to less."""
    if terminates:
        lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    if gamma == 1.0:
        return (0.0 if lowest >= 0 else -math.inf), (0.0 if highest <= 0 else math.inf)
    return lowest / (1.0 - gamma), highest / (1.0 - gamma)


def expected_value(values: Tensor, policy: Tensor) -> Tensor:
    """Return the policy's values [M, B]: of discrete actions given all [M, B, n], else the mean of [M, K, B]."""
    return (values * policy).sum(dim=2) if policy.dim() == 2 else values.mean(dim=1)


@torch.no_grad()
def fitted_q_target(next_value: Tensor, batch: FittedQBatch, bounds: tuple[float, float]) -> Tensor:
    """Return the targets [M, B], given the policy's values [M, B] of the next observations.

    They are kept within what rewards like the dataset's can sum up to: where the data does not contain the policy's
    actions, targets would otherwise grow with every update.
    """
    return (batch.reward + batch.discount * next_value).clamp(*bounds)


def fitted_q_loss(predicted: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted squared error of predictions [M, B], summed over the members."""
    return 0.5 * (weight * (predicted - target).square()).mean(dim=1).sum()


class FittedQ:
    """The members' networks, their targets and their optimizer."""

    def __init__(
        self,
        params: FittedQParams,
        encoder: Encoder,
        *,
        num_actions: int | None,
        action_size: int,
        bounds: tuple[float, float],
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        """`num_actions` of discrete actions, which need no `action_size`; None for all others."""
        self.params = params
        self.discrete = num_actions is not None
        self.bounds = bounds
        # Networks for discrete actions have no action among their inputs, but an output for each.
        self.critic = StackedCritic(
            encoder,
            0 if self.discrete else action_size,
            count=params.members,
            outputs=num_actions or 1,
            hidden_sizes=params.hidden_sizes,
            activation=params.activation,
            generator=generator,
        ).to(device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_critic.parameters())
        self.optimizer = FlatOptimizer(self.critic.parameters(), "adam")

    def taken(self, critic: StackedCritic, observation: Observation, action: Tensor) -> Tensor:
        """Return the values [M, B] of the actions."""
        if not self.discrete:
            return critic(observation, action).squeeze(2)
        values = critic(observation, action.new_empty((len(action), 0), dtype=torch.float32))
        return values.gather(2, action.view(1, -1, 1).expand(len(values), -1, 1)).squeeze(2)

    def followed(self, critic: StackedCritic, observation: Observation, policy: Tensor) -> Tensor:
        """Return the values [M, B] of the policy's actions."""
        if self.discrete:
            return expected_value(critic(observation, policy.new_empty((len(policy), 0))), policy)
        return expected_value(torch.stack([critic(observation, one).squeeze(2) for one in policy], dim=1), policy)

    def loss(self, batch: FittedQBatch) -> Tensor:
        """Return the loss of a batch."""
        with torch.no_grad():
            next_value = self.followed(self.target_critic, batch.next_observation, batch.next_policy)
        target = fitted_q_target(next_value, batch, self.bounds)
        return fitted_q_loss(self.taken(self.critic, batch.observation, batch.action), target, batch.weight)

    def update(self, batch: FittedQBatch, *, progress: float) -> Tensor:
        """Make one gradient step, move the targets, and return the loss; `progress` is the part of updates made."""
        loss = self.loss(batch)
        learning_rate = self.params.learning_rate * min(1.0, (1.0 - progress) / LAST_PART)
        self.optimizer.step(loss, learning_rate=learning_rate, max_grad_norm=None)
        with torch.no_grad():
            self.target_values.lerp_(self.optimizer.values, self.params.tau)
        return loss.detach()
