"""Conservative Q-learning (Kumar et al. 2020, arXiv 2006.04779) on soft actor-critic.

The critics' loss contains a penalty: the log-sum-exp of values over all actions, minus the value of the dataset's
action. It lowers the values of actions that the dataset does not contain. The integral over actions is estimated by
importance sampling from a uniform distribution and from the policy in the current and in the next state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import OfflineAlgorithm
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.params.network_sizes import dense_weights
from rl_training.algorithms.params.offline_params import OfflineValueParams
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.temperature import Temperature
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import FREE, NETWORKS, START, rules, scheduled
from rl_training.experiment.schedules import ScheduleSpec
from rl_training.models.continuous import SquashedActor, StackedCritic

LARGEST_MULTIPLIER = 1e6


@dataclass(frozen=True)
class CQLParams(OfflineValueParams):
    """Parameters of conservative Q-learning; those of soft actor-critic have the same meaning there."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **scheduled("actor_learning_rate"),
        **rules(FREE, "conservative_weight", "lagrange_threshold", "action_samples", "soft_target", "tau"),
        **rules(FREE, "temperature", "target_entropy", "max_grad_norm", "optimizer_eps"),
        **rules(START, "temperature_init"),
        **rules(NETWORKS, "num_critics", "hidden_sizes", "critic_hidden_sizes", "activation"),
        **rules(NETWORKS, "critic_layer_norm"),
    }

    # Options of soft actor-critic that have no meaning here, or that the penalty does not cover.
    target_network: ClassVar[bool] = True
    policy_delay: ClassVar[int] = 1
    num_quantiles: ClassVar[int] = 1
    dropped_quantiles: ClassVar[int] = 0
    use_sde: ClassVar[bool] = False
    sde_sample_freq: ClassVar[int] = 1
    log_std_init: ClassVar[float] = 0.0
    batch_norm: ClassVar[bool] = False
    renorm_warmup: ClassVar[int] = 0
    optimizer_beta1: ClassVar[float] = 0.9
    target_critics: ClassVar[int | None] = None
    policy_value: ClassVar[str] = "min"
    critic_dropout: ClassVar[float] = 0.0

    actor_learning_rate: Annotated[float, Gt(0)] = 1e-4
    """Step size of the optimizers of actor, temperature and Lagrange multiplier; learning_rate is that of critics."""
    actor_learning_rate_schedule: ScheduleSpec | None = None
    """How the actor's learning rate changes over the run; it starts at the fixed value."""
    actor_learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Gradient steps over which the actor's learning rate rises linearly from 0."""
    conservative_weight: Annotated[float, Ge(0)] = 5.0
    """Weight of the penalty, relative to the mean squared temporal-difference error of a critic."""
    lagrange_threshold: float | None = None
    """Learn a factor of the penalty that keeps it at this value; null: the factor is 1."""
    action_samples: Annotated[int, Ge(1)] = 10
    """Actions sampled from each of three sources: uniform, the policy, and the policy in the next state."""
    soft_target: bool = False
    """Bootstrap from a sampled action and its entropy as SAC does; false: from the policy's mode."""
    tau: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """Fraction by which the target critics move towards the critics at each update."""
    temperature: Annotated[float, Gt(0)] | Literal["auto"] = "auto"
    """Weight of the entropy: a fixed value, or learned to keep the target entropy."""
    temperature_init: Annotated[float, Gt(0)] = 1.0
    """Initial value of a learned temperature."""
    target_entropy: float | Literal["auto"] = "auto"
    """Target entropy of a learned temperature; auto: minus the number of action dimensions."""
    num_critics: Annotated[int, Ge(1)] = 2
    """Number of critics; the smallest of their values is used."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    critic_hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Widths of the critics' hidden layers; null: the same as hidden_sizes."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation function of the hidden layers."""
    critic_layer_norm: bool = False
    """Normalise the critics' hidden layers (LayerNorm), which limits values of actions that no data supports."""
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
        critic_hidden = self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes
        critics = self.num_critics * dense_weights(inputs + outputs, *critic_hidden, 1)
        return dense_weights(inputs, *self.hidden_sizes, outputs) + critics


@torch.no_grad()
def cql_target(
    target_critic: StackedCritic,
    actor: SquashedActor,
    batch: ReplayBatch,
    temperature: Tensor,
    noise: Tensor | None,
) -> Tensor:
    """Return the critics' targets [B]: of the policy's mode, or of soft samples if `noise` [B, size] is given."""
    if noise is None:
        value = target_critic(batch.next_observation, actor.mode(batch.next_observation)).amin(dim=0).squeeze(1)
    else:
        action, log_prob = actor.sample(batch.next_observation, noise)
        value = target_critic(batch.next_observation, action).amin(dim=0).squeeze(1) - temperature * log_prob
    return batch.reward + batch.discount * value


@torch.no_grad()
def proposed_actions(actor: SquashedActor, batch: ReplayBatch, noise: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions [3 * samples, B, size] from the three sources, and their log-densities [3 * samples, B].

    `noise` [2, samples, B, size] is standard normal; `uniform` [samples, B, size] lies in [-1, 1].
    """
    here, density_here = actor.sample(batch.observation, noise[0])
    there, density_there = actor.sample(batch.next_observation, noise[1])
    density_uniform = torch.full_like(density_here, -uniform.shape[2] * math.log(2.0))
    return torch.cat((here, there, uniform)), torch.cat((density_here, density_there, density_uniform))


def conservative_penalty(values: Tensor, log_density: Tensor, data_values: Tensor) -> Tensor:
    """Return each critic's penalty [critics].

    Given are values [critics, N, B] of proposed actions, their log-densities [N, B], and values [critics, B] of the
    dataset's actions.
    """
    return (torch.logsumexp(values - log_density, dim=1) - data_values).mean(dim=1)


class CQL(SAC, OfflineAlgorithm):
    """Soft actor-critic with a penalty in the critics' loss, and the penalty's multiplier."""

    params: CQLParams  # type: ignore[assignment]  # has every attribute that SAC reads
    parts = (*SAC.parts, "multiplier")

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the networks of soft actor-critic and the multiplier."""
        super().build(observation_space, action_space, generator)
        learned = "auto" if self.params.lagrange_threshold is not None else 1.0
        self.multiplier = Temperature(learned, initial=1.0, eps=self.params.optimizer_eps, device=self.device)

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the networks do not return what the losses need."""
        super().check_networks(observation)
        several = torch.zeros(3, ROWS, self.scale.size, device=self.device)
        values = self.critic.many(observation, several)
        check_shape(self.critic, "values of 3 actions each", values, self.params.num_critics, 3, ROWS, 1)

    def critic_loss(self, batch: ReplayBatch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss and metrics.

        `noise` [2 + 3 * samples, B, size] is normal, except for its last `samples` parts, which are uniform.
        """
        params, samples = self.params, self.params.action_samples
        temperature = self.temperature.value
        target = cql_target(
            self.target_critic, self.actor, batch, temperature, noise[0] if params.soft_target else None
        )
        predicted = self.critic(batch.observation, batch.action).squeeze(2)  # [critics, B]
        squared_error = (predicted - target).square().mean(dim=1).sum()
        policy_noise = noise[2 : 2 + 2 * samples].unflatten(0, (2, samples))
        actions, log_density = proposed_actions(self.actor, batch, policy_noise, noise[2 + 2 * samples :])
        values = self.critic.many(batch.observation, actions).squeeze(3)
        penalty = params.conservative_weight * conservative_penalty(values, log_density, predicted)
        if params.lagrange_threshold is not None:
            penalty = penalty - params.conservative_weight * params.lagrange_threshold
        loss = squared_error + self.multiplier.value.clamp(max=LARGEST_MULTIPLIER).squeeze() * penalty.sum()
        return loss, {
            "loss_critic": loss.detach(),
            "loss_conservative": penalty.detach().mean(),
            "q_mean": predicted.detach().mean(),
            "temperature": temperature.squeeze(),
        }

    def update(
        self, batch: ReplayBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Draw noise, take the gradient steps of one update and return metrics."""
        samples = self.params.action_samples
        noise = torch.empty((2 + 3 * samples, *batch.action.shape), device=self.device)
        noise[: 2 + 2 * samples].normal_(generator=generator)
        noise[2 + 2 * samples :].uniform_(-1.0, 1.0, generator=generator)
        self.updates += 1
        step: Any = {"learning_rate": controls["learning_rate"], "max_grad_norm": self.params.max_grad_norm}
        metrics = self.critic_gradient(batch, noise)
        metrics["gradient_norm"] = self.critic_optimizer.descend(**step)
        step["learning_rate"] = controls["actor_learning_rate"]
        metrics |= self.actor_gradient(batch, noise)
        self.actor_optimizer.descend(**step)
        self.temperature.update(metrics["entropy"], self.target_entropy, learning_rate=step["learning_rate"])
        # The multiplier rises while the penalty lies above its threshold.
        self.multiplier.update(-metrics["loss_conservative"], 0.0, learning_rate=step["learning_rate"])
        if self.multiplier.learned:
            metrics["multiplier"] = self.multiplier.value.squeeze()
        with torch.no_grad():
            self.target_values.lerp_(self.critic_optimizer.values, self.params.tau)
        return metrics
