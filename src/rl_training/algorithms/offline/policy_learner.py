"""What the offline algorithms share whose actor is a policy network for any action space."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import OfflineAlgorithm
from rl_training.data.observations import Observation
from rl_training.models.distributions import Distribution
from rl_training.models.policy_network import PolicyNetwork, stored_actions


class PolicyLearner(OfflineAlgorithm):
    """Acts by an actor that maps observations and masks to a distribution over actions."""

    action_space: Space[Any]
    actor: Any

    @torch.inference_mode()
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the most likely actions, or sampled ones if a generator is given."""
        policy: Distribution = self.actor(observation, mask)
        return policy.mode() if generator is None else policy.sample(generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions in the format of the environment's action space."""
        converted: np.ndarray = self.actor.head.env_action(action)
        return converted

    @torch.no_grad()
    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-probabilities [B] of actions in the environment's format; None with a network of one's own."""
        if not isinstance(self.actor, PolicyNetwork):
            return None
        log_prob: Tensor | None = self.actor.head.env_log_prob(self.actor(observation, mask), action)
        return log_prob

    def stored_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions [...] of the environment as the networks represent them."""
        return stored_actions(self.action_space, action)
