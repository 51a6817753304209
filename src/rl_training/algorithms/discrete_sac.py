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

from rl_training.algorithms.network_sizes import dense_weights
from rl_training.algorithms.replay_params import ReplayParams
from rl_training.algorithms.temperature import Temperature
from rl_training.algorithms.weights import load_parts
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.fork_rules import FREE, NETWORKS, START, rules
from rl_training.models.discrete import DiscreteActions
from rl_training.models.distributions import Categorical, mask_logits
from rl_training.models.encoders import make_encoder
from rl_training.models.layers import StackedMLP
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters

_PARTS = ("actor", "critic", "target_critic", "actor_optimizer", "critic_optimizer", "temperature")
_LEARNED = ("actor", "critic", "target_critic", "temperature.log")


@dataclass(frozen=True)
class DiscreteSACParams(ReplayParams):
    """Parameters of discrete soft actor-critic."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "tau", "temperature", "target_entropy_ratio", "max_grad_norm", "optimizer_eps"),
        **rules(START, "temperature_init"),
        **rules(NETWORKS, "num_critics", "hidden_sizes", "activation"),
    }

    tau: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """How far the target critics move at each update."""
    temperature: Annotated[float, Gt(0)] | Literal["auto"] = "auto"
    """Weight of the entropy: a fixed value, or learned to keep the target entropy."""
    temperature_init: Annotated[float, Gt(0)] = 1.0
    """Where a learned temperature starts."""
    target_entropy_ratio: Annotated[float, Interval(gt=0, lt=1)] = 0.89
    """Entropy that a learned temperature keeps, as a share of the uniform policy's."""
    num_critics: Annotated[int, Ge(1)] = 2
    """Critics, of which the smallest value counts."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Non-linearity of the hidden layers."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Largest norm of each gradient; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return how many weights are trained at least, for so many input features and action outputs."""
        return (1 + self.num_critics) * dense_weights(inputs, *self.hidden_sizes, outputs)


class ActionValues(nn.Module):
    """Several networks from an observation to one output per action; an actor is one of them."""

    def __init__(
        self, observation_space: Space[Any], num_actions: int, count: int, params: DiscreteSACParams, generator: Any
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(observation_space, orthogonal=False, generator=generator)
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


class DiscreteSAC:
    """Actor, critics, target critics and temperature."""

    def __init__(
        self,
        params: DiscreteSACParams,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.params = params
        self.device = device
        self.actions = DiscreteActions(action_space)
        self.actor = ActionValues(observation_space, self.actions.count, 1, params, generator).to(device)
        self.critic = ActionValues(observation_space, self.actions.count, params.num_critics, params, generator).to(
            device
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_critic.parameters())
        self.actor_optimizer = FlatOptimizer(self.actor.parameters(), "adam", eps=params.optimizer_eps)
        self.critic_optimizer = FlatOptimizer(self.critic.parameters(), "adam", eps=params.optimizer_eps)
        self.temperature = Temperature(
            params.temperature, initial=params.temperature_init, eps=params.optimizer_eps, device=device
        )

    def target_entropy(self, mask: Tensor | None) -> float | Tensor:
        """Return the entropy to keep: a share of the mean entropy of uniform policies over the legal actions."""
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
        """Return the most likely actions, or sampled ones where a generator is given."""
        policy = self._policy(observation, mask)
        return policy.mode() if generator is None else policy.sample(generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions counted from the space's start."""
        return self.actions.to_env(action)

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Make one gradient step of critics, actor and temperature, and move the target critics."""
        rate, limit = controls["learning_rate"], self.params.max_grad_norm
        temperature = self.temperature.value
        value_loss, value = discrete_critic_loss(self.critic, self.target_critic, self.actor, batch, temperature)
        norm = self.critic_optimizer.step(value_loss, learning_rate=rate, max_grad_norm=limit)
        policy_loss, entropy = discrete_actor_loss(self.critic, self.actor, batch.observation, temperature, batch.mask)
        self.actor_optimizer.step(policy_loss, learning_rate=rate, max_grad_norm=limit)
        self.temperature.update(entropy, self.target_entropy(batch.mask), learning_rate=rate)
        with torch.no_grad():
            self.target_values.lerp_(self.critic_optimizer.values, self.params.tau)
        metrics = {
            "loss_critic": value_loss.detach(),
            "loss_actor": policy_loss.detach(),
            "q_mean": value,
            "entropy": entropy.detach().mean(),
            "temperature": temperature.squeeze(),
            "gradient_norm": norm,
        }
        return metrics, None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on."""
        return {name: getattr(self, name).state_dict() for name in _PARTS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over what a saved state has learned; optimizers and counters stay as they are."""
        load_parts(self, state, _LEARNED)
