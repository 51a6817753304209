"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv 1910.07207): expectations instead of samples."""

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
from rl_training.algorithms.temperature import Temperature
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, START, rules
from rl_training.models.discrete import DiscreteActions
from rl_training.models.distributions import Categorical, mask_logits
from rl_training.models.encoders import Encoder
from rl_training.models.layers import StackedMLP
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters


@dataclass(frozen=True)
class DiscreteSACParams(ReplayParams):
    """Parameters of discrete soft actor-critic."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "tau", "temperature", "target_entropy_ratio", "max_grad_norm", "optimizer_eps"),
        **rules(START, "temperature_init"),
        **rules(NETWORKS, "num_critics", "hidden_sizes", "activation"),
    }

    tau: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """Fraction by which the target critics move towards the critics at each update."""
    temperature: Annotated[float, Gt(0)] | Literal["auto"] = "auto"
    """Weight of the entropy: a fixed value, or learned to keep the target entropy."""
    temperature_init: Annotated[float, Gt(0)] = 1.0
    """Initial value of a learned temperature."""
    target_entropy_ratio: Annotated[float, Interval(gt=0, lt=1)] = 0.89
    """Target entropy of a learned temperature, as a fraction of the uniform policy's entropy."""
    num_critics: Annotated[int, Ge(1)] = 2
    """Number of critics; the smallest of their values is used."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Gradients are clipped to this norm; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        return (1 + self.num_critics) * dense_weights(inputs, *self.hidden_sizes, outputs)


class ActionValues(nn.Module):
    """A stack of networks that map an observation to one output per action; the actor is a stack of one."""

    def __init__(
        self, encoder: Encoder, num_actions: int, count: int, params: DiscreteSACParams, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.networks = StackedMLP(
            count,
            self.encoder.width,
            params.hidden_sizes,
            params.activation,
            orthogonal=False,
            generator=generator,
            outputs=num_actions,
        )

    def forward(self, observation: Observation) -> Tensor:
        """Return [count, B, actions]."""
        outputs: Tensor = self.networks(self.encoder(observation))
        return outputs


def discrete_critic_loss(
    critic: ActionValues, target_critic: ActionValues, actor: ActionValues, batch: ReplayBatch, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the critics' loss and the mean predicted value."""
    with torch.no_grad():
        log_probs = mask_logits(actor(batch.next_observation)[0], batch.next_mask).log_softmax(dim=1)  # [B, actions]
        values = target_critic(batch.next_observation).amin(dim=0)
        soft = (log_probs.exp() * (values - temperature * log_probs)).sum(dim=1)
        target = batch.reward + batch.discount * soft  # [B]
    every = critic(batch.observation)  # [critics, B, actions]
    chosen = batch.action.view(1, -1, 1).expand(every.shape[0], -1, 1)
    predicted = every.gather(2, chosen).squeeze(2)
    return 0.5 * (predicted - target).square().mean(dim=1).sum(), predicted.detach().mean()


def discrete_actor_loss(
    critic: ActionValues,
    actor: ActionValues,
    observation: Observation,
    temperature: Tensor,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the actor's loss and the policy's entropies [B]."""
    with torch.no_grad():
        values = critic(observation).amin(dim=0)
    log_probs = mask_logits(actor(observation)[0], mask).log_softmax(dim=1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(dim=1)
    return -((probs * values).sum(dim=1) + temperature * entropy).mean(), entropy


class DiscreteSAC(OffPolicyAlgorithm):
    """Actor, critics, target critics and temperature."""

    params: DiscreteSACParams
    parts = ("actor", "critic", "target_critic", "actor_optimizer", "critic_optimizer", "temperature")
    acting_networks = ("actor",)

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make actor, critics and temperature, and their optimizers."""
        params = self.params
        self.actions = DiscreteActions(action_space)
        self.actor: Any = self.make_networks(1, observation_space, generator).to(self.device)
        self.critic: Any = self.make_networks(params.num_critics, observation_space, generator).to(self.device)
        self.target_critic: Any = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_critic.parameters())
        self.actor_optimizer = FlatOptimizer(self.actor.parameters(), "adam", eps=params.optimizer_eps)
        self.critic_optimizer = FlatOptimizer(self.critic.parameters(), "adam", eps=params.optimizer_eps)
        self.temperature = Temperature(
            params.temperature, initial=params.temperature_init, eps=params.optimizer_eps, device=self.device
        )

    def make_networks(self, count: int, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return a stack of `count` networks: it maps observations to logits or values [count, B, actions]."""
        encoder = self.make_encoder(observation_space, orthogonal=False, generator=generator)
        return ActionValues(encoder, self.actions.count, count, self.params, generator)

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the actor or the critics do not return one number per action."""
        check_shape(self.actor, "logits", self.actor(observation), 1, ROWS, self.actions.count)
        values = self.critic(observation)
        check_shape(self.critic, "values", values, self.params.num_critics, ROWS, self.actions.count)

    def target_entropy(self, mask: Tensor | None) -> float | Tensor:
        """Return the target entropy: a fraction of the mean entropy of uniform policies over the legal actions."""
        uniform = math.log(self.actions.count) if mask is None else mask.sum(dim=1).log().mean()
        return self.params.target_entropy_ratio * uniform

    def _policy(self, observation: Observation, mask: Tensor | None) -> Categorical:
        return Categorical(mask_logits(self.actor(observation)[0], mask))

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return sampled actions [num_envs]."""
        return self._policy(observation, mask).sample(generator)

    def random_actions(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return uniformly random legal actions [count]."""
        return self.actions.random(count, mask, generator)

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the most likely actions, or sampled ones if a generator is given."""
        policy = self._policy(observation, mask)
        return policy.mode() if generator is None else policy.sample(generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions as the environment numbers them, from the space's `start`."""
        return self.actions.to_env(action)

    def stored_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions of the environment numbered from 0."""
        return self.actions.from_env(action)

    @torch.no_grad()
    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-probabilities [B] of actions as the environment numbers them."""
        return self._policy(observation, mask).log_prob(torch.as_tensor(self.stored_action(action), device=self.device))

    def critic_loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss and metrics."""
        temperature = self.temperature.value
        loss, value = discrete_critic_loss(self.critic, self.target_critic, self.actor, batch, temperature)
        return loss, {"loss_critic": loss.detach(), "q_mean": value, "temperature": temperature.squeeze()}

    def actor_loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss and metrics; the metric `entropy` also updates the temperature."""
        temperature = self.temperature.value
        loss, entropy = discrete_actor_loss(self.critic, self.actor, batch.observation, temperature, batch.mask)
        return loss, {"loss_actor": loss.detach(), "entropy": entropy.detach().mean()}

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Make one gradient step of critics, actor and temperature, and move the target critics."""
        step: Any = {"learning_rate": controls["learning_rate"], "max_grad_norm": self.params.max_grad_norm}
        loss, metrics = self.critic_loss(batch)
        metrics["gradient_norm"] = self.critic_optimizer.step(loss, **step)
        loss, parts = self.actor_loss(batch)
        self.actor_optimizer.step(loss, **step)
        self.temperature.update(parts["entropy"], self.target_entropy(batch.mask), learning_rate=step["learning_rate"])
        with torch.no_grad():
            self.target_values.lerp_(self.critic_optimizer.values, self.params.tau)
        return metrics | parts
