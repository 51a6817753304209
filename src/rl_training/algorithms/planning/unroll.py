"""The loss of an unrolled model. B is the batch size, K the number of unrolled steps, A the number of actions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.data.observations import Observation
from rl_training.models.planning.planning_network import PlanningNetwork
from rl_training.models.planning.scalar_support import clipped, scalar_loss


class UnrollBatch(NamedTuple):
    """Windows to learn from, on the device, time first; masks are 0 where a target is unknown."""

    observation: Observation  # [B, ...] at the beginning
    action: Tensor  # [K, B]
    value: Tensor  # [K + 1, B]
    value_mask: Tensor  # [K + 1, B]
    reward: Tensor  # [K, B] of the step into state k + 1, or the value prefix there
    reward_mask: Tensor  # [K, B]
    policy: Tensor  # [K + 1, B, A]
    policy_mask: Tensor  # [K + 1, B]
    weight: Tensor | None  # [B] importance weights
    successor: Observation | None  # [K * B, ...] the observations after each step, if the loss uses them
    successor_mask: Tensor  # [K, B]


def muzero_loss(network: PlanningNetwork, batch: UnrollBatch, params: MuZeroParams) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and its parts as metrics."""
    steps = len(batch.action)
    latents = [network.represent(batch.observation)]
    for action in batch.action:
        # Each step passes on half of its gradient, so that the first state is not updated K times as much as the last.
        latents.append(network.imagine(_halve_gradient(latents[-1]), action))
    unrolled = torch.stack(latents)  # [K + 1, B, latent]
    predicted = network.predict(unrolled)
    policy = -(batch.policy * predicted.policy.log_softmax(-1)).sum(-1) * batch.policy_mask
    value = scalar_loss(predicted.value, batch.value) * batch.value_mask
    reward = scalar_loss(network.rewards(unrolled[1:]), batch.reward) * batch.reward_mask
    metrics = {
        "loss_policy": masked_mean(policy, batch.policy_mask),
        "loss_value": masked_mean(value, batch.value_mask),
        "loss_reward": masked_mean(reward, batch.reward_mask),
        "clipped_targets": clipped_share(batch, params.support_size),
    }
    heads = policy + params.value_coef * value  # [K + 1, B]
    loss = heads[0] + (heads[1:] + params.reward_coef * reward).sum(0) / steps
    if params.consistency_coef > 0:
        assert batch.successor is not None
        with torch.no_grad():
            encoded = network.represent(batch.successor).view_as(unrolled[1:])
        apart = -network.similarity(unrolled[1:], encoded) * batch.successor_mask
        loss = loss + params.consistency_coef * apart.sum(0) / steps
        metrics["loss_consistency"] = masked_mean(apart, batch.successor_mask)
    return (loss if batch.weight is None else loss * batch.weight).mean(), metrics


def clipped_share(batch: UnrollBatch, size: int) -> Tensor:
    """Return the fraction of the known values and rewards that lie beyond the support."""
    beyond = (clipped(batch.value, size) * batch.value_mask).sum() + (
        clipped(batch.reward, size) * batch.reward_mask
    ).sum()
    return beyond / (batch.value_mask.sum() + batch.reward_mask.sum()).clamp(min=1)


def _halve_gradient(latent: Tensor) -> Tensor:
    return torch.lerp(latent.detach(), latent, 0.5)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values where the mask is 1."""
    return values.detach().sum() / mask.sum().clamp(min=1)
