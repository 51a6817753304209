"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), and A2C as its one-epoch special case.

A2C is PPO with one epoch over the whole rollout: the ratio is then 1, the clip never acts, and the
gradient is the plain policy gradient (Huang et al. 2022, arXiv 2205.09123).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.ppo_loss import (
    PPOBatch,
    explained_variance,
    generalized_advantage,
    loss_slopes,
    policy_change,
    ppo_gradient,
    ppo_loss,
)
from rl_training.algorithms.ppo_params import PPOParams
from rl_training.algorithms.weights import load_parts
from rl_training.data.observations import Observation
from rl_training.data.rollout import Rollout
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.exploration import ExplorationMatrices
from rl_training.models.heads import StateDependentNoiseHead
from rl_training.models.optimizers import FlatOptimizer


class PPO:
    """Model and optimizer of PPO: acts, and learns from rollouts."""

    def __init__(
        self,
        params: PPOParams,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.params = params
        self.device = device
        self.model = ActorCritic(
            observation_space,
            action_space,
            hidden_sizes=params.hidden_sizes,
            activation=params.activation,
            orthogonal_init=params.orthogonal_init,
            log_std=params.log_std,
            log_std_init=params.log_std_init,
            use_sde=params.use_sde,
            generator=generator,
        ).to(device)
        self.optimizer = FlatOptimizer(self.model.parameters(), params.optimizer, eps=params.optimizer_eps)
        self._by_hand = self.model.plain
        formula: Callable[..., Any] = loss_slopes if self._by_hand else ppo_loss
        self._formula = torch.compile(formula, dynamic=False) if params.compile else formula
        self._exploration = ExplorationMatrices(params.sde_sample_freq, device)

    def start_rollout(self) -> None:
        """Forget the exploration matrices, so that the rollout draws its own."""
        self._exploration.forget()

    @torch.inference_mode()
    def act(self, observation: Observation, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return exploring actions [num_envs, ...] for a batch of observations."""
        if not self.params.use_sde:
            return self.model.policy(observation, mask).sample(generator)
        head = self.model.head
        assert isinstance(head, StateDependentNoiseHead)
        latent = self.model.policy_latent(observation)
        return head.explore(latent, self._exploration.step(head.log_std, len(latent), generator))

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the most likely actions, or sampled ones where a generator is given."""
        distribution = self.model.policy(observation, mask)
        return distribution.mode() if generator is None else distribution.sample(generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions [B, ...] in the form the environment takes."""
        return self.model.head.env_action(action)

    @torch.no_grad()
    def values(self, observation: Observation) -> Tensor:
        """Return the critic's values [B] of a batch of observations."""
        value: Tensor = self.model(observation, None)[1]
        return value

    def update(self, rollout: Rollout, controls: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Improve the model on one rollout and return the means of the loss's parts."""
        clip_coef: float | Tensor = controls["clip_coef"]
        ent_coef: float | Tensor = controls["ent_coef"]
        if self.params.compile:  # a changing Python number would compile anew
            clip_coef, ent_coef = (torch.tensor(value, device=self.device) for value in (clip_coef, ent_coef))
        step: Any = {"learning_rate": controls["learning_rate"], "max_grad_norm": self.params.max_grad_norm}
        batch = self._prepare(rollout)
        history: list[dict[str, Tensor]] = []
        stopped = False
        for _ in range(self.params.update_epochs):
            for minibatch in self._minibatches(batch, generator):
                arguments = (self.model, minibatch, clip_coef, ent_coef, self.params)
                if self._by_hand:
                    parts = ppo_gradient(*arguments, slopes=self._formula)
                else:
                    loss, parts = self._formula(*arguments)
                history.append(parts)
                if self.params.target_kl is not None:
                    approx_kl, _ = policy_change(parts["log_ratio"], clip_coef)
                    if approx_kl > 1.5 * self.params.target_kl:
                        stopped = True
                        break
                parts["gradient_norm"] = (
                    self.optimizer.descend(**step) if self._by_hand else self.optimizer.step(loss, **step)
                )
            if stopped:
                break
        log_ratio = torch.cat([parts.pop("log_ratio") for parts in history])  # of all gradient steps at once
        means = {name: torch.stack([parts[name] for parts in history if name in parts]).mean() for name in history[0]}
        means["approx_kl"], means["clip_fraction"] = policy_change(log_ratio, clip_coef)
        means["explained_variance"] = explained_variance(batch.value, batch.target_value)
        return means

    def _prepare(self, rollout: Rollout) -> PPOBatch:
        """Evaluate the rollout once under the policy that acted and compute its targets."""
        with torch.no_grad():
            observation, action, mask = rollout.flat_observation(), rollout.flat_action(), rollout.flat_mask()
            distribution, flat_value = self.model(observation, mask)
            log_prob = distribution.log_prob(action)
            value = flat_value.view(rollout.reward.shape)
            advantage = generalized_advantage(
                rollout.reward,
                value,
                rollout.final_value,
                rollout.terminated,
                rollout.truncated,
                self.values(rollout.last_observation),
                gamma=self.params.gamma,
                gae_lambda=self.params.gae_lambda,
            )
        return PPOBatch(
            observation=observation,
            action=action,
            action_mask=mask,
            log_prob=log_prob,
            value=flat_value,
            advantage=advantage.flatten(),
            target_value=(advantage + value).flatten(),
        )

    def _minibatches(self, batch: PPOBatch, generator: torch.Generator) -> Iterator[PPOBatch]:
        size, rows = self.params.minibatch_size, batch.log_prob.shape[0]
        if size is None or size == rows:
            yield batch  # the order of one full batch changes nothing
            return
        for indices in torch.randperm(rows, generator=generator, device=self.device).split(size):
            # A left-over single row has no deviation to normalise by; the next epoch shuffles it elsewhere.
            if len(indices) > 1 or not self.params.normalize_advantage:
                yield batch.select(indices)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **self._exploration.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._exploration.load_state_dict(state)

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over what a saved state has learned; optimizers and counters stay as they are."""
        load_parts(self, state, ("model",))
