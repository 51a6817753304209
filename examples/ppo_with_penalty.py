"""PPO with an additional loss term: `axiomrl train --algo examples/ppo_with_penalty.py:SPEC --env CartPole-v1`."""

from dataclasses import dataclass
from typing import Any

from rl_training.extend import PPO, AlgorithmSpec, PPOParams


@dataclass(frozen=True)
class PenaltyParams(PPOParams):
    penalty_coef: float = 1e-3
    """Weight of the squared features of the policy in the loss."""


class PenaltyPPO(PPO):
    params: PenaltyParams

    def loss(self, batch: Any, controls: Any) -> Any:
        loss, parts = super().loss(batch, controls)
        penalty = self.model.policy_latent(batch.observation).square().mean()
        return loss + self.params.penalty_coef * penalty, {**parts, "penalty": penalty.detach()}


SPEC = AlgorithmSpec("ppo_penalty", "on_policy", PenaltyParams, PenaltyPPO, ("Discrete", "Box"), "PPO with a penalty.")
