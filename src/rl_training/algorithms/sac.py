"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), with the critics of TQC and CrossQ as options.

Truncated quantile critics (Kuznetsov et al. 2020, arXiv 2005.04269) pool the quantiles of all critics and drop the
largest before they become a target. CrossQ (Bhatt et al. 2024, arXiv 1902.05605) normalises batches and needs no target
networks: one forward pass of the critics evaluates a batch and its next states together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.algorithms.distributional import quantile_huber_loss
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.replay_params import ReplayParams
from rl_training.algorithms.temperature import Temperature
from rl_training.data.observations import Observation, map_observation
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import EXPLORATION, FREE, NETWORKS, START, rules
from rl_training.models.continuous import ActionScale, SquashedActor, StackedCritic
from rl_training.models.exploration import ExplorationMatrices
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters


@dataclass(frozen=True)
class SACParams(ReplayParams):
    """Parameters of soft actor-critic."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "tau", "temperature", "target_entropy", "policy_delay", "dropped_quantiles", "renorm_warmup"),
        **rules(FREE, "max_grad_norm", "optimizer_eps", "optimizer_beta1"),
        **rules(START, "temperature_init", "log_std_init"),
        **rules(EXPLORATION, "sde_sample_freq"),
        **rules(NETWORKS, "target_network", "num_critics", "num_quantiles", "use_sde", "batch_norm"),
        **rules(NETWORKS, "hidden_sizes", "critic_hidden_sizes", "activation"),
        **rules(NETWORKS, "critic_layer_norm"),
    }

    tau: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """Fraction by which the target critics move towards the critics at each update."""
    temperature: Annotated[float, Gt(0)] | Literal["auto"] = "auto"
    """Weight of the entropy: a fixed value, or learned to keep the target entropy."""
    temperature_init: Annotated[float, Gt(0)] = 1.0
    """Initial value of a learned temperature."""
    target_entropy: float | Literal["auto"] = "auto"
    """Target entropy of a learned temperature; auto: minus the number of action dimensions."""
    target_network: bool = True
    """Bootstrap from target critics; if false, from the critics themselves."""
    policy_delay: Annotated[int, Ge(1)] = 1
    """Updates of the critics per update of actor and temperature."""
    num_critics: Annotated[int, Ge(1)] = 2
    """Number of critics; the smallest of their values is used."""
    num_quantiles: Annotated[int, Ge(1)] = 1
    """Quantiles per critic; more than one makes truncated quantile critics (TQC)."""
    dropped_quantiles: Annotated[int, Ge(0)] = 0
    """Number of largest quantiles, per critic, that are dropped from the target."""
    use_sde: bool = False
    """Explore with generalised state-dependent noise (Raffin et al. 2020)."""
    sde_sample_freq: Annotated[int, Ge(-1)] = 8
    """Steps between fresh exploration matrices; -1 draws them after each round of gradient steps."""
    log_std_init: float = -3.0
    """gSDE: initial log standard deviation."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    critic_hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Widths of the critics' hidden layers; null: the same as hidden_sizes."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    critic_layer_norm: bool = False
    """Normalise the critics' hidden layers (LayerNorm), which limits values of actions that no data supports."""
    batch_norm: bool = False
    """Use batch renormalisation in actor and critics (CrossQ); needs target_network false."""
    renorm_warmup: Annotated[int, Ge(0)] = 100_000
    """With batch_norm: updates with plain batch normalisation before the running statistics are used."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Gradients are clipped to this norm; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""
    optimizer_beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Adam's beta1 for actor and critics: the decay rate of the mean gradient."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        critic_hidden = self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes
        critics = self.num_critics * dense_weights(inputs + outputs, *critic_hidden, self.num_quantiles)
        return dense_weights(inputs, *self.hidden_sizes, outputs) + critics

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        if self.sde_sample_freq == 0:
            found.append("algo_kwargs.sde_sample_freq: 0 steps are not possible; use -1 for once per round of updates")
        if self.dropped_quantiles >= self.num_quantiles:
            found.append("algo_kwargs.dropped_quantiles: must be less than num_quantiles; lower it")
        if self.batch_norm and self.target_network:
            found.append(
                "algo_kwargs.batch_norm: needs the next states in the same batch, which target networks do not allow; "
                "set target_network to false"
            )
        if self.batch_norm and self.critic_layer_norm:
            found.append("algo_kwargs.critic_layer_norm: the critics are normalised by batch_norm; choose one of them")
        if self.batch_norm and self.batch_size < 2:
            found.append("algo_kwargs.batch_size: batch_norm needs at least 2 transitions; raise it")
        return found


@dataclass(frozen=True)
class TQCParams(SACParams):
    """Parameters of truncated quantile critics."""

    num_quantiles: Annotated[int, Ge(1)] = 25
    """Quantiles per critic; more than one makes truncated quantile critics (TQC)."""
    dropped_quantiles: Annotated[int, Ge(0)] = 2
    """Number of largest quantiles, per critic, that are dropped from the target."""


@dataclass(frozen=True)
class CrossQParams(SACParams):
    """Parameters of CrossQ."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Step size of the optimizers."""
    target_network: bool = False
    """Bootstrap from target critics; if false, from the critics themselves."""
    policy_delay: Annotated[int, Ge(1)] = 3
    """Updates of the critics per update of actor and temperature."""
    critic_hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = (1024, 1024)
    """Widths of the critics' hidden layers; null: the same as hidden_sizes."""
    batch_norm: bool = True
    """Use batch renormalisation in actor and critics (CrossQ); needs target_network false."""
    optimizer_beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    """Adam's beta1 for actor and critics: the decay rate of the mean gradient."""


def critic_loss(
    critic: StackedCritic,
    target_critic: StackedCritic | None,
    actor: SquashedActor,
    batch: ReplayBatch,
    temperature: Tensor,
    noise: Tensor,
    params: SACParams,
) -> tuple[Tensor, Tensor]:
    """Return the critics' loss and the mean predicted value; `noise` [B, size] samples the next states' actions."""
    with torch.no_grad():
        action, log_prob = actor.sample(batch.next_observation, noise)
        successor = None if target_critic is None else target_critic(batch.next_observation, action)
    if successor is None:
        predicted, successor = joint_values(critic, batch, action)
    else:
        predicted = critic(batch.observation, batch.action)
    target = soft_target(successor, log_prob, batch, temperature, params)
    if params.num_quantiles == 1:
        loss = 0.5 * (predicted - target).square().mean(dim=(1, 2)).sum()
    else:
        rows = predicted.flatten(0, 1)  # [critics * B, quantiles]
        loss = quantile_huber_loss(rows, target.repeat(params.num_critics, 1)).mean() / params.num_quantiles
    return loss, predicted.detach().mean()


def joint_values(critic: StackedCritic, batch: ReplayBatch, next_action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values [critics, B, quantiles] of transitions and, without gradient, of their next states.

    Both come from one forward pass in training mode, so that batch statistics are computed over both halves together.
    """
    observation = map_observation(lambda *halves: torch.cat(halves), batch.observation, batch.next_observation)
    critic.train()
    values = critic(observation, torch.cat((batch.action, next_action)))
    critic.eval()
    predicted, successor = values.chunk(2, dim=1)
    return predicted, successor.detach()


@torch.no_grad()
def soft_target(
    successor: Tensor, log_prob: Tensor, batch: ReplayBatch, temperature: Tensor, params: SACParams
) -> Tensor:
    """Return the critics' targets [B, targets], given the values [critics, B, quantiles] of the next states."""
    if params.num_quantiles == 1:
        value = successor.amin(dim=0)  # [B, 1]
    else:
        pooled = successor.transpose(0, 1).flatten(1).sort(dim=1).values  # [B, critics * quantiles]
        value = pooled[:, : pooled.shape[1] - params.dropped_quantiles * params.num_critics]
    soft = value - temperature * log_prob.unsqueeze(1)
    return batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * soft


def actor_loss(
    critic: StackedCritic, actor: SquashedActor, observation: Observation, temperature: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the actor's loss and the log-probabilities [B] of the actions that it samples."""
    action, log_prob = actor.sample(observation, noise)
    values = critic(observation, action).mean(dim=2)  # [critics, B]
    value = values.amin(dim=0) if critic.outputs == 1 else values.mean(dim=0)
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
            self.critic, self.target_critic, self.actor, batch, temperature, noise[0], self.params
        )
        return loss, {"loss_critic": loss.detach(), "q_mean": value, "temperature": temperature.squeeze()}

    def actor_loss(self, batch: ReplayBatch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss and metrics; the metric `entropy` also updates the temperature."""
        self.actor.train(self.params.batch_norm)
        loss, log_prob = actor_loss(self.critic, self.actor, batch.observation, self.temperature.value, noise[1])
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
        metrics = self.improve(batch, noise, controls["learning_rate"])
        if self.params.sde_sample_freq == -1:
            self.exploration.forget()
        return metrics

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
