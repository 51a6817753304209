"""Twin delayed DDPG (Fujimoto et al. 2018, arXiv 1802.09477), and DDPG as its special case.

DDPG (Lillicrap et al. 2016, arXiv 1509.02971) is TD3 with one critic, no delay and no smoothing of the target policy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.replay_params import ReplayParams
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, rules
from rl_training.models.continuous import ActionScale, DeterministicActor, StackedCritic
from rl_training.models.distributions import clipped_gaussian_log_prob
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters


@dataclass(frozen=True)
class DeterministicParams:
    """Parameters of actor and critics, whether they learn from a replay or from a dataset."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}
    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "tau", "policy_delay", "exploration_noise", "target_noise", "target_noise_clip"),
        **rules(FREE, "max_grad_norm", "optimizer_eps"),
        **rules(NETWORKS, "num_critics", "hidden_sizes", "activation", "critic_layer_norm"),
    }

    tau: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """Fraction by which the target networks move at each update of the actor."""
    num_critics: Annotated[int, Ge(1)] = 2
    """Number of critics; the smallest of their values is used in the target."""
    policy_delay: Annotated[int, Ge(1)] = 2
    """Updates of the critics per update of the actor."""
    exploration_noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the exploration noise on actions, which lie in [-1, 1]."""
    target_noise: Annotated[float, Ge(0)] = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: Annotated[float, Ge(0)] = 0.5
    """The noise on the target policy's actions is clipped to this absolute value."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (400, 300)
    """Widths of the hidden layers of actor and critics."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    critic_layer_norm: bool = False
    """Normalise the critics' hidden layers (LayerNorm), which limits values of actions that no data supports."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Gradients are clipped to this norm; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        critics = self.num_critics * dense_weights(inputs + outputs, *self.hidden_sizes, 1)
        return dense_weights(inputs, *self.hidden_sizes, outputs) + critics


@dataclass(frozen=True)
class TD3Params(DeterministicParams, ReplayParams):
    """Parameters of TD3."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Step size of the optimizers."""


@dataclass(frozen=True)
class DDPGParams(TD3Params):
    """Parameters of DDPG."""

    num_critics: Annotated[int, Ge(1)] = 1
    """Number of critics; the smallest of their values is used in the target."""
    policy_delay: Annotated[int, Ge(1)] = 1
    """Updates of the critics per update of the actor."""
    target_noise: Annotated[float, Ge(0)] = 0.0
    """Standard deviation of the noise on the target policy's actions."""


@torch.no_grad()
def td3_target(
    target_critic: StackedCritic,
    target_actor: DeterministicActor,
    batch: ReplayBatch,
    noise: Tensor,
    params: DeterministicParams,
) -> Tensor:
    """Return the critics' targets [B]; `noise` [B, size] smooths the target policy."""
    action = smoothed_action(target_actor, batch.next_observation, noise, params)
    value = target_critic(batch.next_observation, action).amin(dim=0).squeeze(1)
    return batch.reward + batch.discount * value


def smoothed_action(
    actor: DeterministicActor, observation: Observation, noise: Tensor, params: DeterministicParams
) -> Tensor:
    """Return the actor's actions [B, size] with clipped noise; `noise` [B, size] is standard normal."""
    smoothing = (noise * params.target_noise).clamp(-params.target_noise_clip, params.target_noise_clip)
    return (actor(observation) + smoothing).clamp(-1.0, 1.0)


def td3_critic_loss(critic: StackedCritic, batch: ReplayBatch, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the critics' loss for targets [B], and the mean predicted value."""
    predicted = critic(batch.observation, batch.action).squeeze(2)  # [critics, B]
    return (predicted - target).square().mean(dim=1).sum(), predicted.detach().mean()


def td3_actor_loss(critic: StackedCritic, actor: DeterministicActor, observation: Observation) -> Tensor:
    """Return minus the mean value that the first critic gives to the actor's actions."""
    return -critic.first(observation, actor(observation)).mean()


class TD3(OffPolicyAlgorithm):
    """Actor, critics and their target networks."""

    params: DeterministicParams
    parts = ("actor", "critic", "target_actor", "target_critic", "actor_optimizer", "critic_optimizer", "updates")
    acting_networks = ("actor",)

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make actor and critics, their target networks and optimizers."""
        params = self.params
        self.scale = ActionScale(action_space)
        self.actor: Any = self.make_actor(observation_space, generator).to(self.device)
        self.critic: Any = self.make_critic(observation_space, generator).to(self.device)
        self.target_actor: Any = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic: Any = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_actor_values = flatten_parameters(self.target_actor.parameters())
        self.target_critic_values = flatten_parameters(self.target_critic.parameters())
        self.actor_optimizer = FlatOptimizer(self.actor.parameters(), "adam", eps=params.optimizer_eps)
        self.critic_optimizer = FlatOptimizer(self.critic.parameters(), "adam", eps=params.optimizer_eps)
        self.updates = 0

    def make_actor(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the policy: it maps observations to actions [B, size] within [-1, 1]."""
        return DeterministicActor(
            self.make_encoder(observation_space, orthogonal=False, generator=generator),
            self.scale.size,
            hidden_sizes=self.params.hidden_sizes,
            activation=self.params.activation,
            generator=generator,
        )

    def make_critic(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the critics: they map observations and actions [B, size] to values [critics, B, 1]."""
        return StackedCritic(
            self.make_encoder(observation_space, orthogonal=False, generator=generator),
            self.scale.size,
            count=self.params.num_critics,
            outputs=1,
            hidden_sizes=self.params.hidden_sizes,
            activation=self.params.activation,
            layer_norm=self.params.critic_layer_norm,
            generator=generator,
        )

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the actor does not return actions, or the critics do not return values."""
        action = self.actor(observation)
        check_shape(self.actor, "actions", action, ROWS, self.scale.size)
        check_shape(self.critic, "values", self.critic(observation, action), self.params.num_critics, ROWS, 1)
        check_shape(self.critic, "the first critic's values", self.critic.first(observation, action), ROWS, 1)

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return exploratory actions [num_envs, size] within [-1, 1]."""
        return self._explore(self.actor(observation), generator)

    def random_actions(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return uniformly random actions [count, size] within [-1, 1]."""
        return self.scale.random(count, generator)

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the policy's actions, with exploration noise if a generator is given."""
        action: Tensor = self.actor(observation)
        return action if generator is None else self._explore(action, generator)

    def _explore(self, action: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.empty_like(action).normal_(generator=generator)
        return (action + self.params.exploration_noise * noise).clamp(-1.0, 1.0)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions rescaled from [-1, 1] to the space's bounds."""
        return self.scale.to_env(action)

    def stored_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions [..., size] of the environment scaled to [-1, 1]."""
        return self.scale.from_env(action)

    @torch.no_grad()
    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-densities [B] of noisy actions in the environment's format; None for integers."""
        noise = self.params.exploration_noise
        if self.scale.whole or not noise:
            return None
        mean, bound = self.actor(observation), torch.ones((), device=self.device)
        taken, log_std = (
            torch.as_tensor(self.stored_action(action), device=self.device),
            torch.full_like(mean, math.log(noise)),
        )
        within = taken.abs() < 1.0  # a bound has a probability, which no stretch changes
        stretch = (within * self.scale.log_stretch(self.device)).sum(dim=1)
        return clipped_gaussian_log_prob(mean, log_std, taken, -bound, bound) - stretch

    def critic_loss(self, batch: ReplayBatch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss and metrics; `noise` [B, size] smooths the target policy."""
        target = td3_target(self.target_critic, self.target_actor, batch, noise, self.params)
        loss, value = td3_critic_loss(self.critic, batch, target)
        return loss, {"loss_critic": loss.detach(), "q_mean": value}

    def actor_loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss and metrics."""
        loss = td3_actor_loss(self.critic, self.actor, batch.observation)
        return loss, {"loss_actor": loss.detach()}

    def critic_gradient(self, batch: ReplayBatch, noise: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of the critics' loss by autograd and return metrics."""
        loss, metrics = self.critic_loss(batch, noise)
        self.critic_optimizer.backward(loss)
        return metrics

    def actor_gradient(self, batch: ReplayBatch) -> dict[str, Tensor]:
        """Compute the gradient of the actor's loss by autograd and return metrics."""
        self.critic.requires_grad_(False)  # the actor's loss needs no gradient with respect to the critics' weights
        loss, metrics = self.actor_loss(batch)
        self.actor_optimizer.backward(loss)
        self.critic.requires_grad_(True)
        return metrics

    @property
    def actor_due(self) -> bool:
        """Whether the current update also updates the actor and the target networks."""
        return self.updates % self.params.policy_delay == 0

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Draw noise, take the gradient steps of one update and return metrics."""
        noise = torch.empty_like(batch.action).normal_(generator=generator)
        self.updates += 1
        return self.improve(batch, noise, controls["learning_rate"])

    def improve(self, batch: ReplayBatch, noise: Tensor, learning_rate: float) -> dict[str, Tensor]:
        """Make one gradient step of the critics and, if due, of the actor; then also move the target networks."""
        step: Any = {"learning_rate": learning_rate, "max_grad_norm": self.params.max_grad_norm}
        metrics = self.critic_gradient(batch, noise)
        metrics["gradient_norm"] = self.critic_optimizer.descend(**step)
        if self.actor_due:
            metrics |= self.actor_gradient(batch)
            self.actor_optimizer.descend(**step)
            with torch.no_grad():
                self.target_actor_values.lerp_(self.actor_optimizer.values, self.params.tau)
                self.target_critic_values.lerp_(self.critic_optimizer.values, self.params.tau)
        return metrics
