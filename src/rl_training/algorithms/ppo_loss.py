"""What PPO computes from a rollout: advantages, the loss, and its gradient written out for plain networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.algorithms.ppo_params import PPOParams
from rl_training.data.observations import Observation, index_observation
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.heads import ActionHead


@dataclass(frozen=True)
class PPOBatch:
    """Transitions of one gradient step; B is the minibatch size."""

    observation: Observation  # [B, ...]
    action: Tensor  # [B, ...]
    action_mask: Tensor | None  # [B, choices]
    log_prob: Tensor  # [B] under the policy that acted
    value: Tensor  # [B] predicted when acting
    advantage: Tensor  # [B]
    target_value: Tensor  # [B] the lambda-return

    def select(self, indices: Tensor) -> PPOBatch:
        """Return the rows named by `indices`."""
        return PPOBatch(
            observation=index_observation(self.observation, indices),
            action=self.action[indices],
            action_mask=None if self.action_mask is None else self.action_mask[indices],
            log_prob=self.log_prob[indices],
            value=self.value[indices],
            advantage=self.advantage[indices],
            target_value=self.target_value[indices],
        )


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

    All are [num_steps, num_envs], `last_value` [num_envs]. Where an episode was truncated the
    successor's value is `final_value`, that of its true final observation; where it terminated, 0.
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


def ppo_loss(
    model: ActorCritic,
    batch: PPOBatch,
    clip_coef: float | Tensor,
    ent_coef: float | Tensor,
    params: PPOParams,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a minibatch, and its parts: scalars and the log of the probability ratios [B]."""
    distribution, value = model(batch.observation, batch.action_mask)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = log_ratio.exp()
    advantage = _scaled(batch.advantage) if params.normalize_advantage else batch.advantage
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(advantage * ratio, advantage * clipped_ratio).mean()

    if params.clip_value_loss:
        clipped_value = value.clamp(batch.value - clip_coef, batch.value + clip_coef)
        errors = (value - batch.target_value).square(), (clipped_value - batch.target_value).square()
        value_loss = torch.maximum(*errors).mean()
    else:
        value_loss = functional.mse_loss(value, batch.target_value)

    loss = policy_loss + params.vf_coef * value_loss
    without_bonus = not isinstance(ent_coef, Tensor) and ent_coef == 0
    with torch.set_grad_enabled(torch.is_grad_enabled() and not without_bonus):
        entropy = distribution.entropy().mean()  # still a metric where it is no bonus
    if not without_bonus:
        loss = loss - ent_coef * entropy
    parts = {
        "loss_policy": policy_loss.detach(),
        "loss_value": value_loss.detach(),
        "loss_total": loss.detach(),
        "entropy": entropy.detach(),
        "log_ratio": log_ratio.detach(),
    }
    return loss, parts


@torch.no_grad()
def ppo_gradient(
    model: ActorCritic,
    batch: PPOBatch,
    clip_coef: float | Tensor,
    ent_coef: float | Tensor,
    params: PPOParams,
    *,
    slopes: Callable[..., Any] | None = None,
) -> dict[str, Tensor]:
    """Put the gradient of `ppo_loss` into a plain model and return the loss's parts.

    It is what autograd finds, in less time: small networks are bound by the number of operations, and autograd
    records, orders and accumulates as many again. `slopes` may be a compiled `loss_slopes`.
    """
    trace = model.trace(batch.observation)
    by_policy, by_value, parts = (slopes or loss_slopes)(
        model.head, trace.output, trace.value, batch, clip_coef, ent_coef, params
    )
    model.backward(trace, by_policy, by_value)
    return parts


def loss_slopes(
    head: ActionHead,
    output: Tensor,
    value: Tensor,
    batch: PPOBatch,
    clip_coef: float | Tensor,
    ent_coef: float | Tensor,
    params: PPOParams,
) -> tuple[tuple[Tensor, ...], Tensor, dict[str, Tensor]]:
    """Return the gradient of `ppo_loss` by what a policy is made of and by the values [B], and the loss's parts."""
    distribution, rows = head.distribution(output, batch.action_mask), len(value)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = log_ratio.exp()
    advantage = _scaled(batch.advantage) if params.normalize_advantage else batch.advantage
    gain = advantage * ratio
    limited = advantage * ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(gain, limited).mean()
    by_log_prob = (gain <= limited) * gain / -rows

    error = value - batch.target_value
    squared = error.square()
    if params.clip_value_loss:
        clipped = (value.clamp(batch.value - clip_coef, batch.value + clip_coef) - batch.target_value).square()
        error = (squared >= clipped) * error  # where the clipped one counts, it is constant
        squared = torch.maximum(squared, clipped)
    value_loss = squared.mean()

    entropy = distribution.entropy().mean()
    parts = {
        "loss_policy": policy_loss,
        "loss_value": value_loss,
        "loss_total": policy_loss + params.vf_coef * value_loss - ent_coef * entropy,
        "entropy": entropy,
        "log_ratio": log_ratio,
    }
    by_policy = distribution.gradient(batch.action, by_log_prob, -ent_coef / rows)
    if batch.action_mask is not None:  # what is illegal was not the network's to say
        by_policy = (by_policy[0].masked_fill(~batch.action_mask, 0.0),)
    return by_policy, error * (2 * params.vf_coef / rows), parts


def _scaled(advantage: Tensor) -> Tensor:
    """Return advantages with zero mean and unit deviation."""
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def policy_change(log_ratio: Tensor, clip_coef: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the approximate KL divergence of the new policy from the old, and the share of clipped ratios."""
    ratio = log_ratio.exp()
    approx_kl = (ratio - 1 - log_ratio).mean()  # the low-variance estimator k3 of http://joschu.net/blog/kl-approx.html
    return approx_kl, ((ratio - 1).abs() > clip_coef).to(ratio.dtype).mean()


def explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return how much of the target's variance the prediction explains: 1 is all, 0 none."""
    return 1 - (target - predicted).var(correction=0) / target.var(correction=0).clamp_min(1e-8)
