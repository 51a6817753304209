"""Parallelised Q-learning (Gallici et al. 2025, arXiv 2407.04811): neither a replay nor a target network.

Many environments give fresh experience, LayerNorm keeps the values from diverging, and the targets of a rollout are
Q(lambda) returns, computed once before the epochs over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from gymnasium import Space
from torch import Tensor, nn
from torch.nn import functional

from rl_training.algorithms.advantages import generalized_advantage
from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.algorithms.dqn import EVALUATION_EPSILON, legal_values
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.on_policy_params import OnPolicyParams
from rl_training.data.observations import Observation, index_observation, map_observation
from rl_training.data.rollout import Rollout, shuffled
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, OPTIMIZER, rules, scheduled
from rl_training.experiment.schedules import Schedule, ScheduleSpec
from rl_training.models.discrete import DiscreteActions
from rl_training.models.encoders import arranged
from rl_training.models.optimizers import FlatOptimizer
from rl_training.models.q_network import QNetwork

EPSILON_SCHEDULE = Schedule(type="linear", end=0.05, duration=0.5)
ROWS_AT_ONCE = 512  # the activations of many images take memory


@dataclass(frozen=True)
class PQNParams(OnPolicyParams):
    """Parameters of parallelised Q-learning."""

    controls: ClassVar[tuple[str, ...]] = ("learning_rate", "epsilon")
    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("epsilon"),
        **rules(FREE, "update_epochs", "minibatch_size", "q_lambda", "optimizer_eps"),
        **rules(NETWORKS, "layer_norm", "dueling"),
        **rules(OPTIMIZER, "optimizer"),
    }

    learning_rate: Annotated[float, Gt(0)] = 1e-4
    """Step size of the optimizer."""
    num_steps: Annotated[int, Ge(1)] = 64
    """Steps of each environment per rollout; a rollout holds num_steps * num_envs transitions."""
    epsilon: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Probability of a random action."""
    epsilon_schedule: ScheduleSpec | None = EPSILON_SCHEDULE
    """How epsilon changes over the run; it starts at the fixed value."""
    epsilon_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which epsilon rises linearly from 0."""
    q_lambda: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """Trade-off between the bias of one-step targets (0) and the variance of whole returns (1)."""
    update_epochs: Annotated[int, Ge(1)] = 4
    """Passes over each rollout."""
    minibatch_size: Annotated[int, Ge(1)] | None = 128
    """Transitions per gradient step; null: the whole rollout."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """The gradient over all parameters is clipped to this norm; null switches clipping off."""
    layer_norm: bool = True
    """Normalise the hidden layers (LayerNorm), without which values may diverge."""
    dueling: bool = False
    """Split the network into a state value and advantages (Wang et al. 2016)."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = (256, 256)
    """Widths of the hidden layers; null: [64, 64], or none after an encoder with weights."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    optimizer: Literal["radam", "adam"] = "radam"
    """Optimizer of all parameters; RAdam takes careful first steps (Liu et al. 2020)."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-8
    """The optimizer's epsilon."""

    def network_weights(self, inputs: int, outputs: int) -> int:
        """Return a lower bound on the number of trained weights, given the sizes of features and action outputs."""
        return dense_weights(inputs, *(self.hidden_sizes or ()), outputs)

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return an error message for each inconsistent combination of values."""
        found = super().problems(num_envs=num_envs, total_timesteps=total_timesteps)
        rollout = self.num_steps * num_envs
        if self.minibatch_size is not None and self.minibatch_size > rollout:
            found.append(
                f"algo_kwargs.minibatch_size: {self.minibatch_size} is larger than the rollout of {rollout} "
                f"transitions (num_steps {self.num_steps} x num_envs {num_envs}); lower it to at most "
                f"{rollout}, or raise num_steps or num_envs"
            )
        return found


class PQNBatch(NamedTuple):
    """Transitions of one gradient step; B is the minibatch size."""

    observation: Observation  # [B, ...]
    action: Tensor  # [B]
    target: Tensor  # [B] Q(lambda) returns

    def select(self, indices: Tensor) -> PQNBatch:
        """Return the rows given by `indices`."""
        return PQNBatch(
            index_observation(self.observation, indices),
            self.action.index_select(0, indices),
            self.target.index_select(0, indices),
        )


def q_lambda_return(
    reward: Tensor,
    best: Tensor,
    final_best: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    last_best: Tensor,
    *,
    gamma: float,
    q_lambda: float,
) -> Tensor:
    """Return the Q(lambda) returns of a rollout, given the values of the best actions in its states.

    All tensors are [num_steps, num_envs], `last_best` is [num_envs]. The return of a step is its reward plus gamma
    times the next state's part: lambda of the return from there and 1 - lambda of its best value, at the end of the
    rollout all of the latter, after a truncation all of `final_best`, that of the true final observation, and after a
    termination nothing. With these values of states it is the lambda-return that advantages are computed from.
    """
    advantage = generalized_advantage(
        reward, best, final_best, terminated, truncated, last_best, gamma=gamma, gae_lambda=q_lambda
    )
    return advantage + best


def pqn_loss(model: QNetwork, batch: PQNBatch) -> tuple[Tensor, Tensor]:
    """Return the mean squared error of the values of the actions taken, and the mean of these values."""
    values = model.forward(batch.observation).squeeze(2)  # [B, actions]
    taken = values.gather(1, batch.action.unsqueeze(1)).squeeze(1)
    return functional.mse_loss(taken, batch.target), taken.detach().mean()


class PQN(OnPolicyAlgorithm):
    """One network and its optimizer."""

    params: PQNParams
    parts = ("model", "optimizer")
    values_of_legal = True
    learns_beside_absent = True

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the network and its optimizer."""
        params = self.params
        self.actions = DiscreteActions(action_space)
        self.model: Any = self.make_model(observation_space, generator).to(self.device)
        self.optimizer = FlatOptimizer(self.model.parameters(), params.optimizer, eps=params.optimizer_eps)

    def make_model(self, observation_space: Space[Any], generator: torch.Generator) -> nn.Module:
        """Return the network: it maps observations to values [B, actions, 1]."""
        params = self.params
        return QNetwork(
            self.make_encoder(observation_space, orthogonal=False, generator=generator),
            self.actions.count,
            outputs=1,
            hidden_sizes=params.hidden_sizes,
            activation=params.activation,
            dueling=params.dueling,
            noisy=False,
            layer_norm=params.layer_norm,
            generator=generator,
        )

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the model does not return one value per action."""
        check_shape(self.model, "outputs", self.model.forward(observation), ROWS, self.actions.count, 1)

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return the greedy actions [num_envs], each replaced by a random one with probability epsilon."""
        return self.actions.explore(self._best(observation, mask), mask, controls["epsilon"], generator)

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the greedy actions; if a generator is given, 5 % of them are random."""
        action = self._best(observation, mask)
        return action if generator is None else self.actions.explore(action, mask, EVALUATION_EPSILON, generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the actions as the environment numbers them, from the space's `start`."""
        return self.actions.to_env(action)

    @torch.no_grad()
    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-probabilities [B] of actions as the environment numbers them, 5 % of which are random."""
        taken = self.actions.from_env(action)
        return self.actions.explored_log_prob(self._best(observation, mask), taken, mask, EVALUATION_EPSILON)

    @torch.no_grad()
    def values(self, observation: Observation, mask: Tensor | None = None) -> Tensor:
        """Return the values [B] of the best legal actions."""
        return self._legal_values(observation, mask).amax(dim=1)

    def _best(self, observation: Observation, mask: Tensor | None) -> Tensor:
        return self._legal_values(observation, mask).argmax(dim=1)

    def _legal_values(self, observation: Observation, mask: Tensor | None) -> Tensor:
        return legal_values(self.model.forward(observation).squeeze(2), mask)

    def loss(self, batch: PQNBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and metrics."""
        loss, value = pqn_loss(self.model, batch)
        return loss, {"loss_q": loss.detach(), "q_mean": value}

    def update(self, batch: Rollout, controls: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Take the gradient steps of all epochs over one rollout and return the means of the metrics."""
        params, transitions = self.params, self.prepare(batch)
        rows, history = len(transitions.target), []
        for indices in shuffled(rows, params.minibatch_size, epochs=params.update_epochs, generator=generator):
            loss, metrics = self.loss(transitions if indices is None else transitions.select(indices))
            metrics["gradient_norm"] = self.optimizer.step(
                loss, learning_rate=controls["learning_rate"], max_grad_norm=params.max_grad_norm
            )
            history.append(metrics)
        return {name: torch.stack([metrics[name] for metrics in history]).mean() for name in history[0]}

    def prepare(self, rollout: Rollout) -> PQNBatch:
        """Return the transitions of a rollout with their targets, by the network that acted."""
        observation = arranged(getattr(self.model, "encoder", None), rollout.flat_observation())
        target = q_lambda_return(
            rollout.reward,
            self._values_in_parts(observation, rollout.flat_mask()).view_as(rollout.reward),
            rollout.final_value,
            rollout.terminated,
            rollout.truncated,
            self.values(rollout.last_observation, rollout.last_mask),
            gamma=self.params.gamma,
            q_lambda=self.params.q_lambda,
        )
        transitions = PQNBatch(observation, rollout.flat_action(), target.flatten())
        return transitions if rollout.real is None else transitions.select(rollout.real_rows())

    def _values_in_parts(self, observation: Observation, mask: Tensor | None) -> Tensor:
        """Return the values [B] of a rollout's observations, computed from at most `ROWS_AT_ONCE` of them at once."""
        rows = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        parts = [slice(at, at + ROWS_AT_ONCE) for at in range(0, rows, ROWS_AT_ONCE)]
        return torch.cat(
            [
                self.values(
                    map_observation(lambda array, part=part: array[part], observation),
                    None if mask is None else mask[part],
                )
                for part in parts
            ]
        )
