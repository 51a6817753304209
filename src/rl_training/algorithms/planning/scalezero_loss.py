"""The loss of ScaleZero's world model. B is the batch size, K the number of steps, A the number of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.planning.unroll import UnrollBatch, clipped_share, masked_mean
from rl_training.data.observations import Observation, map_observation
from rl_training.models.planning.experts import Routing, expert_usage, load_balance
from rl_training.models.planning.scalar_support import scalar_loss
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork, TaskWindow, Unrolled


class LossWeights(NamedTuple):
    """Weight of each part of the loss."""

    latent: float = 10.0
    reward: float = 1.0
    value: float = 0.5
    policy: float = 1.0
    entropy: float = 1e-4
    """Weight of the policy's entropy, which is maximised."""
    balance: float = 1e-2
    """Weight of the experts' load balance, averaged over layers."""


def scalezero_loss(
    network: ScaleZeroNetwork, target: ScaleZeroNetwork, batches: Mapping[int, UnrollBatch], weights: LossWeights
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss of the tasks, whose windows of equal length are read in one pass, and its parts as metrics.

    `successor` of a batch holds the observations after each step. After a termination it repeats the last observation:
    the end is an absorbing state with rewards and values of 0. The target network's encoder
    gives the targets of the predicted latents. Names of metrics end in the task's name.
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
    known = torch.cat([_real_tokens(batch) for batch in batches.values()], 1)
    by_layer = [_joined(layer) for layer in zip(*(unrolled.routings for unrolled in read), strict=True)]
    if by_layer:
        # Over all tasks together: an expert may serve a single task, as long as no expert is idle.
        balance = torch.stack([load_balance(layer, known) for layer in by_layer]).mean()
        loss = loss + weights.balance * balance
        metrics["load_balance"] = balance.detach()
    return loss, metrics


def _joined(routings: Sequence[Routing]) -> Routing:
    """Return the routing of all tasks' tokens, [2K + 1, sum of B]."""
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
        "loss_policy": masked_mean(policy, batch.policy_mask),
        "loss_value": masked_mean(value, batch.value_mask),
        "loss_reward": masked_mean(reward, batch.reward_mask),
        "loss_latent": masked_mean(latent, batch.successor_mask),
        "policy_entropy": masked_mean(entropy, batch.policy_mask),
    }
    states = weights.policy * policy + weights.value * value - weights.entropy * entropy
    steps = weights.latent * latent + weights.reward * reward
    loss = states.mean(0) + steps.mean(0)  # [B]
    loss = (loss if batch.weight is None else loss * batch.weight).mean()
    if unrolled.routings:
        known = _real_tokens(batch)
        usage = torch.stack([expert_usage(routing, known) for routing in unrolled.routings]).mean(0)
        metrics.update({f"expert_use_{expert}": share for expert, share in enumerate(usage)})
    return loss, metrics


def _real_tokens(batch: UnrollBatch) -> Tensor:
    """Return which tokens [2K + 1, B] belong to steps that happened; the others do not count as use of an expert."""
    pairs = torch.stack((batch.value_mask[:-1], batch.reward_mask), 1).flatten(0, 1)
    return torch.cat((pairs, batch.value_mask[-1:]))
