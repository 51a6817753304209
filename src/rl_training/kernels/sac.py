"""The gradients of SAC's losses, written out for perceptrons with target networks and one value per critic."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms import sac
from rl_training.algorithms.sac import SAC, soft_target
from rl_training.algorithms.temperature import Temperature
from rl_training.data.observations import map_observation
from rl_training.data.replay import ReplayBatch
from rl_training.kernels import requires
from rl_training.kernels.checks import replace_gradient, replace_method
from rl_training.kernels.continuous.passes import (
    CriticPasses,
    Sample,
    SquashedActorPasses,
    parts_of,
    require_compilable,
)


def attach(algorithm: SAC, kernel: str, updates: float | None) -> str | None:
    """Replace acting and learning by compiled code, or the gradients by written-out ones and return why not more."""
    requires.own_formula(algorithm, SAC, "critic_loss", "actor_loss", "critic_gradient", "actor_gradient")
    requires.own_functions(sac, "critic_loss", "actor_loss", "soft_target")
    requires.that(algorithm.params.num_quantiles == 1, "quantile critics have no written-out gradient")
    requires.that(algorithm.target_critic is not None, "critics without targets have no written-out gradient")
    requires.that(algorithm.params.target_critics is None, "a target of drawn critics has no written-out gradient")
    requires.that(algorithm.params.policy_value == "min", "an actor of mean values has no written-out gradient")
    gradients = SACGradients(algorithm)
    try:
        attach_compiled(algorithm, kernel, updates)
    except requires.NoKernel as missing:
        replace_gradient(algorithm, kernel, "critic_gradient", gradients.critic, algorithm.critic_optimizer)
        replace_gradient(algorithm, kernel, "actor_gradient", gradients.actor, algorithm.actor_optimizer)
        return f"the gradients are written out but not compiled: {missing}"
    return None


def attach_compiled(algorithm: SAC, kernel: str, updates: float | None) -> None:
    """Replace acting and all gradient steps by compiled code."""
    require_compilable(algorithm, SAC, algorithm.actor.hidden, updates)
    requires.exact(algorithm.temperature, Temperature)
    from rl_training.kernels.continuous.compiled_sac import CompiledSAC  # numba takes a third of a second to import

    compiled = CompiledSAC(algorithm, kernel, parts_of(algorithm.params.batch_size))
    replace_method(algorithm, "improve", compiled.improve, compiled.check_improvement)
    if requires.is_own(algorithm, SAC, "act", "_sample"):
        replace_method(algorithm, "act", compiled.act, compiled.check_act)


class SACGradients:
    """Fills the gradients of critics and actor; one pass of the actor serves both losses of an update."""

    def __init__(self, algorithm: SAC) -> None:
        self.algorithm = algorithm
        self.policy = SquashedActorPasses(algorithm.actor)
        self.critics = CriticPasses(algorithm.critic)
        self.targets = CriticPasses(algorithm.target_critic)
        self._states: Sample

    @torch.no_grad()
    def critic(self, batch: ReplayBatch, noise: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of the critics' loss and return metrics."""
        algorithm = self.algorithm
        if algorithm.actor_due:  # the actor does not change before its own loss: one pass samples for both
            both = map_observation(lambda *parts: torch.cat(parts), batch.next_observation, batch.observation)
            successors, self._states = self.policy.sample(both, noise.flatten(0, 1)).split(len(batch.reward))
        else:
            successors = self.policy.sample(batch.next_observation, noise[0])
        temperature = algorithm.temperature.value
        values = self.targets.forward(batch.next_observation, successors.action)[-1]
        target = soft_target(values, successors.log_prob, batch, temperature, algorithm.params)
        activations = self.critics.forward(batch.observation, batch.action)
        error = activations[-1] - target  # [critics, B, 1]
        self.critics.backward(activations, error / len(target))
        return {
            "loss_critic": 0.5 * error.square().mean(dim=1).sum(),
            "q_mean": activations[-1].mean(),
            "temperature": temperature.squeeze(),
        }

    @torch.no_grad()
    def actor(self, batch: ReplayBatch, noise: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of the actor's loss and return metrics."""
        sample, temperature = self._states, self.algorithm.temperature.value
        activations = self.critics.forward(batch.observation, sample.action)
        value = activations[-1].amin(dim=0)  # [B, 1]
        smallest = (activations[-1] == value).float()  # critics that agree share the gradient
        grad_values = smallest / (-len(value) * smallest.sum(dim=0))
        grad_action = self.critics.action_gradient(activations, grad_values)
        self.policy.backward(sample, grad_action, temperature / len(value))
        loss = (temperature * sample.log_prob - value.squeeze(1)).mean()
        return {"loss_actor": loss, "entropy": -sample.log_prob.mean()}
