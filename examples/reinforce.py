"""REINFORCE with a learned baseline: `axiomrl train --algo examples/reinforce.py:SPEC --env CartPole-v1`."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from rl_training.extend import FREE, ActorCritic, AlgorithmSpec, FlatOptimizer, OnPolicyAlgorithm, OnPolicyParams, rules


@dataclass(frozen=True)
class ReinforceParams(OnPolicyParams):
    baseline_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the baseline's squared error in the loss."""
    on_fork: ClassVar = rules(FREE, "baseline_coef")


class Reinforce(OnPolicyAlgorithm):
    parts = ("model", "optimizer")  # the state in a checkpoint

    def build(self, observation_space: Any, action_space: Any, generator: torch.Generator) -> None:
        encoder = self.make_encoder(observation_space, orthogonal=True, generator=generator)
        sizes = {"hidden_sizes": self.params.hidden_sizes, "activation": self.params.activation}
        self.model = ActorCritic(encoder, action_space, generator=generator, **sizes).to(self.device)
        self.optimizer = FlatOptimizer(self.model.parameters())

    @torch.no_grad()
    def act(self, observation: Any, mask: Any, controls: Any, generator: torch.Generator) -> Tensor:
        return self.model.policy(observation, mask).sample(generator)

    @torch.no_grad()
    def choose(self, observation: Any, mask: Any, generator: torch.Generator | None) -> Tensor:
        policy = self.model.policy(observation, mask)
        return policy.mode() if generator is None else policy.sample(generator)

    def env_action(self, action: Tensor) -> Any:
        return self.model.env_action(action)

    @torch.no_grad()
    def values(self, observation: Any) -> Tensor:
        return self.model(observation, None)[1]

    def update(self, batch: Any, controls: Any, generator: torch.Generator) -> dict[str, Tensor]:
        later, returns = self.values(batch.last_observation), torch.empty_like(batch.reward)
        for t in reversed(range(len(returns))):  # bootstrap truncated episodes, not terminated ones
            later = torch.where(batch.truncated[t], batch.final_value[t], later) * ~batch.terminated[t]
            returns[t] = later = batch.reward[t] + self.params.gamma * later
        policy, value = self.model(batch.flat_observation(), batch.flat_mask())
        error = returns.flatten() - value
        loss_policy = -(policy.log_prob(batch.flat_action()) * error.detach()).mean()
        loss = loss_policy + self.params.baseline_coef * error.square().mean()
        step = {"learning_rate": controls["learning_rate"], "max_grad_norm": self.params.max_grad_norm}
        return {"loss_policy": loss_policy, "loss_total": loss, "gradient_norm": self.optimizer.step(loss, **step)}


SPEC = AlgorithmSpec("reinforce", "on_policy", ReinforceParams, Reinforce, ("Discrete", "Box"), "REINFORCE.")
