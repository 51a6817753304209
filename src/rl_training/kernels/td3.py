"""The gradients of TD3's losses, written out for perceptrons."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms import td3
from rl_training.algorithms.td3 import TD3, TD3Params, td3_target
from rl_training.data.replay import ReplayBatch
from rl_training.kernels import requires
from rl_training.kernels.checks import replace_gradient, replace_method
from rl_training.kernels.continuous.passes import CriticPasses, DeterministicActorPasses, parts_of, require_compilable


def attach(algorithm: TD3, kernel: str, updates: float | None) -> str | None:
    """Replace acting and learning by compiled code, or the gradients by written-out ones and return why not more."""
    requires.own_formula(algorithm, TD3, "critic_loss", "actor_loss", "critic_gradient", "actor_gradient")
    requires.own_functions(td3, "td3_target", "smoothed_action", "td3_critic_loss", "td3_actor_loss")
    gradients = TD3Gradients(algorithm)
    try:
        attach_compiled(algorithm, kernel, updates)
    except requires.NoKernel as missing:
        replace_gradient(algorithm, kernel, "critic_gradient", gradients.critic, algorithm.critic_optimizer)
        replace_gradient(algorithm, kernel, "actor_gradient", gradients.actor, algorithm.actor_optimizer)
        return f"the gradients are written out but not compiled: {missing}"
    return None


def attach_compiled(algorithm: TD3, kernel: str, updates: float | None) -> None:
    """Replace acting and all gradient steps by compiled code."""
    require_compilable(algorithm, TD3, algorithm.actor.network, updates)
    from rl_training.kernels.continuous.compiled_td3 import CompiledTD3  # numba takes a third of a second to import

    assert isinstance(algorithm.params, TD3Params)
    compiled = CompiledTD3(algorithm, kernel, parts_of(algorithm.params.batch_size))
    replace_method(algorithm, "improve", compiled.improve, compiled.check_improvement)
    if requires.is_own(algorithm, TD3, "act", "_explore"):
        replace_method(algorithm, "act", compiled.act, compiled.check_act)


class TD3Gradients:
    """Fills the gradients of critics and actor."""

    def __init__(self, algorithm: TD3) -> None:
        self.algorithm = algorithm
        self.policy = DeterministicActorPasses(algorithm.actor)
        self.critics = CriticPasses(algorithm.critic)

    @torch.no_grad()
    def critic(self, batch: ReplayBatch, noise: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of the critics' loss and return metrics."""
        algorithm = self.algorithm
        target = td3_target(algorithm.target_critic, algorithm.target_actor, batch, noise, algorithm.params)
        activations = self.critics.forward(batch.observation, batch.action)
        error = activations[-1] - target.unsqueeze(1)  # [critics, B, 1]
        self.critics.backward(activations, error * (2 / len(target)))
        return {"loss_critic": error.square().mean(dim=1).sum(), "q_mean": activations[-1].mean()}

    @torch.no_grad()
    def actor(self, batch: ReplayBatch) -> dict[str, Tensor]:
        """Compute the gradient of the actor's loss and return metrics."""
        hidden, action = self.policy.forward(batch.observation)
        activations = self.critics.forward(batch.observation, action, count=1)
        grad_values = torch.full_like(activations[-1], -1 / len(action))
        self.policy.backward(hidden, action, self.critics.action_gradient(activations, grad_values))
        return {"loss_actor": -activations[-1].mean()}
