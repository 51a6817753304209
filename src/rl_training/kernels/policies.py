"""Gradients of action distributions and of the heads that make them, written out. B is the batch size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.kernels.perceptrons import gradient_of, linear_backward
from rl_training.models.distributions import Categorical, DiagonalGaussian
from rl_training.models.heads import CategoricalHead, GaussianHead

Policy = Categorical | DiagonalGaussian


def known_head(head: nn.Module) -> bool:
    """Return whether `head_backward` knows a head."""
    return type(head) in (CategoricalHead, GaussianHead)


def policy_gradient(
    policy: Policy, action: Tensor, grad_log_prob: Tensor, grad_entropy: float | Tensor
) -> tuple[Tensor, ...]:
    """Return the gradient with respect to what a distribution is made of.

    Given are those with respect to log_prob(action) [B] and to each entropy. The result is of logits [B, n], or of mean
    and log_std [B, d].
    """
    if isinstance(policy, Categorical):
        return (_categorical_gradient(policy, action, grad_log_prob, grad_entropy),)
    inverse = torch.exp(-policy.log_std)
    standard = (action - policy.mean) * inverse
    grad_log_prob = grad_log_prob.unsqueeze(1)
    return grad_log_prob * standard * inverse, grad_log_prob * (standard.square() - 1) + grad_entropy


def _categorical_gradient(
    policy: Categorical, action: Tensor, grad_log_prob: Tensor, grad_entropy: float | Tensor
) -> Tensor:
    probs = policy.log_probs.exp()
    grad_logits = probs * -grad_log_prob.unsqueeze(1)
    grad_logits.scatter_add_(1, action.unsqueeze(1), grad_log_prob.unsqueeze(1))
    if isinstance(grad_entropy, Tensor) or grad_entropy:
        weighted = probs * policy.log_probs
        grad_logits -= grad_entropy * (weighted - probs * weighted.sum(dim=1, keepdim=True))
    return grad_logits


def head_backward(head: nn.Module, latent: Tensor, gradient: tuple[Tensor, ...], *, out: Tensor) -> None:
    """Overwrite a head's gradients, given `policy_gradient`; `out` gets that with respect to latents [B, latent]."""
    assert isinstance(head, CategoricalHead | GaussianHead)
    linear_backward(head.linear, latent, gradient[0], out=out)
    if isinstance(head, GaussianHead):
        torch.sum(gradient[1], 0, out=gradient_of(head.log_std))
