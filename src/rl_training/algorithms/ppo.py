"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), and A2C as its one-epoch special case.

A2C is PPO with one epoch over the whole rollout: the ratio is then 1, nothing is clipped, and the
gradient is the plain policy gradient (Huang et al. 2022, arXiv 2205.09123).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn import functional

from rl_training.algorithms.advantages import explained_variance, generalized_advantage, importance_weight, vtrace
from rl_training.algorithms.base import Algorithm, HostAction, OnPolicyAlgorithm, class_with_memory
from rl_training.algorithms.learners import Learners
from rl_training.algorithms.network_checks import ROWS, check_shape
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.data.observations import (
    NumpyObservation,
    Observation,
    index_observation,
    map_observation,
    to_tensor,
)
from rl_training.data.rollout import Rollout, shuffled
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.encoders import arranged, convolves
from rl_training.models.exploration import ExplorationMatrices
from rl_training.models.heads import StateDependentNoiseHead
from rl_training.models.optimizers import FlatOptimizer

Controls = Mapping[str, float | Tensor]
FEWEST_ROWS = 256  # evaluated at once; the activations of many images take memory, and time to get it
KL_MARGIN = 1.5  # how far beyond `target_kl` a minibatch may show the policy before the epochs end


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
    advantage_moments: Tensor | None = None  # [2] mean and deviation to normalise with; None: those of `advantage`

    def select(self, indices: Tensor) -> PPOBatch:
        """Return the rows given by `indices`."""
        return PPOBatch(
            observation=index_observation(self.observation, indices),
            action=self.action.index_select(0, indices),
            action_mask=None if self.action_mask is None else self.action_mask.index_select(0, indices),
            log_prob=self.log_prob.index_select(0, indices),
            value=self.value.index_select(0, indices),
            advantage=self.advantage.index_select(0, indices),
            target_value=self.target_value.index_select(0, indices),
        )


def ppo_loss(
    model: Callable[..., Any], batch: PPOBatch, controls: Mapping[str, float | Tensor], params: PPOParams
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped loss of a minibatch, and its parts: scalars, and the log of the probability ratios [B]."""
    clip_coef, ent_coef = controls["clip_coef"], controls["ent_coef"]
    distribution, value = model(batch.observation, batch.action_mask)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = log_ratio.exp()
    advantage = batch.advantage
    if params.normalize_advantage:
        advantage = scaled_advantage(advantage, batch.advantage_moments)
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
        entropy = distribution.entropy().mean()  # a metric even if its coefficient is 0
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


def scaled_advantage(advantage: Tensor, moments: Tensor | None = None) -> Tensor:
    """Return advantages normalised to zero mean and unit standard deviation, or by the mean and deviation given."""
    mean, deviation = (advantage.mean(), advantage.std()) if moments is None else moments.unbind()
    return (advantage - mean) / (deviation + 1e-8)


def joint_moments(advantage: Tensor, learners: Learners) -> Tensor:
    """Return mean and standard deviation [2] of the advantages of all learners, who have equally many."""
    own = advantage.double()
    mean, spread = own.mean(), own.var(correction=0)
    joint, square, spread = learners.average(torch.stack([mean, mean.square(), spread])).unbind()
    rows = len(own) * learners.count
    variance = (spread + square - joint.square()) * (rows / max(rows - 1, 1))
    return torch.stack([joint, variance.clamp(min=0).sqrt()]).to(advantage.dtype)


def policy_change(log_ratio: Tensor, clip_coef: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the approximate KL divergence of the new policy from the old, and the fraction of clipped ratios."""
    ratio = log_ratio.exp()
    approx_kl = (ratio - 1 - log_ratio).mean()  # the low-variance estimator k3 of http://joschu.net/blog/kl-approx.html
    return approx_kl, ((ratio - 1).abs() > clip_coef).to(ratio.dtype).mean()


class PPO(OnPolicyAlgorithm):
    """Actor-critic model and its optimizer."""

    params: PPOParams
    parts = ("model", "optimizer", "exploration")
    acting_parts = ("exploration",)
    learns_beside_absent = True
    remembers = False
    """Whether log-probabilities and values are those of acting, so that an update need not compute them."""

    @classmethod
    def for_params(cls, params: Any) -> type[Algorithm]:
        """Return the class with a memory where the parameters ask for one."""
        if getattr(params, "recurrent", None) is None:
            return cls
        from rl_training.algorithms.recurrent.recurrent_ppo import RecurrentPPO

        return class_with_memory(cls, PPO, RecurrentPPO)

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the model and its optimizer."""
        params = self.params
        self.model: Any = self.make_model(observation_space, action_space, generator).to(self.device)
        self.optimizer = FlatOptimizer(self.model.parameters(), params.optimizer, eps=params.optimizer_eps)
        self.exploration = ExplorationMatrices(params.sde_sample_freq, self.device)
        self._formula = torch.compile(self.loss, dynamic=False) if params.compile else self.loss
        self.remembers = self._shares_convolutions()

    def _shares_convolutions(self) -> bool:
        """Return whether actor and critic share the package's own convolutions on the CPU.

        These take most of the time of an evaluation. Other networks are cheap to evaluate in large batches, and a
        user's own may depend on the batch.
        """
        own = all(getattr(type(self), name) is getattr(PPO, name) for name in ("act", "evaluate_actions"))
        shared = type(self.model) is ActorCritic and convolves(self.model.encoder)
        return own and shared and not self.params.use_sde and self.device.type == "cpu"

    def make_model(
        self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator
    ) -> nn.Module:
        """Return the network: it maps observations and a mask to an action distribution and values [B]."""
        params = self.params
        return ActorCritic(
            self.make_encoder(observation_space, orthogonal=params.orthogonal_init, generator=generator),
            action_space,
            hidden_sizes=params.hidden_sizes,
            activation=params.activation,
            orthogonal_init=params.orthogonal_init,
            log_std=params.log_std,
            log_std_init=params.log_std_init,
            use_sde=params.use_sde,
            generator=generator,
        )

    def check_networks(self, observation: Observation) -> None:
        """Raise an error if the model does not return a distribution and values."""
        distribution, values = self.model(observation, None)
        action = self.model.policy(observation, None).mode()
        check_shape(self.model, "values", values, ROWS)
        check_shape(self.model, "log-probabilities", distribution.log_prob(action), ROWS)
        check_shape(self.model, "entropies", distribution.entropy(), ROWS)

    def start_rollout(self) -> None:
        """Discard the exploration matrices, so that each rollout draws new ones."""
        self.exploration.forget()

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return exploratory actions [num_envs, ...] for a batch of observations."""
        if not self.params.use_sde:
            return self.model.policy(observation, mask).sample(generator)
        head = self.model.head
        assert isinstance(head, StateDependentNoiseHead)
        latent = self.model.policy_latent(observation)
        return head.explore(latent, self.exploration.step(head.log_std, len(latent), generator))

    @torch.inference_mode()
    def act_on_host(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> HostAction:
        """Return the actions of `act` for arrays in host memory, and what an update needs where it is remembered."""
        if not self.remembers:
            return super().act_on_host(observation, mask, controls, generator)
        legal = None if mask is None else torch.as_tensor(mask)
        distribution, value = self.model(to_tensor(observation, self.device), legal)
        action = distribution.sample(generator)
        log_prob = distribution.log_prob(action)
        return HostAction(action.numpy(), self.env_action(action), log_prob.numpy(), value.numpy())

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the most likely actions, or sampled ones if a generator is given."""
        distribution = self.model.policy(observation, mask)
        return distribution.mode() if generator is None else distribution.sample(generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions [B, ...] in the format of the environment's action space."""
        return self.model.env_action(action)

    @torch.no_grad()
    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-probabilities [B] of actions in the environment's format; None with a model of one's own."""
        if not isinstance(self.model, ActorCritic):
            return None
        return self.model.head.env_log_prob(self.model.policy(observation, mask), action)

    @torch.no_grad()
    def values(self, observation: Observation) -> Tensor:
        """Return the critic's values [B] for a batch of observations."""
        value: Tensor = self.model(observation, None)[1]
        return value

    def loss(self, batch: PPOBatch, controls: Controls) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and its parts: scalars, and the vector `log_ratio` [B]."""
        return ppo_loss(self.model, batch, controls, self.params)

    def gradient(self, batch: PPOBatch, controls: Controls) -> dict[str, Tensor]:
        """Compute the gradient of the loss by autograd and return the parts of the loss."""
        loss, parts = self._formula(batch, controls)
        self.optimizer.backward(loss)
        return parts

    def update(self, batch: Rollout, controls: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Improve the model on one rollout and return the means of the loss's parts."""
        transitions = self.prepare(batch)
        metrics = self.improve(transitions, controls, generator)
        metrics["explained_variance"] = explained_variance(transitions.value, transitions.target_value)
        return metrics

    def improve(
        self, transitions: PPOBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Take the gradient steps of all epochs and return the means of the loss's parts."""
        scheduled: Controls = controls
        if self.params.compile:  # a changing Python number would cause recompilation
            scheduled = {name: torch.tensor(value, device=self.device) for name, value in controls.items()}
        step: Any = {"learning_rate": controls["learning_rate"], "max_grad_norm": self.params.max_grad_norm}
        history: list[dict[str, Tensor]] = []
        for minibatch in self._minibatches(transitions, generator):
            parts = self.gradient(self._with_joint_moments(minibatch), scheduled)
            history.append(parts)
            if self.params.target_kl is not None:
                approx_kl, _ = policy_change(parts["log_ratio"], controls["clip_coef"])
                if self.learners.average(approx_kl) > KL_MARGIN * self.params.target_kl:
                    break
            parts["gradient_norm"] = self.optimizer.descend(**step)
        log_ratio = torch.cat([parts.pop("log_ratio") for parts in history])  # of all gradient steps
        means = {name: torch.stack([parts[name] for parts in history if name in parts]).mean() for name in history[0]}
        means["approx_kl"], means["clip_fraction"] = policy_change(log_ratio, controls["clip_coef"])
        return means

    def _with_joint_moments(self, minibatch: PPOBatch) -> PPOBatch:
        """Return the minibatch, to be normalised together with those of other learners if there are any."""
        if self.learners.count == 1 or not self.params.normalize_advantage:
            return minibatch
        return replace(minibatch, advantage_moments=joint_moments(minibatch.advantage, self.learners))

    def prepare(self, rollout: Rollout) -> PPOBatch:
        """Compute log-probabilities, advantages and targets by the present weights, unless acting remembered them.

        After a lag, too, clipped ratios compare with the present policy, and advantages are weighted by truncated
        importance ratios (Hilton et al. 2022, arXiv 2110.00641): clipping around an earlier policy slows learning down.
        """
        with torch.no_grad():
            observation = arranged(getattr(self.model, "encoder", None), rollout.flat_observation())
            action, mask = rollout.flat_action(), rollout.flat_mask()
            log_prob, value = rollout.log_prob, rollout.value
            if log_prob is None or value is None:
                log_prob, value = (x.view(rollout.reward.shape) for x in self._evaluate(observation, action, mask))
            if rollout.log_prob is not None and rollout.value is None:
                target, advantage = self._corrected(rollout, value, log_prob - rollout.log_prob)
            else:
                advantage = self.advantages(rollout, value, self.last_values(rollout))
                target = advantage + value
        transitions = PPOBatch(
            observation=observation,
            action=action,
            action_mask=mask,
            log_prob=log_prob.flatten(),
            value=value.flatten(),
            advantage=advantage.flatten(),
            target_value=target.flatten(),
        )
        return transitions if rollout.real is None else transitions.select(rollout.real_rows())

    def _corrected(self, rollout: Rollout, value: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Return targets and advantages [num_steps, num_envs] of a rollout that an earlier policy has collected."""
        if not self.params.vtrace:
            advantage = self.advantages(rollout, value, self.last_values(rollout))
            return advantage + value, advantage * importance_weight(log_ratio, self.params.vtrace_clip)
        return vtrace(
            rollout.reward,
            value,
            rollout.final_value,
            rollout.terminated,
            rollout.truncated,
            self.last_values(rollout),
            log_ratio,
            gamma=self.params.gamma,
            gae_lambda=self.params.gae_lambda,
            clip=self.params.vtrace_clip,
        )

    @torch.no_grad()
    def as_acted(self, rollout: Rollout) -> Rollout:
        """Return the rollout with the log-probabilities of the present weights, unless acting remembered them.

        It has no values: those of an older critic would delay what the critic learns by another update.
        """
        log_prob = rollout.log_prob
        if log_prob is None:
            observation = arranged(getattr(self.model, "encoder", None), rollout.flat_observation())
            flat, _ = self._evaluate(observation, rollout.flat_action(), rollout.flat_mask())
            log_prob = flat.view(rollout.reward.shape)
        return replace(rollout, log_prob=log_prob, value=None)

    def last_values(self, rollout: Rollout) -> Tensor:
        """Return the values [num_envs] of the observations after the last step."""
        return self.values(rollout.last_observation)

    def advantages(self, rollout: Rollout, value: Tensor, last_value: Tensor) -> Tensor:
        """Return advantages [num_steps, num_envs], given the values of all observations and of the last ones."""
        return generalized_advantage(
            rollout.reward,
            value,
            rollout.final_value,
            rollout.terminated,
            rollout.truncated,
            last_value,
            gamma=self.params.gamma,
            gae_lambda=self.params.gae_lambda,
        )

    def _evaluate(self, observation: Observation, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [B] and values [B] of a rollout, computed from at most a minibatch at once."""
        size = max(self.params.minibatch_size or 0, FEWEST_ROWS)
        parts = [
            self.evaluate_actions(
                map_observation(lambda array, at=at: array[at : at + size], observation),
                action[at : at + size],
                None if mask is None else mask[at : at + size],
            )
            for at in range(0, len(action), size)
        ]
        log_prob, value = zip(*parts, strict=True)
        return torch.cat(log_prob), torch.cat(value)

    def evaluate_actions(self, observation: Observation, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [B] of actions, and the values [B] of the observations."""
        distribution, value = self.model(observation, mask)
        return distribution.log_prob(action), value

    def _minibatches(self, batch: PPOBatch, generator: torch.Generator) -> Iterator[PPOBatch]:
        """Yield minibatches in random order, all transitions once per epoch."""
        size, rows = self.params.minibatch_size, batch.log_prob.shape[0]
        for indices in shuffled(rows, size, epochs=self.params.update_epochs, generator=generator):
            if indices is None:
                yield batch
            # A single left-over row has no standard deviation; the next epoch puts it elsewhere.
            elif len(indices) * self.learners.count > 1 or not self.params.normalize_advantage:
                yield batch.select(indices)
