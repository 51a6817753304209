"""Advantage estimates of rollouts."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantage(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    last_value: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return the advantages of a rollout (Schulman et al. 2016, arXiv 1506.02438).

    All tensors are [num_steps, num_envs], `last_value` is [num_envs]. Where an episode was truncated, the value of
    the next state is `final_value`, that of the true final observation; where it terminated, it is 0.
    """
    next_value = torch.cat((value[1:], last_value.unsqueeze(0)))
    next_value = torch.where(truncated, final_value, next_value).masked_fill(terminated, 0.0)
    delta = reward + gamma * next_value - value
    carry = (gamma * gae_lambda) * (~(terminated | truncated)).to(delta.dtype)
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(last_value)
    for step in range(delta.shape[0] - 1, -1, -1):
        running = torch.addcmul(delta[step], carry[step], running)
        advantage[step] = running
    return advantage


def explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the share of the target's variance that the prediction explains: 1 is all of it, 0 none."""
    return 1 - (target - predicted).var(correction=0) / target.var(correction=0).clamp_min(1e-8)
