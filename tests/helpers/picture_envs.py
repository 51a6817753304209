"""Environments of three steps that show pictures, bad pictures or none: `Test/Picture-v0` and others."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np


class Unseen(gym.Env[Any, Any]):
    """Nothing to look at."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {}


class Picture(Unseen):
    """Shows `frame`, or nothing where it is None; after two steps it may break."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    frame: Any = np.zeros((64, 64, 3), np.uint8)
    breaks = False

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.breaks and self.render_mode is not None and self.steps == 2:
            raise RuntimeError("the floor gave way")
        return super().step(action)

    def render(self) -> Any:
        return self.frame


class Renderless(Picture):
    """Takes a render mode and has no render."""

    render = gym.Env.render


for environment in (Unseen, Picture, Renderless):
    gym.register(f"Test/{environment.__name__}-v0", entry_point=cast("Any", environment))
