"""SAC in compiled code: acting, and all gradient steps of an update, for perceptrons on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.sac import SAC
from rl_training.data.observations import Observation
from rl_training.data.replay import ReplayBatch
from rl_training.kernels.checks import compare
from rl_training.kernels.compiled.continuous import actor_critics, sac_update
from rl_training.kernels.continuous.compiled_update import CompiledUpdate, stack_of, tensors_of
from rl_training.kernels.layouts import flat_array


class CompiledSAC(CompiledUpdate):
    """Takes the place of `act` and `improve`."""

    algorithm: SAC

    def __init__(self, algorithm: SAC, kernel: str, parts: int = 1) -> None:
        actor, values = algorithm.actor, algorithm.actor_optimizer.values
        super().__init__(
            algorithm,
            kernel,
            parts,
            stack_of(values, actor.hidden, (actor.mean, actor.log_std_head)),
            stack_of(algorithm.critic_optimizer.values, algorithm.critic.networks),
            (values, algorithm.target_values),
        )
        temperature = algorithm.temperature
        self._temperature = sac_update.Temperature(
            temperature.optimizer.values.numpy(),
            temperature.optimizer.state["exp_avg"].numpy(),
            temperature.optimizer.state["exp_avg_sq"].numpy(),
            temperature.optimizer.gradient.numpy(),
            temperature.learned,
            float(algorithm.target_entropy),
            0,
        )

    @torch.inference_mode()
    def act(
        self, observation: Observation, mask: Tensor | None, controls: Mapping[str, float], generator: torch.Generator
    ) -> Tensor:
        """Return exploring actions [num_envs, size] within [-1, 1]."""
        features = self.encode_for_actor(observation)
        return self.actions(features, self.noise_for(features, generator))

    def actions(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return the actions that standard normal noise [B, size] makes of features [B, inputs]."""
        action = torch.empty_like(noise)
        sac_update.squashed_actions(
            self.actor.values, self.actors, flat_array(features), flat_array(noise), self.memory[0], flat_array(action)
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
        """Compare actions without noise, and with one that is the same for all: both means and deviations count."""
        actor = self.algorithm.actor
        with torch.no_grad():
            features, mean = actor.encoder(observation), actor(observation)[0]
            for noise in (torch.zeros_like(mean), torch.ones_like(mean)):
                expected, _ = actor.sample(observation, noise)
                compare(self.kernel, "the actions of this run's first policy", self.actions(features, noise), expected)

    def improve(self, batch: ReplayBatch, noise: Tensor, learning_rate: float) -> dict[str, Tensor]:
        """Take the gradient steps of one update and return metrics."""
        report = self.step(batch, noise, learning_rate, (0.0, self.algorithm.params.tau))
        sums = report.sum(axis=0)
        metrics = {
            "loss_critic": sums[actor_critics.LOSS_CRITIC],
            "q_mean": sums[actor_critics.VALUE],
            "temperature": report[0, actor_critics.TEMPERATURE],
            "gradient_norm": np.sqrt(sums[actor_critics.CRITIC_SQUARES]),
        }
        if self.algorithm.actor_due:
            if self._temperature.learned:
                self.algorithm.temperature.optimizer.count_steps(1)
            metrics["loss_actor"] = sums[actor_critics.LOSS_ACTOR]
            metrics["entropy"] = -sums[actor_critics.LOG_PROB]
        return tensors_of(metrics)

    def settings(self) -> sac_update.Temperature:
        """Return the temperature."""
        return self._temperature._replace(step=self.algorithm.temperature.optimizer.steps + 1)

    def run_part(self, phases: actor_critics.Phases, part: int, shared: tuple[Any, ...], report: np.ndarray) -> None:
        """Run phases of an update for one part of the batch."""
        sac_update.sac_update(phases, part, self.parts, *shared, self.memory[part], report)

    def gradients(self, batch: ReplayBatch, noise: Tensor) -> list[Callable[[], Any]]:
        """Return the functions that compute the critics' and the actor's gradients by autograd."""
        algorithm = self.algorithm
        return [lambda: algorithm.critic_gradient(batch, noise), lambda: algorithm.actor_gradient(batch, noise)]
