"""TD3 in compiled code: acting, and all gradient steps of an update, for perceptrons on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.td3 import TD3
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.kernels.checks import compare
from rl_training.kernels.compiled.continuous import actor_critics, td3_update
from rl_training.kernels.continuous.compiled_update import CompiledUpdate, stack_of, tensors_of
from rl_training.kernels.layouts import flat_array


class CompiledTD3(CompiledUpdate):
    """Takes the place of `act` and `improve`."""

    algorithm: TD3

    def __init__(self, algorithm: TD3, kernel: str, parts: int = 1) -> None:
        super().__init__(
            algorithm,
            kernel,
            parts,
            stack_of(algorithm.actor_optimizer.values, algorithm.actor.network),
            stack_of(algorithm.critic_optimizer.values, algorithm.critic.networks),
            (algorithm.target_actor_values, algorithm.target_critic_values),
        )
        params = algorithm.params
        self._smoothing = td3_update.Smoothing(float(params.target_noise), float(params.target_noise_clip))

    @torch.inference_mode()
    def act(
        self, observation: Observation, mask: Tensor | None, controls: Mapping[str, float], generator: torch.Generator
    ) -> Tensor:
        """Return exploring actions [num_envs, size] within [-1, 1]."""
        features = self.encode_for_actor(observation)
        noise = self.noise_for(features, generator)
        return self.actions(features, noise, float(self.algorithm.params.exploration_noise))

    def actions(self, features: Tensor, noise: Tensor, deviation: float) -> Tensor:
        """Return the actions for features [B, inputs], with standard normal noise [B, size] times `deviation`."""
        action = torch.empty_like(noise)
        td3_update.exploring_actions(
            self.actor.values,
            self.actors,
            flat_array(features),
            flat_array(noise),
            deviation,
            self.memory[0],
            flat_array(action),
        )
        return action

    def check_act(
        self,
        reference: Callable[..., Tensor],
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> None:
        """Compare actions without noise."""
        with torch.no_grad():
            expected = self.algorithm.actor(observation)
            found = self.actions(self.algorithm.actor.encoder(observation), torch.zeros_like(expected), 0.0)
        compare(self.kernel, "the actions of this run's first policy", found, expected)

    def improve(self, batch: ReplayBatch, noise: Tensor, learning_rate: float) -> dict[str, Tensor]:
        """Take the gradient steps of one update and return metrics."""
        actor_due = self.algorithm.actor_due
        tau = self.algorithm.params.tau if actor_due else 0.0
        sums = self.step(batch, noise, learning_rate, (tau, tau)).sum(axis=0)
        metrics = {
            "loss_critic": sums[actor_critics.LOSS_CRITIC],
            "q_mean": sums[actor_critics.VALUE],
            "gradient_norm": np.sqrt(sums[actor_critics.CRITIC_SQUARES]),
        }
        if actor_due:
            metrics["loss_actor"] = sums[actor_critics.LOSS_ACTOR]
        return tensors_of(metrics)

    def settings(self) -> td3_update.Smoothing:
        """Return the noise on the target policy's actions."""
        return self._smoothing

    def run_part(self, phases: actor_critics.Phases, part: int, shared: tuple[Any, ...], report: np.ndarray) -> None:
        """Run phases of an update for one part of the batch."""
        td3_update.td3_update(phases, part, self.parts, *shared, self.memory[part], report)

    def gradients(self, batch: ReplayBatch, noise: Tensor) -> list[Callable[[], Any]]:
        """Return the functions that compute the critics' and the actor's gradients by autograd."""
        algorithm = self.algorithm
        return [lambda: algorithm.critic_gradient(batch, noise), lambda: algorithm.actor_gradient(batch)]
