"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), and A2C as its one-epoch special case.

A2C is PPO with one epoch over the whole rollout: the ratio is then 1, the clip never acts, and the
gradient is the plain policy gradient (Huang et al. 2022, arXiv 2205.09123).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from gymnasium import Space
from torch import Tensor
from torch.nn import functional

from rl_training.data.observations import Observation, index_observation
from rl_training.data.rollout import Rollout
from rl_training.experiment.schedules import ScheduleSpec
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.exploration import ExplorationMatrices
from rl_training.models.heads import StateDependentNoiseHead
from rl_training.models.optimizers import FlatOptimizer


@dataclass(frozen=True)
class PPOParams:
    """Parameters of PPO; the defaults suit small continuous and discrete tasks."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}
    controls: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_coef", "ent_coef")

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Step size of the optimizer."""
    learning_rate_schedule: ScheduleSpec | None = None
    """How the learning rate changes over the run; the fixed value is its start."""
    learning_rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the learning rate rises linearly from 0."""
    clip_coef: Annotated[float, Gt(0)] = 0.2
    """How far the new policy's probability ratio may leave 1 before its gradient is cut."""
    clip_coef_schedule: ScheduleSpec | None = None
    """How the clip range changes over the run."""
    clip_coef_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the clip range rises linearly from 0."""
    ent_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus in the loss."""
    ent_coef_schedule: ScheduleSpec | None = None
    """How the entropy weight changes over the run."""
    ent_coef_warmup_steps: Annotated[int, Ge(0)] = 0
    """Environment steps over which the entropy weight rises linearly from 0."""
    num_steps: Annotated[int, Ge(1)] = 2048
    """Steps each environment makes per rollout; a rollout holds num_steps * num_envs transitions."""
    update_epochs: Annotated[int, Ge(1)] = 10
    """Passes over each rollout."""
    minibatch_size: Annotated[int, Ge(1)] | None = 64
    """Transitions per gradient step; null takes the whole rollout at once."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor."""
    gae_lambda: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """Trade-off between bias (0) and variance (1) of the advantage estimate."""
    vf_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss (mean squared error)."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 0.5
    """Largest norm of the gradient over all parameters; null switches clipping off."""
    normalize_advantage: bool = True
    """Give the advantages of each minibatch zero mean and unit deviation."""
    clip_value_loss: bool = False
    """Clip the change of the value prediction by clip_coef, as the original implementation does."""
    target_kl: Annotated[float, Gt(0)] | None = None
    """Stop the epochs of an update once the approximate KL divergence exceeds 1.5 times this."""
    hidden_sizes: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Widths of the hidden layers of actor and critic; null takes [64, 64], or none after an image encoder."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "tanh"
    """Non-linearity of the hidden layers."""
    orthogonal_init: bool = True
    """Initialise weights orthogonally (gain sqrt 2, policy head 0.01, value head 1)."""
    log_std: Literal["state_independent", "state_dependent"] = "state_independent"
    """Whether the Gaussian's log standard deviation is one learned vector or an output of the network."""
    log_std_init: float = 0.0
    """Initial log standard deviation of Gaussian policies."""
    use_sde: bool = False
    """Explore by generalised state-dependent noise (Raffin et al. 2020); Box actions only."""
    sde_sample_freq: Annotated[int, Ge(-1)] = -1
    """Steps between fresh exploration matrices; -1 draws them only at the start of a rollout."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of all parameters."""
    optimizer_eps: Annotated[float, Gt(0)] = 1e-5
    """The optimizer's epsilon."""
    compile: bool = False
    """Compile the loss with torch.compile: slower to start, faster per update."""

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        """Return the repairs for values that do not fit together."""
        found = []
        rollout = self.num_steps * num_envs
        if self.minibatch_size is not None and self.minibatch_size > rollout:
            found.append(
                f"algo_kwargs.minibatch_size: {self.minibatch_size} is larger than the rollout of {rollout} "
                f"transitions (num_steps {self.num_steps} x num_envs {num_envs}); lower it to at most "
                f"{rollout}, or raise num_steps or num_envs"
            )
        if self.normalize_advantage and (rollout == 1 or self.minibatch_size == 1):
            found.append(
                "algo_kwargs.normalize_advantage: a minibatch of one transition has no deviation to divide by; "
                "raise minibatch_size or num_steps, or set normalize_advantage to false"
            )
        if self.sde_sample_freq == 0:
            found.append("algo_kwargs.sde_sample_freq: 0 steps have no meaning; use -1 for once per rollout")
        if self.use_sde and self.log_std == "state_dependent":
            found.append(
                "algo_kwargs.use_sde: its noise already depends on the state; "
                "set log_std to state_independent or use_sde to false"
            )
        return found


@dataclass(frozen=True)
class A2CParams(PPOParams):
    """Parameters of A2C: PPO with one epoch over the whole rollout."""

    learning_rate: Annotated[float, Gt(0)] = 7e-4
    """Step size of the optimizer."""
    num_steps: Annotated[int, Ge(1)] = 5
    """Steps each environment makes per rollout; a rollout holds num_steps * num_envs transitions."""
    update_epochs: Annotated[int, Interval(ge=1, le=1)] = 1
    """Passes over each rollout: A2C makes exactly one."""
    minibatch_size: None = None
    """A2C takes the whole rollout at once."""
    gae_lambda: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Trade-off between bias (0) and variance (1) of the advantage estimate."""
    normalize_advantage: bool = False
    """Give the advantages of each rollout zero mean and unit deviation."""
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"
    """Optimizer of all parameters."""


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
    advantage = batch.advantage
    if params.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(advantage * ratio, advantage * clipped_ratio).mean()

    if params.clip_value_loss:
        clipped_value = batch.value + (value - batch.value).clamp(-clip_coef, clip_coef)
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


def policy_change(log_ratio: Tensor, clip_coef: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the approximate KL divergence of the new policy from the old, and the share of clipped ratios."""
    ratio = log_ratio.exp()
    approx_kl = (ratio - 1 - log_ratio).mean()  # the low-variance estimator k3 of http://joschu.net/blog/kl-approx.html
    return approx_kl, ((ratio - 1).abs() > clip_coef).to(ratio.dtype).mean()


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
        self._loss = torch.compile(ppo_loss, dynamic=False) if params.compile else ppo_loss
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
        batch = self._prepare(rollout)
        history: list[dict[str, Tensor]] = []
        stopped = False
        for _ in range(self.params.update_epochs):
            for minibatch in self._minibatches(batch, generator):
                loss, parts = self._loss(self.model, minibatch, clip_coef, ent_coef, self.params)
                history.append(parts)
                if self.params.target_kl is not None:
                    approx_kl, _ = policy_change(parts["log_ratio"], clip_coef)
                    if approx_kl > 1.5 * self.params.target_kl:
                        stopped = True
                        break
                parts["gradient_norm"] = self.optimizer.step(
                    loss, learning_rate=controls["learning_rate"], max_grad_norm=self.params.max_grad_norm
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


def explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """Return how much of the target's variance the prediction explains: 1 is all, 0 none."""
    return 1 - (target - predicted).var(correction=0) / target.var(correction=0).clamp_min(1e-8)
