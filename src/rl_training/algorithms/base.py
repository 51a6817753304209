"""Base classes of the algorithms: networks, losses differentiated by autograd, and state composed of named parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.learners import ALONE, Learners
from rl_training.data.observations import NumpyObservation, Observation, to_tensor
from rl_training.data.rollout import Rollout
from rl_training.errors import ConfigError
from rl_training.models.encoders import EncoderFactory, make_encoder
from rl_training.models.layers import global_draws_from


class HostAction(NamedTuple):
    """Actions of one step in host memory, and what was computed on the way."""

    action: np.ndarray  # [num_envs, ...] as stored
    env_action: np.ndarray  # [num_envs, ...] as the environment takes them
    log_prob: np.ndarray | None = None  # [num_envs] of the actions, to be remembered
    value: np.ndarray | None = None  # [num_envs] of the observations, likewise
    memory: np.ndarray | None = None  # [num_envs, memory size] after the step, where the policy has one


class Algorithm(ABC):
    """Acts in environments and learns from batches of experience.

    A subclass makes its networks and optimizers in `build` and lists in `parts` the attributes that a checkpoint must
    contain. All random numbers are drawn from the generator that is passed in.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the state: anything with `state_dict()` and `load_state_dict()`, and plain values."""
    acting_networks: ClassVar[tuple[str, ...]] = ()
    """Those of `parts` that samplers act with; it counts for the class itself only, since a subclass may need more.

    Without it they get all networks.
    """
    acting_parts: ClassVar[tuple[str, ...]] = ()
    """Those of `parts` that acting changes; where samplers act, the run gets them back with what was collected."""
    learners: Learners = ALONE
    """Those that learn the same weights from other shares of every batch."""

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
        """`encoder` makes the module that turns observations into features; the default is the package's own."""
        self.params = params
        self.device = device
        self.make_encoder = encoder
        with global_draws_from(generator):  # user modules draw from the global generator
            self.build(observation_space, action_space, generator)

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of; 0: the policy has none."""
        return 0

    @classmethod
    def for_params(cls, params: Any) -> type[Algorithm]:
        """Return the class that trains with these parameters: itself, or one that they ask for."""
        return cls

    @abstractmethod
    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        """Make the networks, with initial weights drawn from the generator, and the optimizers."""

    def check_networks(self, observation: Observation) -> None:  # noqa: B027 - optional for an algorithm
        """Raise an error if the networks, called with a batch of observations, do not return what the losses need."""

    @abstractmethod
    def update(self, batch: Any, controls: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        """Learn from one batch of experience and return metrics by name, each a scalar.

        A vector `td_error` [B] is not a metric: it becomes the priorities of the batch's transitions. A batch of a
        replay is valid until `update` returns; the next one uses the same memory.
        """

    def share(self, learners: Learners) -> None:
        """Learn together with others from now on: every part that has `share`, as optimizers do, steps along means."""
        self.learners = learners
        shared = [part for name in self.parts if hasattr(part := getattr(self, name), "share")]
        if not shared:
            raise ConfigError(
                f"devices: none of the parts of {type(self).__name__} takes the mean of several learners' gradients; "
                "let it step by a FlatOptimizer that is listed in `parts`, or leave devices out"
            )
        for part in shared:
            part.share(learners.average)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on, under the names in `parts`."""
        state = {}
        for name in self.parts:
            part = getattr(self, name)
            if part is not None:  # None: the parameters do not use this part
                state[name] = part.state_dict() if hasattr(part, "state_dict") else part
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        for name in self.parts:
            part = getattr(self, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(state[name])
            elif part is not None:
                setattr(self, name, state[name])

    def learned_weights(self) -> dict[str, Any]:
        """Return the learned weights alone, in the form of `state_dict`, without copying them."""
        parts = {name: getattr(self, name) for name in self.parts}
        return {
            name: part.state_dict()
            for name, part in parts.items()
            if isinstance(part, nn.Module) or hasattr(part, "load_weights")
        }

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Load the learned weights of a saved state; optimizers and counters stay as they are."""
        for name in self.parts:
            part = getattr(self, name)
            if isinstance(part, nn.Module):
                part.load_state_dict(state[name])
            elif hasattr(part, "load_weights"):
                part.load_weights(state[name])

    def acting_weights(self) -> dict[str, Any]:
        """Return the weights of `acting_networks`, without copying them."""
        names = vars(type(self)).get("acting_networks")
        return {name: getattr(self, name).state_dict() for name in names} if names else self.learned_weights()

    def load_acting_weights(self, state: Mapping[str, Any]) -> None:
        """Load the weights of `acting_networks`."""
        for name, weights in state.items():
            part = getattr(self, name)
            load = part.load_state_dict if isinstance(part, nn.Module) else part.load_weights
            load(weights)

    def acting_state(self) -> dict[str, Any]:
        """Return the state of `acting_parts`."""
        parts = {name: getattr(self, name) for name in self.acting_parts}
        return {
            name: part.state_dict() if hasattr(part, "state_dict") else part
            for name, part in parts.items()
            if part is not None
        }

    def load_acting_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `acting_parts`."""
        for name, value in state.items():
            part = getattr(self, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)

    def check_sampled(self, lag: int) -> None:  # noqa: B027 - optional for an algorithm
        """Raise an error that names the repair if samplers cannot act as the algorithm does, `lag` updates behind."""


class ActingAlgorithm(Algorithm):
    """An algorithm whose networks choose actions without a search.

    With a memory, `choose_with_memory` takes the place of `choose`: it also takes memories [B, memory size], zero at
    the start of an episode, and returns those after the step beside the actions. So does `env_log_prob_with_memory`,
    which returns log-probabilities alone.
    """

    @abstractmethod
    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return exploratory actions [num_envs, ...]; `mask` [num_envs, choices] is true for legal actions."""

    @abstractmethod
    def choose(self, observation: Observation, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Return the best actions [B, ...], or sampled ones if a generator is given."""

    @abstractmethod
    def env_action(self, action: Tensor) -> np.ndarray:
        """Return actions [B, ...] in the format of the environment's action space."""

    def env_log_prob(self, observation: Observation, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        """Return the log-probabilities [B] with which `choose` samples actions given in the environment's format.

        Those of continuous actions are densities, and of a bound to which actions are clipped its probability. None if
        they are not known.
        """
        return None


class OnPolicyAlgorithm(ActingAlgorithm):
    """Learns from rollouts of the current policy; its parameters have `num_steps` and `gamma`."""

    values_of_legal: ClassVar[bool] = False
    """Whether `values` also takes `mask` [B, choices], because illegal actions have no part in a value."""
    learns_beside_absent: ClassVar[bool] = False
    """Whether `update` leaves out steps that are not `Rollout.real`, of agents that are absent from their world."""

    def act_on_host(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> HostAction:
        """Return the actions of `act` for arrays in host memory; with a memory it takes `memory` as well."""
        legal = None if mask is None else torch.as_tensor(mask, device=self.device)
        action = self.act(to_tensor(observation, self.device), legal, controls, generator)
        return HostAction(action.cpu().numpy(), self.env_action(action))

    @abstractmethod
    def values(self, observation: Observation) -> Tensor:
        """Return the values [B] of observations, used to bootstrap truncated episodes."""

    def start_rollout(self) -> None:
        """Hook: a new rollout begins."""

    def as_acted(self, rollout: Rollout) -> Rollout:
        """Return a rollout with what an update needs to know of the present weights, which collected it.

        With `policy_lag` the weights have changed when the rollout is learned from; an algorithm without this method
        cannot have one.
        """
        raise NotImplementedError


class OffPolicyAlgorithm(ActingAlgorithm):
    """Learns from transitions of any policy; its parameters are `ReplayParams`.

    With a memory, `act_with_memory` takes the place of `act` in the same way.
    """

    @abstractmethod
    def random_actions(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return uniformly random legal actions [count, ...] in the same form as those of `act`."""

    def stored_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions [...] of the environment in the form of `act`; batches mixed with a dataset need it."""
        raise ConfigError(
            f"algo_kwargs.dataset_fraction: {type(self).__name__} cannot read the actions of a dataset; define "
            "stored_action(self, action), the inverse of env_action, or set it to 0"
        )

    def end_episodes(self, ended: np.ndarray) -> None:
        """Hook: the episodes where `ended` [num_envs] is true have ended or will not be continued."""

    def steps_taken(self, before: int, after: int) -> None:
        """Hook: the step count went from `before` to `after`; called before the updates that follow."""


class OfflineAlgorithm(ActingAlgorithm):
    """Learns from a dataset, without an environment; its parameters are `OfflineParams`."""

    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return sampled actions [num_envs, ...]; offline training never calls it."""
        return self.choose(observation, mask, generator)

    @abstractmethod
    def stored_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions [...] of the environment in the form that batches contain: the inverse of `env_action`."""

    def steps_taken(self, before: int, after: int) -> None:
        """Hook: the number of gradient steps went from `before` to `after`; called after the update."""


class PlanningAlgorithm(Algorithm):
    """Plans by tree search with a model that it learns; its parameters are `PlanningParams`."""

    plans = True

    def steps_taken(self, before: int, after: int) -> None:
        """Hook: the step count went from `before` to `after`; called before the updates that follow."""


def class_with_memory(asked: type[Algorithm], plain: type[Algorithm], remembering: type[Algorithm]) -> type[Algorithm]:
    """Return the class with a memory for the `plain` one; raise an error for a subclass that has none."""
    if not (asked is plain or issubclass(asked, remembering)):
        raise ConfigError(
            f"algo_kwargs.recurrent: {asked.__name__} has no memory; derive it from {remembering.__name__}, or leave "
            "it out"
        )
    return remembering if asked is plain else asked
