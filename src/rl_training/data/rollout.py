"""Storage of one on-policy rollout: host arrays, allocated once, refilled, and moved to the device together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.data.observations import NumpyObservation, Observation, allocate, map_observation, to_tensor

_COLUMNS = ("action", "reward", "terminated", "truncated", "final_value")
_REMEMBERED = ("log_prob", "value")


@dataclass(frozen=True)
class Rollout:
    """`num_steps` consecutive steps of `num_envs` environments, on the device."""

    observation: Observation  # [num_steps, num_envs, ...]
    action: Tensor  # [num_steps, num_envs, ...]
    mask: Tensor | None  # [num_steps, num_envs, choices] legal actions
    reward: Tensor  # [num_steps, num_envs]
    terminated: Tensor  # [num_steps, num_envs]
    truncated: Tensor  # [num_steps, num_envs]
    final_value: Tensor  # [num_steps, num_envs] value of the final observation where truncated
    last_observation: Observation  # [num_envs, ...] the observations after the last step
    log_prob: Tensor | None = None  # [num_steps, num_envs] of the actions, if they were remembered when acting
    value: Tensor | None = None  # [num_steps, num_envs] of the observations, likewise; None if the weights have changed
    memory: Tensor | None = None  # [num_steps, num_envs, memory size] before each step, where the policy has one
    last_memory: Tensor | None = None  # [num_envs, memory size] after the last step
    last_mask: Tensor | None = None  # [num_envs, choices] legal actions after the last step
    real: Tensor | None = None  # [num_steps, num_envs] steps to learn from, where some rows belong to absent agents

    @property
    def transitions(self) -> int:
        """Number of transitions."""
        return self.reward.numel()

    def real_rows(self) -> Tensor:
        """Return the places of the steps to learn from in the flattened rollout."""
        assert self.real is not None
        return self.real.flatten().nonzero().squeeze(1)

    def flat_observation(self) -> Observation:
        """Return observations [num_steps * num_envs, ...]."""
        return map_observation(lambda array: array.flatten(0, 1), self.observation)

    def flat_action(self) -> Tensor:
        """Return actions [num_steps * num_envs, ...]."""
        return self.action.flatten(0, 1)

    def flat_mask(self) -> Tensor | None:
        """Return action masks [num_steps * num_envs, choices]."""
        return None if self.mask is None else self.mask.flatten(0, 1)


def shuffled(rows: int, size: int | None, *, epochs: int, generator: torch.Generator) -> Iterator[Tensor | None]:
    """Yield the rows of minibatches in random order, all rows once per epoch; None stands for all of them in order."""
    for _ in range(epochs):
        if size is None or size == rows:
            yield None  # a full batch needs no shuffling
        else:
            yield from torch.randperm(rows, generator=generator, device=generator.device).split(size)


class RolloutStorage:
    """Arrays of one rollout, filled step by step; a partly filled one can be saved."""

    def __init__(self, num_steps: int, num_envs: int, observation_space: Space[Any], action: np.ndarray) -> None:
        """Allocate the arrays; `action` is an example of one step, [num_envs, ...]."""
        shape = (num_steps, num_envs)
        self.num_steps = num_steps
        self.num_envs = num_envs
        self.position = 0  # steps filled so far
        self.observation = allocate(observation_space, shape)  # [num_steps, num_envs, ...]
        self.action = np.zeros((num_steps, *action.shape), action.dtype)
        self.mask: np.ndarray | None = None  # allocated with the first mask
        self.reward = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)
        self.truncated = np.zeros(shape, np.bool_)
        self.final_value = np.zeros(shape, np.float32)
        self.log_prob: np.ndarray | None = None  # allocated where the first step of a rollout has them
        self.value: np.ndarray | None = None
        self.memory: np.ndarray | None = None  # likewise
        self.real: np.ndarray | None = None  # allocated with the first absent agent

    @classmethod
    def over(cls, columns: Mapping[str, Any]) -> RolloutStorage:
        """Return storage whose arrays are `columns` by name, none of them allocated; `observation` may be a dict."""
        storage = cls.__new__(cls)
        storage.mask = storage.log_prob = storage.value = storage.memory = storage.real = None
        storage.num_steps, storage.num_envs = columns["reward"].shape
        storage.position = 0
        for name, column in columns.items():
            setattr(storage, name, column)
        return storage

    @property
    def full(self) -> bool:
        """Whether all steps are filled."""
        return self.position == self.num_steps

    @property
    def transitions(self) -> int:
        """Number of transitions stored."""
        return self.position * self.num_envs

    def clear(self) -> None:
        """Start a new rollout."""
        self.position = 0
        self.final_value.fill(0.0)

    def add(
        self,
        observation: NumpyObservation,
        action: np.ndarray,
        mask: np.ndarray | None,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        log_prob: np.ndarray | None = None,
        value: np.ndarray | None = None,
        memory: np.ndarray | None = None,
        real: np.ndarray | None = None,
    ) -> None:
        """Store one step of every environment, each [num_envs, ...]; `memory` is the policy's before the step.

        Rows that are not `real` are steps of absent agents.
        """
        at = self.position
        if isinstance(self.observation, dict):
            for key, column in self.observation.items():
                column[at] = observation[key]
        else:
            self.observation[at] = observation
        self.action[at] = action
        if mask is not None:
            self._mask_like(mask)[at] = mask
        elif self.mask is not None:
            self.mask[at] = True
        self.reward[at] = reward
        self.terminated[at] = terminated
        self.truncated[at] = truncated
        if log_prob is not None and value is not None:
            self._remember(log_prob, value)
        if memory is not None:
            self._memory_like(memory)[at] = memory
        if real is not None or self.real is not None:
            self._all_real()[at] = True if real is None else real
        self.position = at + 1

    def _remember(self, log_prob: np.ndarray, value: np.ndarray) -> None:
        """Store what was computed when acting; a rollout whose first steps lack it is evaluated as a whole."""
        if self.position == 0 and self.log_prob is None:
            self.log_prob, self.value = np.zeros_like(self.reward), np.zeros_like(self.reward)
        if self.log_prob is not None and self.value is not None:
            self.log_prob[self.position] = log_prob
            self.value[self.position] = value

    def _memory_like(self, memory: np.ndarray) -> np.ndarray:
        if self.memory is None:
            self.memory = np.zeros((self.num_steps, *memory.shape), np.float32)
        return self.memory

    def _all_real(self) -> np.ndarray:
        if self.real is None:
            self.real = np.ones_like(self.terminated)
        return self.real

    def _mask_like(self, mask: np.ndarray) -> np.ndarray:
        if self.mask is None:
            self.mask = np.ones((self.num_steps, *mask.shape), np.bool_)
        return self.mask

    def on_device(
        self,
        last_observation: NumpyObservation,
        device: torch.device,
        last_memory: np.ndarray | None = None,
        last_mask: np.ndarray | None = None,
    ) -> Rollout:
        """Return the rollout on the device; on the CPU it may share this memory until the next rollout."""
        remembered: tuple[str, ...] = _REMEMBERED if self.log_prob is not None else ()
        if self.memory is not None:
            remembered = (*remembered, "memory")
        columns = {name: torch.as_tensor(getattr(self, name), device=device) for name in (*_COLUMNS, *remembered)}
        return Rollout(
            observation=to_tensor(self.observation, device),
            mask=None if self.mask is None else torch.as_tensor(self.mask, device=device),
            last_observation=to_tensor(last_observation, device),
            last_memory=None if last_memory is None else torch.as_tensor(last_memory, device=device),
            last_mask=None if last_mask is None else torch.as_tensor(last_mask, device=device),
            real=None if self.real is None else torch.as_tensor(self.real, device=device),
            **columns,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the filled part."""
        filled = slice(0, self.position)
        return {
            "position": self.position,
            "observation": map_observation(lambda array: array[filled], self.observation),
            "mask": None if self.mask is None else self.mask[filled],
            **{name: getattr(self, name)[filled] for name in _COLUMNS},
            **{name: None if self.log_prob is None else getattr(self, name)[filled] for name in _REMEMBERED},
            **({} if self.memory is None else {"memory": self.memory[filled]}),
            **({} if self.real is None else {"real": self.real[filled]}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a rollout in progress."""
        if not 0 <= state["position"] <= self.num_steps:
            raise ValueError(f"the rollout holds {state['position']} of {self.num_steps} steps")
        self.position = state["position"]
        filled = slice(0, self.position)

        def fill(target: np.ndarray, source: np.ndarray) -> None:
            target[filled] = source

        map_observation(fill, self.observation, state["observation"])
        for name in _COLUMNS:
            fill(getattr(self, name), state[name])
        if state.get("log_prob") is not None:  # absent in checkpoints of earlier releases
            self.log_prob, self.value = np.zeros_like(self.reward), np.zeros_like(self.reward)
            fill(self.log_prob, state["log_prob"])
            fill(self.value, state["value"])
        if state.get("memory") is not None:
            fill(self._memory_like(state["memory"][0]), state["memory"])
        if state.get("real") is not None:
            fill(self._all_real(), state["real"])
        if state["mask"] is not None:
            fill(self._mask_like(state["mask"][0]), state["mask"])
