"""Deep Q-learning (Mnih et al. 2015, Nature 518), with options for double DQN, C51, QR-DQN and Rainbow.

Rainbow (Hessel et al. 2018, arXiv 1710.02298) combines all extensions: double, dueling, n-step, prioritised, noisy and
categorical.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn import functional

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm, class_with_memory
from rl_training.algorithms.distributional import categorical_loss, project_categorical, quantile_huber_loss
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.errors import ConfigError
from rl_training.experiment.cadence import marks_between
from rl_training.models.discrete import DiscreteActions
from rl_training.models.exploration import RepeatedActions
from rl_training.models.optimizers import FlatOptimizer, flatten_parameters
from rl_training.models.q_network import QNetwork

EVALUATION_EPSILON = 0.05  # for stochastic actions outside of training


def expected_values(outputs: Tensor, distribution: str, support: Tensor) -> Tensor:
    """Return the values [B, actions] of network outputs [B, actions, outputs]."""
    if distribution == "none":
        return outputs.squeeze(-1)
    if distribution == "categorical":
        return (outputs.softmax(dim=-1) * support).sum(dim=-1)
    return outputs.mean(dim=-1)


def take_action(outputs: Tensor, action: Tensor) -> Tensor:
    """Return the outputs [B, outputs] for the action taken in each row."""
    return outputs.gather(1, action.view(-1, 1, 1).expand(-1, 1, outputs.shape[-1])).squeeze(1)


def legal_values(values: Tensor, mask: Tensor | None) -> Tensor:
    """Set the values [B, actions] or [B, actions, 1] of illegal actions below all others."""
    return values if mask is None else values.masked_fill(~mask.view_as(values), -torch.inf)


def dqn_target(
    model: QNetwork, target_model: QNetwork, batch: ReplayBatch, support: Tensor, params: DQNParams
) -> Tensor:
    """Return the targets [B, outputs] for the outputs of the actions taken; probabilities if categorical."""
    successor = target_model.forward(batch.next_observation, params.noisy)  # [B, actions, outputs]
    if params.distribution == "none" and not params.double:
        target = legal_values(successor, batch.next_mask).amax(dim=1)
    else:
        judged = model.forward(batch.next_observation, params.noisy) if params.double else successor
        values = legal_values(expected_values(judged, params.distribution, support), batch.next_mask)
        target = take_action(successor, values.argmax(dim=1))
    if params.distribution == "categorical":
        return project_categorical(target.softmax(dim=-1), batch.reward, batch.discount, support)
    return torch.addcmul(batch.reward.unsqueeze(1), batch.discount.unsqueeze(1), target)


def dqn_loss(
    model: QNetwork, target_model: QNetwork, batch: ReplayBatch, support: Tensor, params: DQNParams
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the loss, the errors [B] if transitions have weights (else None), and the mean predicted value."""
    with torch.no_grad():
        target = dqn_target(model, target_model, batch, support, params)
    predicted = take_action(model.forward(batch.observation, params.noisy), batch.action)  # [B, outputs]
    value = predicted.detach().mean()
    # Without weights, the loss and its mean are one operation.
    reduction = "mean" if batch.weight is None else "none"
    if params.distribution == "categorical":
        losses = categorical_loss(predicted, target)
        value = expected_values(predicted.detach(), params.distribution, support).mean()
    elif params.distribution == "quantile":
        losses = quantile_huber_loss(predicted, target)
    elif params.loss == "huber":
        losses = functional.smooth_l1_loss(predicted, target, reduction=reduction)
    else:
        losses = functional.mse_loss(predicted, target, reduction=reduction)
    if batch.weight is None:
        return losses.mean() if losses.dim() else losses, None, value
    losses = losses.view(-1)
    if params.distribution == "categorical":
        errors = losses.detach()
    else:
        errors = (predicted.detach() - target).mean(dim=1).abs()
    return (batch.weight * losses).mean(), errors, value


class DQN(OffPolicyAlgorithm):
    """Online network, target network and optimizer."""

    params: DQNParams
    parts = ("model", "target_model", "optimizer", "repeats")
    acting_networks = ("model",)
    acting_parts = ("repeats",)

    @classmethod
    def for_params(cls, params: Any) -> type[Algorithm]:
        """Return the class with a memory where the parameters ask for one."""
        if getattr(params, "recurrent", None) is None:
            return cls
        from rl_training.algorithms.recurrent.recurrent_dqn import RecurrentDQN

        return class_with_memory(cls, DQN, RecurrentDQN)

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the networks and the optimizer."""
        params, device = self.params, self.device
        self.actions = DiscreteActions(action_space)
        self.support = torch.linspace(params.v_min, params.v_max, params.num_atoms, device=device)
        self.model: Any = self.make_model(observation_space, generator).to(device)
        self.target_model: Any = copy.deepcopy(self.model).requires_grad_(False)
        self.target_values = flatten_parameters(self.target_model.parameters())
        self.optimizer = FlatOptimizer(self.model.parameters(), "adam", eps=params.optimizer_eps)
        self.repeats: RepeatedActions | None = None
        if params.repeat_exponent is not None:
            self.repeats = RepeatedActions(
                self.actions, exponent=params.repeat_exponent, limit=params.repeat_limit, device=device
            )

    def make_model(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the network: it maps observations to outputs [B, actions, outputs], with noise if requested."""
        params = self.params
        return QNetwork(
            self.make_encoder(observation_space, orthogonal=False, generator=generator),
            self.actions.count,
            outputs=params.outputs_per_action,
            hidden_sizes=params.hidden_sizes,
            activation=params.activation,
            dueling=params.dueling,
            noisy=params.noisy,
            generator=generator,
        )

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the model does not return outputs per action."""
        outputs = self.model.forward(observation, False)
        check_shape(self.model, "outputs", outputs, ROWS, self.actions.count, self.params.outputs_per_action)

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return the greedy actions [num_envs], each replaced by a random one with probability epsilon."""
        if self.params.noisy:
            self.model.resample(generator)
        return self.explored(self._best(observation, mask, noisy=self.params.noisy), mask, controls, generator)

    def explored(
        self, action: Tensor, mask: Tensor | None, controls: Mapping[str, float], generator: torch.Generator
    ) -> Tensor:
        """Return greedy actions [num_envs], each replaced by a random one with probability epsilon."""
        epsilon = controls.get("epsilon", 0.0)
        if self.repeats is not None:
            return self.repeats.step(action, mask, epsilon, generator)
        return self._explore(action, mask, epsilon, generator)

    def end_episodes(self, ended: np.ndarray) -> None:
        """Stop repeating actions where `ended` [num_envs] is true, so that no repetition crosses an episode's end."""
        if self.repeats is not None:
            self.repeats.end(ended)

    def check_sampled(self, lag: int) -> None:
        """Raise an error if random actions are repeated: whether one begins is drawn for all environments together."""
        if self.repeats is not None:
            raise ConfigError(
                "samplers: random actions are repeated for all environments together; set algo_kwargs.repeat_exponent "
                "to null, or leave samplers out"
            )

    def random_actions(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return uniformly random legal actions [count]."""
        return self.actions.random(count, mask, generator)

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the greedy actions; if a generator is given, 5 % of them are random."""
        action = self._best(observation, mask, noisy=False)
        return action if generator is None else self._explore(action, mask, EVALUATION_EPSILON, generator)

    def _explore(self, action: Tensor, mask: Tensor | None, epsilon: float, generator: torch.Generator) -> Tensor:
        return self.actions.explore(action, mask, epsilon, generator)

    def _best(self, observation: Observation, mask: Tensor | None, *, noisy: bool) -> Tensor:
        return legal_values(self.values(observation, noisy=noisy), mask).argmax(dim=1)

    def values(self, observation: Observation, *, noisy: bool = False) -> Tensor:
        """Return the values of all actions [B, actions]."""
        return expected_values(self.model.forward(observation, noisy), self.params.distribution, self.support)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions as the environment numbers them, from the space's `start`."""
        return self.actions.to_env(action)

    def stored_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions of the environment numbered from 0."""
        return self.actions.from_env(action)

    @torch.no_grad()
    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-probabilities [B] of actions as the environment numbers them, 5 % of which are random."""
        return self._log_prob_around(self._best(observation, mask, noisy=False), mask, action)

    def _log_prob_around(self, best: Tensor, mask: Tensor | None, action: np.ndarray) -> Tensor:
        return self.actions.explored_log_prob(best, self.stored_action(action), mask, EVALUATION_EPSILON)

    def loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics; these include each transition's `td_error` [B] if transitions have weights."""
        loss, errors, value = dqn_loss(self.model, self.target_model, batch, self.support, self.params)
        metrics = {"loss_q": loss.detach(), "q_mean": value}
        return loss, metrics if errors is None else {**metrics, "td_error": errors}

    def gradient(self, batch: ReplayBatch) -> dict[str, Tensor]:
        """Compute the gradient of the loss by autograd and return metrics."""
        loss, metrics = self.loss(batch)
        self.optimizer.backward(loss)
        return metrics

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Make one gradient step; return metrics, including each transition's error [B] if transitions have weights."""
        if self.params.noisy:
            self.model.resample(generator)
            self.target_model.resample(generator)
        return self.improve(batch, controls)

    def improve(self, batch: ReplayBatch, controls: Mapping[str, float]) -> dict[str, Tensor]:
        """Take a step along the gradient of a batch's loss and return metrics."""
        metrics = self.gradient(batch)
        metrics["gradient_norm"] = self.optimizer.descend(
            learning_rate=controls["learning_rate"], max_grad_norm=self.params.max_grad_norm
        )
        return metrics

    def steps_taken(self, before: int, after: int) -> None:
        """Update the target network whenever the step count passes a multiple of the interval."""
        for _ in range(marks_between(before, after, self.params.target_update_interval)):
            self.update_target()

    @torch.no_grad()
    def update_target(self) -> None:
        """Move the target network towards the online network."""
        if self.params.tau == 1.0:
            self.target_values.copy_(self.optimizer.values)
        else:
            self.target_values.lerp_(self.optimizer.values, self.params.tau)
