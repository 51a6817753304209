"""Storage of one on-policy rollout, preallocated once and refilled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.data.observations import NumpyObservation, Observation, allocate, map_observation


class Rollout:
    """`num_steps` consecutive steps of `num_envs` environments."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        observation_space: Space[Any],
        action: Tensor,
        mask: Tensor | None,
        device: torch.device,
    ) -> None:
        """Allocate storage; `action` and `mask` are examples of one step, [num_envs, ...]."""
        shape = (num_steps, num_envs)
        self.num_steps = num_steps
        self.num_envs = num_envs
        self.position = 0  # steps filled so far
        self.observation = allocate(observation_space, shape, device)  # [num_steps, num_envs, ...]
        self.action = torch.zeros((num_steps, *action.shape), dtype=action.dtype, device=device)
        self.mask = None if mask is None else torch.ones((num_steps, *mask.shape), dtype=torch.bool, device=device)
        self.reward = torch.zeros(shape, device=device)
        self.terminated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(shape, dtype=torch.bool, device=device)
        self.final_value = torch.zeros(shape, device=device)  # value of the final observation where truncated
        self.last_observation = allocate(observation_space, (num_envs,), device)  # what follows the last step

    @property
    def full(self) -> bool:
        """Whether every step is filled."""
        return self.position == self.num_steps

    @property
    def transitions(self) -> int:
        """How many transitions are stored."""
        return self.position * self.num_envs

    def flat_observation(self) -> Observation:
        """Return observations [num_steps * num_envs, ...]."""
        return map_observation(lambda array: array.flatten(0, 1), self.observation)

    def flat_action(self) -> Tensor:
        """Return actions [num_steps * num_envs, ...]."""
        return self.action.flatten(0, 1)

    def flat_mask(self) -> Tensor | None:
        """Return action masks [num_steps * num_envs, choices]."""
        return None if self.mask is None else self.mask.flatten(0, 1)

    def clear(self) -> None:
        """Start filling anew."""
        self.position = 0
        self.final_value.zero_()

    def add(
        self,
        observation: Observation,
        action: Tensor,
        mask: Tensor | None,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        """Store one step of every environment, each [num_envs, ...]."""
        at = self.position
        map_observation(lambda target, source: target[at].copy_(source), self.observation, observation)
        self.action[at] = action
        if self.mask is not None:
            self.mask[at] = True if mask is None else mask
        self.reward[at] = torch.from_numpy(reward)
        self.terminated[at] = torch.from_numpy(terminated)
        self.truncated[at] = torch.from_numpy(truncated)
        self.position = at + 1

    def finish(self, last_observation: NumpyObservation) -> None:
        """Note what the environments show after the last step."""
        map_observation(
            lambda target, source: target.copy_(torch.as_tensor(source)),
            self.last_observation,
            last_observation,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the filled part: nothing between rollouts."""
        filled = slice(0, self.position)
        return {
            "position": self.position,
            "observation": map_observation(lambda array: array[filled], self.observation),
            "action": self.action[filled],
            "mask": None if self.mask is None else self.mask[filled],
            "reward": self.reward[filled],
            "terminated": self.terminated[filled],
            "truncated": self.truncated[filled],
            "final_value": self.final_value[filled],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a rollout in progress."""
        self.position = state["position"]
        filled = slice(0, self.position)
        map_observation(lambda target, source: target[filled].copy_(source), self.observation, state["observation"])
        for name in ("action", "reward", "terminated", "truncated", "final_value"):
            getattr(self, name)[filled].copy_(state[name])
        if self.mask is not None:
            self.mask[filled].copy_(state["mask"])
