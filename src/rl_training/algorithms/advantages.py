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
    delta = _one_step_errors(reward, value, final_value, terminated, truncated, last_value, gamma)
    carry = (gamma * gae_lambda) * (~(terminated | truncated)).to(delta.dtype)
    return _carried_back(delta, carry)


def vtrace(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    last_value: Tensor,
    log_ratio: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    clip: float,
) -> tuple[Tensor, Tensor]:
    """Return the targets of the values, and advantages, of a rollout of another policy (V-trace).

    Espeholt et al. 2018 (arXiv 1802.01561). `log_ratio` [num_steps, num_envs] is the log of the probability of each
    action by the present policy over that by the policy that acted; ratios are clipped to at most `clip`. The other
    tensors are those of `generalized_advantage`, whose advantages these are where all ratios are 1. The advantages are
    weighted by the clipped ratios of their own actions.
    """
    weight = importance_weight(log_ratio, clip)
    delta = _one_step_errors(reward, value, final_value, terminated, truncated, last_value, gamma)
    carry = (gamma * gae_lambda) * (~(terminated | truncated)).to(delta.dtype)
    correction = _carried_back(weight * delta, weight * carry)  # of the values, by all later steps
    later = torch.cat((correction[1:], torch.zeros_like(correction[:1])))
    return value + correction, weight * (delta + carry * later)


def importance_weight(log_ratio: Tensor, clip: float) -> Tensor:
    """Return the ratio of an action's probabilities by the present policy and by the one that acted, at most `clip`."""
    return log_ratio.exp().clamp_max(clip)


def _one_step_errors(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    last_value: Tensor,
    gamma: float,
) -> Tensor:
    """Return reward plus discounted value of the next state minus value of the state."""
    next_value = torch.cat((value[1:], last_value.unsqueeze(0)))
    next_value = torch.where(truncated, final_value, next_value).masked_fill(terminated, 0.0)
    return reward + gamma * next_value - value


def _carried_back(delta: Tensor, carry: Tensor) -> Tensor:
    """Return at each step its `delta` plus `carry` times the result of the next step."""
    running = torch.zeros_like(delta[0])
    backwards = []
    for step_delta, step_carry in zip(reversed(delta.unbind()), reversed(carry.unbind()), strict=True):
        running = torch.addcmul(step_delta, step_carry, running)
        backwards.append(running)
    return torch.stack(backwards[::-1])


def explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the share of the target's variance that the prediction explains: 1 is all of it, 0 none."""
    return 1 - (target - predicted).var(correction=0) / target.var(correction=0).clamp_min(1e-8)
