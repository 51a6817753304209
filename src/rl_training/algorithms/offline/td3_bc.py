"""TD3+BC (Fujimoto and Gu 2021, arXiv 2106.06860), and ReBRAC as another set of its parameters.

TD3+BC is TD3 whose actor also imitates the dataset: its loss weighs the normalised value of its action against the
distance from the dataset's action. ReBRAC (Tarasov et al. 2023, arXiv 2305.09836) also subtracts that distance from the
target of the critics, and uses deeper critics with layer normalisation and larger batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from rl_training.algorithms.base import OfflineAlgorithm
from rl_training.algorithms.params.offline_params import OfflineValueParams
from rl_training.algorithms.td3 import TD3, DeterministicParams, smoothed_action, td3_critic_loss
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.configuration.fork_rules import FREE, rules
from rl_training.models.continuous import DeterministicActor, StackedCritic


@dataclass(frozen=True)
class TD3BCParams(DeterministicParams, OfflineValueParams):
    """Parameters of TD3+BC."""

    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "alpha", "actor_bc_coef", "critic_bc_coef", "bc_distance", "actor_value"),
    }

    exploration_noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the noise on sampled actions, which lie in [-1, 1]; learning does not use it."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    alpha: Annotated[float, Gt(0)] | None = 2.5
    """Weight of the value in the actor's loss, divided by the batch's mean absolute value; null: 1 without division."""
    actor_bc_coef: Annotated[float, Ge(0)] = 1.0
    """Weight of the distance from the dataset's actions in the actor's loss."""
    critic_bc_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the distance from the dataset's next actions, which is subtracted from the critics' target."""
    bc_distance: Literal["mean", "sum"] = "mean"
    """Whether squared differences of actions are averaged or summed over the action's dimensions."""
    actor_value: Literal["first", "min"] = "first"
    """Whether the actor maximises the first critic's value or the smallest one."""

    @property
    def with_next_action(self) -> bool:
        """Whether batches contain the dataset's next actions."""
        return self.critic_bc_coef > 0


@dataclass(frozen=True)
class ReBRACParams(TD3BCParams):
    """Parameters of ReBRAC; the two coefficients are usually tuned for a dataset."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Step size of the optimizers."""
    batch_size: Annotated[int, Ge(1)] = 1024
    """Transitions per gradient step."""
    normalize_observation: bool = False
    """Normalise observations by the dataset's mean and standard deviation, which become part of the policy."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] = (256, 256, 256)
    """Widths of the hidden layers of actor and critics."""
    alpha: Annotated[float, Gt(0)] | None = 1.0
    """Weight of the value in the actor's loss, divided by the batch's mean absolute value; null: 1 without division."""
    actor_bc_coef: Annotated[float, Ge(0)] = 0.01
    """Weight of the distance from the dataset's actions in the actor's loss."""
    critic_bc_coef: Annotated[float, Ge(0)] = 0.01
    """Weight of the distance from the dataset's next actions, which is subtracted from the critics' target."""
    bc_distance: Literal["mean", "sum"] = "sum"
    """Whether squared differences of actions are averaged or summed over the action's dimensions."""
    actor_value: Literal["first", "min"] = "min"
    """Whether the actor maximises the first critic's value or the smallest one."""
    critic_layer_norm: bool = True
    """Normalise the critics' hidden layers (LayerNorm), which limits values of actions that no data supports."""


def squared_distance(one: Tensor, other: Tensor, params: TD3BCParams) -> Tensor:
    """Return the squared distances [B] of actions [B, size]."""
    squares = (one - other).square()
    return squares.mean(dim=1) if params.bc_distance == "mean" else squares.sum(dim=1)


@torch.no_grad()
def td3_bc_target(
    target_critic: StackedCritic,
    target_actor: DeterministicActor,
    batch: ReplayBatch,
    noise: Tensor,
    params: TD3BCParams,
) -> Tensor:
    """Return the critics' targets [B]; `noise` [B, size] smooths the target policy.

    The next state's value is lowered by the distance of the target policy's action from the dataset's next action. A
    truncated episode has none: its value is not lowered.
    """
    action = smoothed_action(target_actor, batch.next_observation, noise, params)
    value = target_critic(batch.next_observation, action).amin(dim=0).squeeze(1)
    if batch.next_action is not None:
        value = value - params.critic_bc_coef * squared_distance(action, batch.next_action, params).nan_to_num(nan=0.0)
    return batch.reward + batch.discount * value


def td3_bc_actor_loss(
    critic: StackedCritic, actor: DeterministicActor, batch: ReplayBatch, params: TD3BCParams
) -> tuple[Tensor, Tensor]:
    """Return the actor's loss, and the mean distance of its actions from the dataset's."""
    action = actor(batch.observation)
    if params.actor_value == "first":
        value = critic.first(batch.observation, action)
    else:
        value = critic(batch.observation, action).amin(dim=0)
    weight = 1.0 if params.alpha is None else params.alpha / value.detach().abs().mean()
    distance = squared_distance(action, batch.action, params).mean()
    return params.actor_bc_coef * distance - weight * value.mean(), distance.detach()


class TD3BC(TD3, OfflineAlgorithm):
    """TD3 that learns from a dataset and stays close to its actions."""

    params: TD3BCParams

    def critic_loss(self, batch: ReplayBatch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the critics' loss and metrics; `noise` [B, size] smooths the target policy."""
        target = td3_bc_target(self.target_critic, self.target_actor, batch, noise, self.params)
        loss, value = td3_critic_loss(self.critic, batch, target)
        return loss, {"loss_critic": loss.detach(), "q_mean": value}

    def actor_loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor's loss and metrics."""
        loss, distance = td3_bc_actor_loss(self.critic, self.actor, batch, self.params)
        return loss, {"loss_actor": loss.detach(), "bc_distance": distance}
