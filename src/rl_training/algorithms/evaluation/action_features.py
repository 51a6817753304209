"""Actions of the environment as inputs of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces


class ActionFeatures:
    """Turns environment actions [..., *shape] into numbers that a network takes.

    Discrete actions are numbered from 0. All others become float32 vectors [..., size]: bounded ones scaled to [-1, 1],
    unbounded ones to the mean and deviation of given actions, choices one-hot encoded, bits as they are.
    """

    def __init__(self, space: Space[Any], actions: np.ndarray) -> None:
        """`actions` [N, *shape] are those of a dataset."""
        self.space = space
        self.num_actions = int(space.n) if isinstance(space, spaces.Discrete) else None
        self.shape = space.shape or ()
        self.size = 0
        if isinstance(space, spaces.MultiDiscrete):
            self.size = int(space.nvec.sum())
        elif not isinstance(space, spaces.Discrete):
            self.size = int(np.prod(self.shape))
        if isinstance(space, spaces.Box):
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            bounded = space.bounded_below & space.bounded_above
            with np.errstate(invalid="ignore", over="ignore"):
                middle, half = (high + low) / 2, (high - low) / 2
            deviation = actions.std(axis=0, dtype=np.float64)
            self._middle = np.where(bounded, middle, actions.mean(axis=0, dtype=np.float64))
            self._half = np.where(bounded, half, deviation)
            self._half[self._half == 0] = 1.0

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Return the numbers of discrete actions, else features [..., size]."""
        space = self.space
        if isinstance(space, spaces.Discrete):
            return action.astype(np.int64) - int(space.start)
        leading = action.shape[: action.ndim - len(self.shape)]
        if isinstance(space, spaces.Box):
            scaled = (action - self._middle) / self._half
            return scaled.reshape(*leading, -1).astype(np.float32)
        if isinstance(space, spaces.MultiDiscrete):
            choices = (action.astype(np.int64) - space.start).reshape(*leading, -1)
            parts = [np.eye(n, dtype=np.float32)[choices[..., i]] for i, n in enumerate(space.nvec.flatten())]
            return np.concatenate(parts, axis=-1)
        return action.reshape(*leading, -1).astype(np.float32)
