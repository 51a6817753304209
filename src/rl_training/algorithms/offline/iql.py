"""Implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169), for continuous and discrete actions.

No value of an action outside of the dataset is ever used: V approximates an upper expectile of the critics' values of
the dataset's actions, the critics bootstrap from V, and the policy imitates actions by their advantage.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.offline.policy_learner import PolicyLearner
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.offline_params import OfflineValueParams
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, rules, scheduled
from rl_training.experiment.schedules import Schedule, ScheduleSpec
from rl_training.models.continuous import StackedCritic
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters
from rl_training.models.policy_network import PolicyNetwork
from rl_training.models.q_network import StackedQNetwork, ValueNetwork

COSINE = Schedule(type="cosine")


@dataclass(frozen=True)
class IQLParams(OfflineValueParams):
    """Parameters of implicit Q-learning."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("actor_learning_rate"),
        **rules(FREE, "expectile", "beta", "max_weight", "tau", "max_grad_norm", "optimizer_eps"),
        **rules(NETWORKS, "num_critics", "hidden_sizes", "activation"),
    }

    actor_learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Step size of the actor's optimizer; learning_rate is that of critics and value."""
    actor_learning_rate_schedule: ScheduleSpec | None = COSINE
    """How the actor's learning rate changes over the run; it starts at the fixed value."""
    actor_learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Gradient steps over which the actor's learning rate rises linearly from 0."""
    normalize_reward: Literal["none", "return_range"] = "return_range"
    """`return_range` divides rewards by the difference between the highest and lowest return of the dataset's episodes
    and multiplies them by 1000."""
    expectile: Annotated[float, Interval(gt=0, lt=1)] = 0.7
    """Expectile of the critics' values that V learns: 0.5 is the mean, towards 1 the maximum over the dataset."""
    beta: Annotated[float, Ge(0)] = 3.0
    """Inverse temperature: actions are imitated with the weight exp(beta * advantage)."""
    max_weight: Annotated[float, Gt(0)] = 100.0
    """The weight of an action is clipped to this."""
    tau: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """Fraction by which the target critics move towards the critics at each update."""
    num_critics: Annotated[int, Ge(1)] = 2
    """Number of critics; the smallest of their values is used."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers of actor, critics and value."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Gradients are clipped to this norm; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The scheduled scalars in use."""
        return ("learning_rate", "actor_learning_rate")

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        return (2 + self.num_critics) * dense_weights(inputs, *self.hidden_sizes, 1)


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Return the mean of squared differences [B], weighted by `expectile` above zero and by the rest below."""
    weight = torch.where(difference < 0, 1.0 - expectile, expectile)
    return (weight * difference.square()).mean()


def iql_value_loss(value: Tensor, critic_value: Tensor, expectile: float) -> Tensor:
    """Return the loss of V's predictions [B], given the target critics' values [B] of the dataset's actions."""
    return expectile_loss(critic_value - value, expectile)


def iql_critic_loss(predicted: Tensor, next_value: Tensor, batch: ReplayBatch) -> Tensor:
    """Return the loss of the critics' predictions [critics, B], given V's values [B] of the next states."""
    target = batch.reward + batch.discount * next_value
    return (predicted - target).square().mean(dim=1).sum()


def iql_actor_loss(log_prob: Tensor, advantage: Tensor, beta: float, max_weight: float) -> Tensor:
    """Return the loss of advantage-weighted imitation, given log-probabilities and advantages [B]."""
    weight = (beta * advantage).exp().clamp(max=max_weight)
    return -(weight * log_prob).mean()


class IQL(PolicyLearner):
    """Actor, critics, target critics and a state value; critics and value share an optimizer."""

    params: IQLParams
    parts = ("actor", "critic", "value", "target_critic", "actor_optimizer", "critic_optimizer")

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the networks and the optimizers."""
        self.action_space = action_space
        self.actor: Any = self.make_actor(observation_space, action_space, generator).to(self.device)
        self.critic: Any = self.make_critic(observation_space, action_space, generator).to(self.device)
        self.value: Any = self.make_value(observation_space, generator).to(self.device)
        self.target_critic: Any = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_critic.parameters())
        eps = self.params.optimizer_eps
        self.actor_optimizer = FlatOptimizer(self.actor.parameters(), "adam", eps=eps)
        joint = chain(self.critic.parameters(), self.value.parameters())
        self.critic_optimizer = FlatOptimizer(joint, "adam", eps=eps)
        self.critic_values = self.critic_optimizer.values[: len(self.target_values)]

    def make_actor(
        self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator
    ) -> nn.Module:
        """Return the policy: it maps observations to a distribution over actions."""
        encoder = self.make_encoder(observation_space, orthogonal=False, generator=generator)
        return PolicyNetwork(encoder, action_space, **self._layers(), generator=generator)

    def make_critic(
        self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator
    ) -> nn.Module:
        """Return the critics: they map observations and actions [B, ...] to values [critics, B, 1]."""
        encoder = self.make_encoder(observation_space, orthogonal=False, generator=generator)
        count = self.params.num_critics
        if isinstance(action_space, spaces.Discrete):
            return StackedQNetwork(encoder, int(action_space.n), count=count, **self._layers(), generator=generator)
        size = int(np.prod(action_space.shape or ()))
        return StackedCritic(encoder, size, count=count, outputs=1, **self._layers(), generator=generator)

    def make_value(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the state value: it maps observations to values [B]."""
        encoder = self.make_encoder(observation_space, orthogonal=False, generator=generator)
        return ValueNetwork(encoder, **self._layers(), generator=generator)

    def _layers(self) -> dict[str, Any]:
        return {"hidden_sizes": self.params.hidden_sizes, "activation": self.params.activation}

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the networks do not return what the losses need."""
        policy = self.actor(observation)
        action = policy.mode()
        check_shape(self.actor, "log-probabilities", policy.log_prob(action), ROWS)
        check_shape(self.critic, "values", self.critic(observation, action), self.params.num_critics, ROWS, 1)
        check_shape(self.value, "values", self.value(observation), ROWS)

    def critic_loss(self, batch: ReplayBatch, critic_value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of critics and value, and metrics, given the target critics' values [B]."""
        with torch.no_grad():
            next_value = self.value(batch.next_observation)
        predicted = self.critic(batch.observation, batch.action).squeeze(2)
        critic_loss = iql_critic_loss(predicted, next_value, batch)
        value = self.value(batch.observation)
        value_loss = iql_value_loss(value, critic_value, self.params.expectile)
        return critic_loss + value_loss, {
            "loss_critic": critic_loss.detach(),
            "loss_value": value_loss.detach(),
            "q_mean": predicted.detach().mean(),
            "v_mean": value.detach().mean(),
        }

    def actor_loss(self, batch: ReplayBatch, critic_value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss and metrics, given the target critics' values [B]."""
        with torch.no_grad():
            advantage = critic_value - self.value(batch.observation)
        log_prob = self.actor(batch.observation, batch.mask).log_prob(batch.action)
        loss = iql_actor_loss(log_prob, advantage, self.params.beta, self.params.max_weight)
        return loss, {"loss_actor": loss.detach(), "advantage_mean": advantage.mean()}

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Make one gradient step of critics and value, one of the actor, and move the target critics."""
        limit = self.params.max_grad_norm
        with torch.no_grad():
            critic_value = self.target_critic(batch.observation, batch.action).amin(dim=0).squeeze(1)
        loss, metrics = self.critic_loss(batch, critic_value)
        rate = controls["learning_rate"]
        metrics["gradient_norm"] = self.critic_optimizer.step(loss, learning_rate=rate, max_grad_norm=limit)
        loss, parts = self.actor_loss(batch, critic_value)
        self.actor_optimizer.step(loss, learning_rate=controls["actor_learning_rate"], max_grad_norm=limit)
        with torch.no_grad():
            self.target_values.lerp_(self.critic_values, self.params.tau)
        return metrics | parts
