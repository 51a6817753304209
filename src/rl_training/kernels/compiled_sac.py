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
from rl_training.kernels.compiled import actor_critics
from rl_training.kernels.compiled import sac_update as compiled
from rl_training.kernels.compiled_continuous import Phases, allocate, descent_of, parameters_of, spans, stack_of
from rl_training.kernels.layouts import flat_array


class CompiledSAC:
    """Takes the place of `act` and `improve`."""

    def __init__(self, algorithm: SAC, kernel: str, parts: int = 1) -> None:
        """`parts` of a batch are passed at the same time, each by a thread of its own."""
        self.algorithm = algorithm
        self.kernel = kernel
        actor, critic = algorithm.actor, algorithm.critic
        actor_values, critic_values = algorithm.actor_optimizer.values, algorithm.critic_optimizer.values
        self.actors = stack_of(actor_values, actor.hidden, (actor.mean, actor.log_std_head))
        self.critics = stack_of(critic_values, critic.networks)
        self.actor = parameters_of(algorithm.actor_optimizer, actor_values, parts)
        self.critic = parameters_of(algorithm.critic_optimizer, algorithm.target_values, parts)
        self.memory = [allocate(self.actors, self.critics) for _ in range(parts)]
        self.phases = Phases(parts)
        # Calling the modules themselves takes longer than they do.
        self._encoders: tuple[Any, Any] = actor.encoder.forward, critic.encoder.forward
        self._noise = torch.empty(0, actor.size)

    @torch.inference_mode()
    def act(
        self, observation: Observation, mask: Tensor | None, controls: Mapping[str, float], generator: torch.Generator
    ) -> Tensor:
        """Return exploring actions [num_envs, size] within [-1, 1]."""
        features = self._encoders[0](observation)
        if len(self._noise) != len(features):
            self._noise = torch.empty(len(features), self.actors.size)
        return self.actions(features, self._noise.normal_(generator=generator))

    def actions(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return the actions that standard normal noise [B, size] makes of features [B, inputs]."""
        action = torch.empty_like(noise)
        compiled.squashed_actions(
            self.actor.values,
            self.actors,
            flat_array(features),
            flat_array(noise),
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
        """Compare means and their deviations: actions without noise, and with one that is the same for all."""
        actor = self.algorithm.actor
        with torch.no_grad():
            features, mean = actor.encoder(observation), actor(observation)[0]
            for noise in (torch.zeros_like(mean), torch.ones_like(mean)):
                expected, _ = actor.sample(observation, noise)
                compare(self.kernel, "the actions of this run's first policy", self.actions(features, noise), expected)

    def improve(self, batch: ReplayBatch, noise: Tensor, learning_rate: float) -> dict[str, Tensor]:
        """Take the gradient steps of one update and return metrics."""
        algorithm = self.algorithm
        actor_due, clipped = algorithm.actor_due, algorithm.params.max_grad_norm is not None
        report = self._run(batch, noise, learning_rate, spans(actor=actor_due, clipped=clipped))
        algorithm.critic_optimizer.count_steps(1)
        torch.autograd.graph.increment_version(algorithm.target_values)
        if actor_due:
            algorithm.actor_optimizer.count_steps(1)
            if algorithm.temperature.learned:
                algorithm.temperature.optimizer.count_steps(1)
        return self._metrics(report, actor_due=actor_due)

    def check_improvement(
        self, reference: Callable[..., Any], batch: ReplayBatch, noise: Tensor, learning_rate: float
    ) -> None:
        """Compare the gradients of critics and actor."""
        algorithm = self.algorithm
        for phase, optimizer, gradient in (
            (actor_critics.CRITIC_GRADIENT, algorithm.critic_optimizer, algorithm.critic_gradient),
            (actor_critics.ACTOR_GRADIENT, algorithm.actor_optimizer, algorithm.actor_gradient),
        ):
            gradient(batch, noise)
            expected = optimizer.gradient.clone()
            self._run(batch, noise, learning_rate, [(phase, phase + 1), (phase + 1, phase + 2)])
            compare(self.kernel, "the gradient of this run's first update", optimizer.gradient, expected)

    def _run(
        self, batch: ReplayBatch, noise: Tensor, learning_rate: float, phases: list[tuple[int, int]]
    ) -> np.ndarray:
        """Run phases of an update and return their report."""
        algorithm, (_, encode) = self.algorithm, self._encoders
        params, temperature, parts = algorithm.params, algorithm.temperature, self.phases.parts
        step: Any = {"learning_rate": learning_rate, "max_grad_norm": params.max_grad_norm}
        shared = (
            self.actor,
            self.critic,
            self.actors,
            self.critics,
            compiled.Temperature(
                temperature.log.detach().numpy(),
                temperature.optimizer.state["exp_avg"].numpy(),
                temperature.optimizer.state["exp_avg_sq"].numpy(),
                temperature.optimizer.gradient.numpy(),
                temperature.learned,
                float(algorithm.target_entropy),
                temperature.optimizer.steps + 1,
            ),
            actor_critics.Transitions(
                flat_array(encode(batch.observation)),
                flat_array(encode(batch.next_observation)),
                flat_array(batch.action),
                flat_array(batch.reward),
                flat_array(batch.discount),
                flat_array(noise),
            ),
            descent_of(algorithm.actor_optimizer, **step),
            descent_of(algorithm.critic_optimizer, **step, tau=params.tau),
        )
        report = np.zeros((parts, actor_critics.REPORT))

        def work(first: int, end: int, part: int) -> None:
            compiled.sac_update(first, end, part, parts, *shared, self.memory[part], report)

        self.phases.run(work, phases)
        return report

    def _metrics(self, report: np.ndarray, *, actor_due: bool) -> dict[str, Tensor]:
        sums = report.sum(axis=0)
        metrics = {
            "loss_critic": sums[actor_critics.LOSS_CRITIC],
            "q_mean": sums[actor_critics.VALUE],
            "temperature": report[0, actor_critics.TEMPERATURE],
            "gradient_norm": np.sqrt(sums[actor_critics.CRITIC_SQUARES]),
        }
        if actor_due:
            metrics |= {
                "loss_actor": sums[actor_critics.LOSS_ACTOR],
                "entropy": -sums[actor_critics.LOG_PROB],
            }
        numbers = torch.from_numpy(np.array(list(metrics.values()), np.float32))
        return dict(zip(metrics, numbers.unbind(), strict=True))
