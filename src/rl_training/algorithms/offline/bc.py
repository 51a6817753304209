"""Behavioural cloning: a policy that imitates a dataset's actions, or those of its best episodes.

Discrete actions and `policy: stochastic` are learned by maximum likelihood; the deterministic policy for Box actions
minimises the squared distance, which is the likelihood of a normal distribution of fixed width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.offline.policy_learner import PolicyLearner
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.offline_params import OfflineParams
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, rules
from rl_training.models.continuous import ActionScale, DeterministicActor
from rl_training.models.distributions import Categorical, Distribution
from rl_training.models.optimizers import FlatOptimizer
from rl_training.models.policy_network import PolicyNetwork


@dataclass(frozen=True)
class BCParams(OfflineParams):
    """Parameters of behavioural cloning."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "top_fraction", "logit_penalty", "max_grad_norm", "optimizer_eps"),
        **rules(NETWORKS, "policy", "hidden_sizes", "activation"),
    }

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Step size of the optimizer."""
    top_fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Learn only from this fraction of the episodes, those with the highest returns; 0.1 is 10 % BC."""
    policy: Literal["deterministic", "stochastic"] = "deterministic"
    """Box actions: one action per observation, learned by squared error, or a normal distribution, by likelihood."""
    logit_penalty: Annotated[float, Ge(0)] = 0.0
    """Discrete actions: weight of the mean squared log-probability, which keeps the policy from becoming certain."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """The gradient is clipped to this norm; null switches clipping off."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""

    @property
    def top_episodes(self) -> float:
        """Fraction of the dataset's episodes, those with the highest returns, to learn from."""
        return self.top_fraction

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        return dense_weights(inputs, *self.hidden_sizes, outputs)


def likelihood_loss(policy: Distribution, action: Tensor, logit_penalty: float) -> Tensor:
    """Return minus the mean log-likelihood of actions [B, ...], with the penalty if the policy is categorical."""
    loss = -policy.log_prob(action).mean()
    if logit_penalty and isinstance(policy, Categorical):
        loss = loss + logit_penalty * policy.log_probs.square().mean()
    return loss


class BC(PolicyLearner):
    """A policy and its optimizer."""

    params: BCParams
    parts = ("actor", "optimizer")

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the policy and its optimizer."""
        self.action_space = action_space
        self.deterministic = isinstance(action_space, spaces.Box) and self.params.policy == "deterministic"
        self.actor: Any = self.make_actor(observation_space, action_space, generator).to(self.device)
        self.optimizer = FlatOptimizer(self.actor.parameters(), "adam", eps=self.params.optimizer_eps)

    def make_actor(
        self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator
    ) -> nn.Module:
        """Return the policy: it maps observations to actions [B, size] within [-1, 1], or to a distribution."""
        encoder = self.make_encoder(observation_space, orthogonal=False, generator=generator)
        layers: Any = {"hidden_sizes": self.params.hidden_sizes, "activation": self.params.activation}
        if self.deterministic:
            self.scale = ActionScale(action_space)
            return DeterministicActor(encoder, self.scale.size, **layers, generator=generator)
        return PolicyNetwork(encoder, action_space, **layers, generator=generator)

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the policy does not return actions or their likelihood."""
        if self.deterministic:
            check_shape(self.actor, "actions", self.actor(observation), ROWS, self.scale.size)
        else:
            policy = self.actor(observation)
            check_shape(self.actor, "log-probabilities", policy.log_prob(policy.mode()), ROWS)

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the most likely actions, or sampled ones if a generator is given and the policy is stochastic."""
        if not self.deterministic:
            return super().choose(observation, mask, generator)
        action: Tensor = self.actor(observation)
        return action

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions in the format of the environment's action space."""
        return self.scale.to_env(action) if self.deterministic else super().env_action(action)

    def loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics."""
        if self.deterministic:
            loss = functional.mse_loss(self.actor(batch.observation), batch.action)
        else:
            loss = likelihood_loss(self.actor(batch.observation, batch.mask), batch.action, self.params.logit_penalty)
        return loss, {"loss_actor": loss.detach()}

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Make one gradient step and return metrics."""
        loss, metrics = self.loss(batch)
        metrics["gradient_norm"] = self.optimizer.step(
            loss, learning_rate=controls["learning_rate"], max_grad_norm=self.params.max_grad_norm
        )
        return metrics
