"""A small task on a grid, observed as an image of booleans: `KeyDoor-v0`.

Use it as `rl_training.envs.grid_tasks:KeyDoor-v0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.spaces import SMALLEST_IMAGE
from rl_training.errors import ConfigError, EnvironmentFailure

Cell = tuple[int, int]  # row from the top, column from the left

STEP_COST = 0.01
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
_CELL_PIXELS = 32
_FLOOR = (235, 235, 235)
_AGENT_COLOUR, _KEY_COLOUR, _DOOR_COLOUR = (40, 90, 200), (240, 190, 30), (140, 80, 40)


class KeyDoor(gym.Env[np.ndarray, Any]):
    """Take the key, then walk to the door, which gives a reward of 1 and ends the episode; every step costs 0.01.

    The observation has three boolean planes: the agent, the key (empty once it is taken) and the door. Actions are up,
    right, down and left; moving against the edge has no effect, nor has the door without the key.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 - Gymnasium's own way

    def __init__(self, size: int = 5, corners: bool = False, render_mode: str | None = None) -> None:
        """Key and door are on random cells, or with `corners` always on the first and the last one."""
        if type(size) is not int or size < SMALLEST_IMAGE:
            raise ConfigError(f"env_kwargs.size: must be an integer >= {SMALLEST_IMAGE}, got {size!r}")
        self.render_mode = render_mode
        self.size = size
        self.corners = corners
        self.observation_space = spaces.Box(0, 1, (size, size, 3), np.bool_)
        self.action_space = spaces.Discrete(len(_MOVES))
        self.agent: Cell = (0, 0)
        self.key: Cell | None = (0, 1)
        """Cell of the key; None once it is taken."""
        self.door: Cell = (0, 2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Place agent, key and door on three different cells."""
        super().reset(seed=seed)
        cells = self.size**2
        if self.corners:
            drawn = [int(self.np_random.integers(1, cells - 1)), 0, cells - 1]
        else:
            drawn = self.np_random.choice(cells, 3, replace=False).tolist()
        self.agent, self.key, self.door = (divmod(index, self.size) for index in drawn)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move, take the key if the agent is on it, and check whether the door opens."""
        if not 0 <= action < len(_MOVES):
            raise EnvironmentFailure(f"KeyDoor: {action} is no action; choose one of 0 up, 1 right, 2 down, 3 left")
        row, column = (
            min(max(place + move, 0), self.size - 1) for place, move in zip(self.agent, _MOVES[action], strict=True)
        )
        self.agent = (row, column)
        if self.agent == self.key:
            self.key = None
        opened = self.key is None and self.agent == self.door
        return self._observe(), float(opened) - STEP_COST, opened, False, {}

    def render(self) -> Any:
        """Return an image with one square per object; an agent that carries the key has a spot of its colour."""
        picture = np.full((self.size * _CELL_PIXELS, self.size * _CELL_PIXELS, 3), _FLOOR, np.uint8)
        _paint(picture, self.door, _DOOR_COLOUR, margin=0)
        if self.key is not None:
            _paint(picture, self.key, _KEY_COLOUR, margin=10)
        _paint(picture, self.agent, _AGENT_COLOUR, margin=6)
        if self.key is None:
            _paint(picture, self.agent, _KEY_COLOUR, margin=12)
        return picture

    def state_dict(self) -> dict[str, Any]:
        """Return the positions; the generator is saved with every environment."""
        return {"agent": self.agent, "key": self.key, "door": self.door}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the positions."""
        self.agent, self.door = tuple(state["agent"]), tuple(state["door"])
        self.key = None if state["key"] is None else tuple(state["key"])

    def _observe(self) -> np.ndarray:
        boards = np.zeros((self.size, self.size, 3), np.bool_)
        for channel, cell in enumerate((self.agent, self.key, self.door)):
            if cell is not None:
                boards[cell][channel] = True
        return boards


def _paint(picture: np.ndarray, cell: Cell, colour: tuple[int, int, int], margin: int) -> None:
    top, left = (place * _CELL_PIXELS for place in cell)
    inside = slice(margin, _CELL_PIXELS - margin)
    picture[top : top + _CELL_PIXELS, left : left + _CELL_PIXELS][inside, inside] = colour


gym.register("KeyDoor-v0", entry_point="rl_training.envs.grid_tasks:KeyDoor", max_episode_steps=50)
