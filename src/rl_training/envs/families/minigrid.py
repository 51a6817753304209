"""Observations of MiniGrid (extra `minigrid`) as networks read them best."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.errors import ConfigError

_IMAGE = "image"


class CellPlanes(gym.ObservationWrapper[Any, Any, Any]):
    """Shows the grid as planes of booleans: one for each kind of object, each colour and each state of a door.

    MiniGrid describes a cell by three numbers, which are codes and no measures: to a network they would say that a door
    is more than a wall. It has no state.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        space = env.observation_space
        seen = space.spaces.get(_IMAGE) if isinstance(space, spaces.Dict) else space
        if not isinstance(seen, spaces.Box) or seen.dtype != np.uint8 or len(seen.shape) != 3 or seen.shape[2] != 3:
            raise ConfigError("the observation has no `image` with three numbers per cell, as MiniGrid's own has")
        sizes = [1 + max(codes.values()) for codes in (OBJECT_TO_IDX, COLOR_TO_IDX, STATE_TO_IDX)]
        # Row c of each table is the one-hot form of code c.
        self._tables = [np.eye(size, dtype=np.bool_) for size in sizes]
        planes = spaces.Box(0, 1, (*seen.shape[:2], sum(sizes)), np.bool_)  # type: ignore[arg-type]
        self.observation_space = (
            spaces.Dict([(key, planes if key == _IMAGE else part) for key, part in space.spaces.items()])
            if isinstance(space, spaces.Dict)
            else planes
        )

    def observation(self, observation: Any) -> Any:
        """Return the observation with planes instead of codes."""
        if isinstance(observation, dict):
            return {**observation, _IMAGE: self._planes(observation[_IMAGE])}
        return self._planes(observation)

    def _planes(self, image: np.ndarray) -> np.ndarray:
        return np.concatenate([table[image[..., part]] for part, table in enumerate(self._tables)], axis=-1)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: every observation is changed by itself."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing."""
