"""Rows of a batch of environments in memory shared by the run and its workers.

The memory is anonymous: it is released with the last process that maps it, so nothing is left behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from rl_training.envs.spaces import mask_width
from rl_training.envs.step import Obs


class RawMemory(Protocol):
    """Where shared arrays are allocated: a multiprocessing context, or what stands for one."""

    def RawArray(self, typecode_or_type: Any, size_or_initializer: Any) -> Any:
        """Return a buffer of as many bytes, which are zero."""


class SharedArray:
    """An array that can be passed to a process when it starts."""

    def __init__(self, context: RawMemory, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        size = max(1, math.prod(shape) * self._dtype.itemsize)
        self._memory = context.RawArray("b", size)

    def view(self) -> np.ndarray:
        """Return the array itself, not a copy."""
        count = math.prod(self._shape)
        return np.frombuffer(self._memory, dtype=self._dtype, count=count).reshape(self._shape)


class Rows(NamedTuple):
    """Views of the rows of one worker, or of all."""

    obs: Obs
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    action_mask: np.ndarray | None
    """[rows, n] bool; None for Box actions."""


@dataclass
class SharedRows:
    """All arrays that are exchanged between the run and its workers at a step."""

    obs: dict[str | None, SharedArray]
    """[num_envs, ...] by key; the key None for an observation that is not a Dict."""
    final_obs: dict[str | None, SharedArray]
    """Like `obs`; only the rows that ended are valid."""
    reward: SharedArray
    terminated: SharedArray
    truncated: SharedArray
    action_mask: SharedArray | None
    actions: SharedArray
    entered: SharedArray
    """[num_workers] index of the environment each worker entered last, to name it if it hangs or dies."""

    @classmethod
    def allocate(
        cls,
        context: BaseContext,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int,
        num_workers: int,
    ) -> SharedRows:
        """Allocate memory for `num_envs` environments of these spaces."""

        def obs_arrays() -> dict[str | None, SharedArray]:
            parts: dict[Any, gym.Space[Any]] = {None: observation_space}
            if isinstance(observation_space, gym.spaces.Dict):
                parts = dict(observation_space.spaces)
            return {key: SharedArray(context, (num_envs, *_shape(part)), part.dtype) for key, part in parts.items()}

        width = mask_width(action_space)
        return cls(
            obs=obs_arrays(),
            final_obs=obs_arrays(),
            reward=SharedArray(context, (num_envs,), np.float32),
            terminated=SharedArray(context, (num_envs,), np.bool_),
            truncated=SharedArray(context, (num_envs,), np.bool_),
            action_mask=SharedArray(context, (num_envs, width), np.bool_) if width else None,
            actions=SharedArray(context, (num_envs, *_shape(action_space)), action_space.dtype),
            entered=SharedArray(context, (num_workers,), np.int64),
        )

    def rows(self, start: int, stop: int) -> Rows:
        """Return views of the rows [start, stop)."""
        return Rows(
            obs=obs_views(self.obs, start, stop),
            reward=self.reward.view()[start:stop],
            terminated=self.terminated.view()[start:stop],
            truncated=self.truncated.view()[start:stop],
            action_mask=None if self.action_mask is None else self.action_mask.view()[start:stop],
        )


def obs_views(arrays: dict[str | None, SharedArray], start: int, stop: int) -> Obs:
    """Return views of some rows of shared observations."""
    views = {key: array.view()[start:stop] for key, array in arrays.items()}
    return views[None] if None in views else {str(key): view for key, view in views.items()}


def _shape(space: gym.Space[Any]) -> tuple[int, ...]:
    assert space.shape is not None, f"{space} has no array form"
    return space.shape
