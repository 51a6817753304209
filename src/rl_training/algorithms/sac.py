"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), with the critics of its relatives as options.

Truncated quantile critics (Kuznetsov et al. 2020, arXiv 2005.04269) pool the quantiles of all critics and drop the
largest before they become a target. CrossQ (Bhatt et al. 2024, arXiv 1902.05605) normalises batches and needs no target
networks: one forward pass of the critics evaluates a batch and its next states together. REDQ (Chen et al. 2021, arXiv
2101.05982) takes the smallest value of a few critics out of many; DroQ (Hiraoka et al. 2022, arXiv 2110.02034) drops
units of two critics instead. Both make many updates per environment step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.algorithms.distributional import quantile_huber_loss
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.params.sac_params import SACParams
from rl_training.algorithms.temperature import Temperature
from rl_training.data.observations import Observation, map_observation
from rl_training.data.replay import ReplayBatch
from rl_training.errors import ConfigError
from rl_training.models.continuous import ActionScale, SquashedActor, StackedCritic
from rl_training.models.exploration import ExplorationMatrices
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters


class CriticDraws(NamedTuple):
    """What is random about the critics of one update."""

    target_critics: Tensor | None = None  # [number] the critics whose values make the target; None: all
    dropout: torch.Generator | None = None  # draws the units that are dropped; None: no unit is

    def of_critics(self) -> dict[str, Any]:
        """Return arguments for a pass of all critics; a user's critics need not know them."""
        return {} if self.dropout is None else {"dropout": self.dropout}

    def of_target(self) -> dict[str, Any]:
        """Return arguments for a pass of the target critics."""
        chosen = {} if self.target_critics is None else {"networks": self.target_critics}
        return {**chosen, **self.of_critics()}


NOTHING_DRAWN = CriticDraws()


def critic_loss(
    critic: StackedCritic,
    target_critic: StackedCritic | None,
    actor: SquashedActor,
    batch: ReplayBatch,
    temperature: Tensor,
    noise: Tensor,
    params: SACParams,
    draws: CriticDraws = NOTHING_DRAWN,
) -> tuple[Tensor, Tensor]:
    """Return the critics' loss and the mean predicted value; `noise` [B, size] samples the next states' actions."""
    with torch.no_grad():
        action, log_prob = actor.sample(batch.next_observation, noise)
        successor = None
        if target_critic is not None:
            successor = target_critic(batch.next_observation, action, **draws.of_target())
    if successor is None:
        predicted, successor = joint_values(critic, batch, action, draws)
    else:
        predicted = critic(batch.observation, batch.action, **draws.of_critics())
    target = soft_target(successor, log_prob, batch, temperature, params)
    if params.num_quantiles == 1:
        loss = 0.5 * (predicted - target).square().mean(dim=(1, 2)).sum()
    else:
        rows = predicted.flatten(0, 1)  # [critics * B, quantiles]
        loss = quantile_huber_loss(rows, target.repeat(params.num_critics, 1)).mean() / params.num_quantiles
    return loss, predicted.detach().mean()


def joint_values(
    critic: StackedCritic, batch: ReplayBatch, next_action: Tensor, draws: CriticDraws = NOTHING_DRAWN
) -> tuple[Tensor, Tensor]:
    """Return the values [critics, B, quantiles] of transitions and, without gradient, of their next states.

    Both come from one forward pass in training mode, so that batch statistics are computed over both halves together.
    """
    observation = map_observation(lambda *halves: torch.cat(halves), batch.observation, batch.next_observation)
    critic.train()
    values = critic(observation, torch.cat((batch.action, next_action)), **draws.of_critics())
    critic.eval()
    predicted, successor = values.chunk(2, dim=1)
    chosen = successor if draws.target_critics is None else successor[draws.target_critics]
    return predicted, chosen.detach()


@torch.no_grad()
def soft_target(
    successor: Tensor, log_prob: Tensor, batch: ReplayBatch, temperature: Tensor, params: SACParams
) -> Tensor:
    """Return the critics' targets [B, targets], given the values [critics, B, quantiles] of the next states.

    The critics are all of them, or those that were drawn for the target.
    """
    if params.num_quantiles == 1:
        value = successor.amin(dim=0)  # [B, 1]
    else:
        pooled = successor.transpose(0, 1).flatten(1).sort(dim=1).values  # [B, critics * quantiles]
        value = pooled[:, : pooled.shape[1] - params.dropped_quantiles * len(successor)]
    soft = value - temperature * log_prob.unsqueeze(1)
    return batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * soft


def actor_loss(
    critic: StackedCritic,
    actor: SquashedActor,
    observation: Observation,
    temperature: Tensor,
    noise: Tensor,
    policy_value: str = "min",
    draws: CriticDraws = NOTHING_DRAWN,
) -> tuple[Tensor, Tensor]:
    """Return the actor's loss and the log-probabilities [B] of the actions that it samples."""
    action, log_prob = actor.sample(observation, noise)
    values = critic(observation, action, **draws.of_critics()).mean(dim=2)  # [critics, B]
    smallest = policy_value == "min" and critic.outputs == 1
    value = values.amin(dim=0) if smallest else values.mean(dim=0)
    return (temperature * log_prob - value).mean(), log_prob


class SAC(OffPolicyAlgorithm):
    """Actor, critics, target critics (unless switched off) and temperature."""

    params: SACParams
    parts: ClassVar[tuple[str, ...]] = (
        "actor",
        "critic",
        "target_critic",
        "actor_optimizer",
        "critic_optimizer",
        "temperature",
        "exploration",
        "updates",
    )
    acting_parts: ClassVar[tuple[str, ...]] = ("exploration",)
    acting_networks = ("actor",)
    draws = NOTHING_DRAWN
    """What is random about the critics of the current update."""

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make actor, critics and temperature, and their optimizers."""
        params, device = self.params, self.device
        self.scale = ActionScale(action_space)
        # Training mode is used only in those passes of an update that update the batch statistics.
        self.actor: Any = self.make_actor(observation_space, generator).to(device).eval()
        self.critic: Any = self.make_critic(observation_space, generator).to(device).eval()
        self.target_critic: Any = None
        if params.target_network:
            self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
            self.target_values = flatten_parameters(self.target_critic.parameters())
        adam: dict[str, float] = {"eps": params.optimizer_eps, "beta1": params.optimizer_beta1}
        self.actor_optimizer = FlatOptimizer(self.actor.parameters(), "adam", **adam)
        self.critic_optimizer = FlatOptimizer(self.critic.parameters(), "adam", **adam)
        self.temperature = Temperature(
            params.temperature, initial=params.temperature_init, eps=params.optimizer_eps, device=device
        )
        self.target_entropy = -float(self.scale.size) if params.target_entropy == "auto" else params.target_entropy
        self.exploration = ExplorationMatrices(params.sde_sample_freq, device)
        self.updates = 0

    def make_actor(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the policy's network."""
        params = self.params
        return SquashedActor(
            self.make_encoder(observation_space, orthogonal=False, generator=generator),
            self.scale.size,
            hidden_sizes=params.hidden_sizes,
            use_sde=params.use_sde,
            log_std_init=params.log_std_init,
            activation=params.activation,
            renorm_warmup=params.renorm_warmup if params.batch_norm else None,
            generator=generator,
        )

    def make_critic(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the critics: they map observations and actions [B, size] to values [critics, B, quantiles]."""
        params = self.params
        return StackedCritic(
            self.make_encoder(observation_space, orthogonal=False, generator=generator),
            self.scale.size,
            count=params.num_critics,
            outputs=params.num_quantiles,
            hidden_sizes=params.hidden_sizes if params.critic_hidden_sizes is None else params.critic_hidden_sizes,
            activation=params.activation,
            renorm_warmup=params.renorm_warmup if params.batch_norm else None,
            layer_norm=params.critic_layer_norm,
            dropout=params.critic_dropout,
            generator=generator,
        )

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the actor does not return actions and log-probabilities, or the critics no values."""
        noise = torch.zeros(ROWS, self.scale.size, device=self.device)
        for what, output in zip(("means", "log deviations"), self.actor(observation), strict=True):
            check_shape(self.actor, what, output, ROWS, self.scale.size)
        action, log_prob = self.actor.sample(observation, noise)
        check_shape(self.actor, "actions", action, ROWS, self.scale.size)
        check_shape(self.actor, "log-probabilities", log_prob, ROWS)
        values = self.critic(observation, action)
        check_shape(self.critic, "values", values, self.params.num_critics, ROWS, self.params.num_quantiles)

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return exploratory actions [num_envs, size] within [-1, 1]."""
        if not self.params.use_sde:
            return self._sample(observation, generator)
        latent = self.actor.latent(observation)
        return self.actor.explore(latent, self.exploration.step(self.actor.log_std, len(latent), generator))

    def check_sampled(self, lag: int) -> None:
        """Raise an error if updates, which samplers with a lag do not wait for, redraw the exploration noise."""
        if lag and self.params.use_sde and self.params.sde_sample_freq == -1:
            raise ConfigError(
                "policy_lag: noise that every update redraws needs samplers that wait; set algo_kwargs.sde_sample_freq "
                "to a number of steps, or set policy_lag to 0"
            )

    def random_actions(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return uniformly random actions [count, size] within [-1, 1]."""
        return self.scale.random(count, generator)

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the modes of the policy, or sampled actions if a generator is given."""
        return self.actor.mode(observation) if generator is None else self._sample(observation, generator)

    def _sample(self, observation: Observation, generator: torch.Generator) -> Tensor:
        mean, log_std = self.actor(observation)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return torch.tanh(mean + log_std.exp() * noise)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions rescaled from [-1, 1] to the space's bounds."""
        return self.scale.to_env(action)

    def stored_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions [..., size] of the environment scaled to [-1, 1]."""
        return self.scale.from_env(action)

    @torch.no_grad()
    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-densities [B] of actions in the environment's format; None for integers and own networks."""
        if self.scale.whole or not isinstance(self.actor, SquashedActor):
            return None
        log_prob = self.actor.log_prob(observation, torch.as_tensor(self.stored_action(action), device=self.device))
        return log_prob - self.scale.log_stretch(self.device).sum()

    def critic_loss(self, batch: ReplayBatch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss and metrics; `noise` [2, B, size] samples the actions of next states and states."""
        temperature = self.temperature.value
        loss, value = critic_loss(
            self.critic, self.target_critic, self.actor, batch, temperature, noise[0], self.params, self.draws
        )
        return loss, {"loss_critic": loss.detach(), "q_mean": value, "temperature": temperature.squeeze()}

    def actor_loss(self, batch: ReplayBatch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss and metrics; the metric `entropy` also updates the temperature."""
        self.actor.train(self.params.batch_norm)
        temperature, way = self.temperature.value, self.params.policy_value
        loss, log_prob = actor_loss(self.critic, self.actor, batch.observation, temperature, noise[1], way, self.draws)
        self.actor.eval()
        return loss, {"loss_actor": loss.detach(), "entropy": -log_prob.detach().mean()}

    def critic_gradient(self, batch: ReplayBatch, noise: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of the critics' loss by autograd and return metrics."""
        loss, metrics = self.critic_loss(batch, noise)
        self.critic_optimizer.backward(loss)
        return metrics

    def actor_gradient(self, batch: ReplayBatch, noise: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of the actor's loss by autograd and return metrics."""
        self.critic.requires_grad_(False)  # the actor's loss needs no gradient with respect to the critics' weights
        loss, metrics = self.actor_loss(batch, noise)
        self.actor_optimizer.backward(loss)
        self.critic.requires_grad_(True)
        return metrics

    @property
    def actor_due(self) -> bool:
        """Whether the current update also updates actor and temperature."""
        return self.updates % self.params.policy_delay == 0

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Draw noise, take the gradient steps of one update and return metrics."""
        noise = torch.empty((2, *batch.action.shape), device=self.device).normal_(generator=generator)
        self.updates += 1
        self.draws = self.draw(generator)
        metrics = self.improve(batch, noise, controls["learning_rate"])
        if self.params.sde_sample_freq == -1:
            self.exploration.forget()
        return metrics

    def draw(self, generator: torch.Generator) -> CriticDraws:
        """Return what is random about the critics of the next update, drawn from the generator."""
        params, chosen = self.params, None
        if params.target_critics is not None:
            order = torch.randperm(params.num_critics, generator=generator, device=self.device)
            chosen = order[: params.target_critics]
        return CriticDraws(chosen, generator if params.critic_dropout else None)

    def improve(self, batch: ReplayBatch, noise: Tensor, learning_rate: float) -> dict[str, Tensor]:
        """Make one gradient step of the critics and, if due, of actor and temperature; then move the target critics."""
        step: Any = {"learning_rate": learning_rate, "max_grad_norm": self.params.max_grad_norm}
        metrics = self.critic_gradient(batch, noise)
        metrics["gradient_norm"] = self.critic_optimizer.descend(**step)
        if self.actor_due:
            metrics |= self.actor_gradient(batch, noise)
            self.actor_optimizer.descend(**step)
            self.temperature.update(metrics["entropy"], self.target_entropy, learning_rate=learning_rate)
        if self.target_critic is not None:
            with torch.no_grad():
                self.target_values.lerp_(self.critic_optimizer.values, self.params.tau)
        return metrics
