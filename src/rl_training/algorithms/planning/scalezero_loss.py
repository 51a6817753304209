"""The loss of ScaleZero's world model. B is the batch size, K the number of steps, A that of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.planning.unroll import UnrollBatch, clipped_share, known_mean
from rl_training.data.observations import Observation, map_observation
from rl_training.models.planning.experts import Routing, expert_usage, load_balance
from rl_training.models.planning.scalar_support import scalar_loss
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork, TaskWindow, Unrolled


class LossWeights(NamedTuple):
    """How much each part of the loss counts."""

    latent: float = 10.0
    reward: float = 1.0
    value: float = 0.5
    policy: float = 1.0
    entropy: float = 1e-4
    """Of the policy's entropy, which is to be large."""
    balance: float = 1e-2
    """Of the experts' load balance, averaged over layers."""


def scalezero_loss(
    network: ScaleZeroNetwork, target: ScaleZeroNetwork, batches: Mapping[int, UnrollBatch], weights: LossWeights
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss of the tasks, which read windows of equal length in one pass, and its parts as metrics.

    A batch's `successor` holds what was observed after each step. After a termination it is the last observation again:
    the end is a state that no action leaves, with rewards and values of 0. The target network's encoder says where
    the next latents should have been. The metrics' names end in the task's.
    """
    windows, goals = [], []
    for task, batch in batches.items():
        observation = _observed(batch)
        shape = (len(batch.action) + 1, batch.action.shape[1], network.width)
        windows.append(TaskWindow(task, network.encode(task, observation).view(shape), batch.action))
        with torch.no_grad():
            goals.append(target.encode(task, observation).view(shape)[1:])
    read = network.unroll(windows)
    losses, metrics = [], {}
    for (task, batch), goal, unrolled in zip(batches.items(), goals, read, strict=True):
        loss, parts = _task_loss(unrolled, goal, batch, weights)
        parts["clipped_targets"] = clipped_share(batch, network.support_size)
        losses.append(loss)
        metrics.update({f"{part}/{network.specs[task].name}": number for part, number in parts.items()})
    loss = torch.stack(losses).mean()
    known = torch.cat([_known_tokens(batch) for batch in batches.values()], 1)
    by_layer = [_joined(layer) for layer in zip(*(unrolled.routings for unrolled in read), strict=True)]
    if by_layer:
        # Over all tasks together: an expert may well be one task's own, as long as none is idle.
        balance = torch.stack([load_balance(layer, known) for layer in by_layer]).mean()
        loss = loss + weights.balance * balance
        metrics["load_balance"] = balance.detach()
    return loss, metrics


def _joined(routings: Sequence[Routing]) -> Routing:
    """Return the routing of all tasks' tokens [2K + 1, B of all]."""
    probabilities, choices = zip(*routings, strict=True)
    return Routing(torch.cat(probabilities, 1), torch.cat(choices, 1))


def _observed(batch: UnrollBatch) -> Observation:
    """Return the observations [(K + 1) * B, ...] of all states."""
    assert batch.successor is not None
    return map_observation(lambda *parts: torch.cat(parts), batch.observation, batch.successor)


def _task_loss(
    unrolled: Unrolled, goal: Tensor, batch: UnrollBatch, weights: LossWeights
) -> tuple[Tensor, dict[str, Tensor]]:
    log_probability = unrolled.prediction.policy.log_softmax(-1)
    policy = -(batch.policy * log_probability).sum(-1) * batch.policy_mask  # [K + 1, B]
    entropy = -(log_probability.exp() * log_probability).sum(-1) * batch.policy_mask
    value = scalar_loss(unrolled.prediction.value, batch.value) * batch.value_mask
    reward = scalar_loss(unrolled.step.reward, batch.reward) * batch.reward_mask  # [K, B]
    latent = (unrolled.step.latent - goal).square().mean(-1) * batch.successor_mask
    metrics = {
        "loss_policy": known_mean(policy, batch.policy_mask),
        "loss_value": known_mean(value, batch.value_mask),
        "loss_reward": known_mean(reward, batch.reward_mask),
        "loss_latent": known_mean(latent, batch.successor_mask),
        "policy_entropy": known_mean(entropy, batch.policy_mask),
    }
    states = weights.policy * policy + weights.value * value - weights.entropy * entropy
    steps = weights.latent * latent + weights.reward * reward
    loss = states.mean(0) + steps.mean(0)  # [B]
    loss = (loss if batch.weight is None else loss * batch.weight).mean()
    if unrolled.routings:
        known = _known_tokens(batch)
        usage = torch.stack([expert_usage(routing, known) for routing in unrolled.routings]).mean(0)
        metrics.update({f"expert_use_{expert}": share for expert, share in enumerate(usage)})
    return loss, metrics


def _known_tokens(batch: UnrollBatch) -> Tensor:
    """Return which tokens [2K + 1, B] stand for something that happened; the others should not count as use."""
    pairs = torch.stack((batch.value_mask[:-1], batch.reward_mask), 1).flatten(0, 1)
    return torch.cat((pairs, batch.value_mask[-1:]))
