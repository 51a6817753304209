"""The gradient of PPO's loss, written out for perceptrons with categorical or Gaussian policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms import advantages, ppo
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPO, PPOBatch, scaled_advantage
from rl_training.kernels import requires
from rl_training.kernels.checks import replace_gradient, replace_method
from rl_training.kernels.perceptrons import Perceptrons, differentiable, linear_backward
from rl_training.kernels.policies import head_backward, known_head, policy_gradient
from rl_training.models.actor_critic import ACTOR, ActorCritic
from rl_training.models.heads import (
    ActionHead,
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
)
from rl_training.models.optimizers import FlatOptimizer


def attach(algorithm: PPO, kernel: str, updates: float | None) -> None:
    """Replace learning and acting by compiled code, or the gradient by a written-out one where that is not covered."""
    requires.own_formula(algorithm, PPO, "loss", "gradient")
    requires.own_functions(ppo, "ppo_loss", "scaled_advantage")
    model = requires.exact(algorithm.model, ActorCritic)
    requires.plain_encoder(model.encoder)
    requires.that(differentiable(model.stacks), "the activation has no written-out gradient")
    if compilable(algorithm):
        requires.enough_updates(updates)
        attach_compiled(algorithm, kernel)
        return
    requires.that(known_head(model.head), f"{type(model.head).__name__} has no written-out gradient")
    replace_gradient(algorithm, kernel, "gradient", PPOGradient(algorithm), algorithm.optimizer)


def compilable(algorithm: PPO) -> bool:
    """Return whether compiled code covers all gradient steps of an update."""
    own = all(
        getattr(type(algorithm), name) is getattr(PPO, name) for name in ("improve", "evaluate_actions", "_minibatches")
    )
    # Of several threads large products take advantage, which torch shares out among them.
    return (
        own
        and algorithm.device.type == "cpu"
        and torch.get_num_threads() == 1
        and not algorithm.params.compile
        and type(algorithm.optimizer) is FlatOptimizer
        and type(algorithm.model.head) in (CategoricalHead, MultiCategoricalHead, BernoulliHead, GaussianHead)
    )


def attach_compiled(algorithm: PPO, kernel: str) -> None:
    """Replace acting, evaluating and learning by compiled code."""
    from rl_training.kernels.compiled_ppo import CompiledPPO  # numba takes a third of a second to import

    compiled = CompiledPPO(algorithm, kernel)
    replace_method(algorithm, "evaluate_actions", compiled.evaluate_actions, compiled.check_evaluation)
    replace_method(algorithm, "improve", compiled.improve, compiled.check_improvement)
    if requires.is_own(algorithm, PPO, "values"):
        replace_method(algorithm, "values", compiled.state_values, compiled.check_values)
    own_estimate = vars(ppo)["generalized_advantage"] is advantages.generalized_advantage
    if own_estimate and requires.is_own(algorithm, PPO, "advantages"):
        replace_method(algorithm, "advantages", compiled.advantages, compiled.check_advantages)
    if requires.is_own(algorithm, PPO, "act"):
        replace_method(algorithm, "act", compiled.act, compiled.check_act)
        if requires.is_own(algorithm, PPO, "env_action") and type(algorithm).act_on_host is PPO.act_on_host:
            replace_method(algorithm, "act_on_host", compiled.act_on_host, compiled.check_act_on_host)


class PPOGradient:
    """Fills the parameters' gradients as `PPO.gradient` does."""

    def __init__(self, algorithm: PPO) -> None:
        self.params = algorithm.params
        self.model: ActorCritic = algorithm.model
        self.stacks = Perceptrons(self.model.stacks)
        self._loss_gradient: Any = torch.compile(loss_gradient, dynamic=False) if self.params.compile else loss_gradient

    @torch.no_grad()
    def __call__(self, batch: PPOBatch, controls: Mapping[str, float | Tensor]) -> dict[str, Tensor]:
        """Return the loss's parts."""
        model = self.model
        activations = self.stacks.forward(model.encoder(batch.observation))
        actor, critic = activations[-1].unbind(0)
        output, value = model.head.linear(actor), model.value_head(critic).squeeze(-1)
        grad_policy, grad_value, parts = self._loss_gradient(model.head, output, value, batch, controls, self.params)
        grad_latent = self.stacks.gradient_buffer(activations[-1])
        head_backward(model.head, actor, grad_policy, out=grad_latent[ACTOR])
        linear_backward(model.value_head, critic, grad_value.unsqueeze(1), out=grad_latent[1 - ACTOR])
        self.stacks.backward(activations, grad_latent)
        return parts


def loss_gradient(
    head: ActionHead,
    output: Tensor,
    value: Tensor,
    batch: PPOBatch,
    controls: Mapping[str, float | Tensor],
    params: PPOParams,
) -> tuple[tuple[Tensor, ...], Tensor, dict[str, Tensor]]:
    """Return the gradient of `ppo_loss` with respect to the policy's distribution and to the values [B], and its parts.

    `output` is that of the action head's layer.
    """
    clip_coef, ent_coef = controls["clip_coef"], controls["ent_coef"]
    distribution, rows = head.distribution(output, batch.action_mask), len(value)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = log_ratio.exp()
    advantage = scaled_advantage(batch.advantage) if params.normalize_advantage else batch.advantage
    gain = advantage * ratio
    limited = advantage * ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(gain, limited).mean()
    grad_log_prob = (gain <= limited) * gain / -rows

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
    grad_policy = policy_gradient(distribution, batch.action, grad_log_prob, -ent_coef / rows)
    if batch.action_mask is not None:  # the logits of illegal actions are constants
        grad_policy = (grad_policy[0].masked_fill(~batch.action_mask, 0.0),)
    return grad_policy, error * (2 * params.vf_coef / rows), parts
