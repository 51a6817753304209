"""What every algorithm is: networks it is given, losses learned by autograd, and state composed of named parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.encoders import EncoderFactory, make_encoder
from rl_training.models.layers import global_draws_from


class Algorithm(ABC):
    """Acts, and learns from batches of experience.

    A subclass makes its networks and optimizers in `build`, and lists in `parts` the attributes that a checkpoint has
    to hold. Whatever is random draws from the generator that is passed in.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the state: anything with `state_dict()` and `load_state_dict()`, and plain values."""

    def __init__(
        self,
        params: Any,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        device: torch.device,
        generator: torch.Generator,
        encoder: EncoderFactory = make_encoder,
    ) -> None:
        """`encoder` makes what turns observations into features; the package's own by default."""
        self.params = params
        self.device = device
        self.make_encoder = encoder
        with global_draws_from(generator):  # modules of the user's own know no other generator
            self.build(observation_space, action_space, generator)

    @abstractmethod
    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make networks, with initial weights from the generator, and optimizers."""

    def check_networks(self, observation: Observation) -> None:  # noqa: B027 - an algorithm need not check
        """Raise where the networks, tried on a batch of observations, do not return what the losses take."""

    @abstractmethod
    def update(self, batch: Any, controls: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Learn from one batch of experience and return metrics, scalars by name.

        A vector `td_error` [B] is no metric: it becomes the priorities of the batch's transitions.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on, by the names in `parts`."""
        state = {}
        for name in self.parts:
            part = getattr(self, name)
            if part is not None:  # a part that the parameters do without
                state[name] = part.state_dict() if hasattr(part, "state_dict") else part
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        for name in self.parts:
            part = getattr(self, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(state[name])
            elif part is not None:
                setattr(self, name, state[name])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over what a saved state has learned; optimizers and counters stay as they are."""
        for name in self.parts:
            part = getattr(self, name)
            if isinstance(part, nn.Module):
                part.load_state_dict(state[name])
            elif hasattr(part, "load_weights"):
                part.load_weights(state[name])


class ActingAlgorithm(Algorithm):
    """Acts by its networks alone."""

    @abstractmethod
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return exploring actions [num_envs, ...]; `mask` [num_envs, choices] is true for legal ones."""

    @abstractmethod
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the best actions [B, ...], or sampled ones where a generator is given."""

    @abstractmethod
    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions [B, ...] in the form the environment takes."""


class OnPolicyAlgorithm(ActingAlgorithm):
    """Learns from rollouts of the policy as it is; its parameters have `num_steps` and `gamma`."""

    @abstractmethod
    def values(self, observation: Observation) -> Tensor:
        """Return the values [B] of observations, for bootstrapping where an episode was cut off."""

    def start_rollout(self) -> None:
        """Hear that a new rollout begins."""


class OffPolicyAlgorithm(ActingAlgorithm):
    """Learns from transitions of any policy; its parameters are `ReplayParams`."""

    @abstractmethod
    def random_actions(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return uniformly random legal actions [count, ...], as `act` gives them."""

    def end_episodes(self, ended: np.ndarray) -> None:
        """Hear where episodes ended or will not go on, [num_envs]."""

    def steps_taken(self, before: int, after: int) -> None:
        """Hear that environment steps were taken, before the updates that follow them."""


class PlanningAlgorithm(Algorithm):
    """Searches with a model that it learns; its parameters are `PlanningParams`."""

    plans = True

    def steps_taken(self, before: int, after: int) -> None:
        """Hear that environment steps were taken, before the updates that follow them."""
