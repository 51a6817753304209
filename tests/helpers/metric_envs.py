"""An environment that gives metrics of its own, named as `metric_envs:Metered` in tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Metered(gym.Env[np.ndarray, Any]):
    """Ends after five steps; gives `height` at every step and `arrived` at the last one, or what is `wrong`."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, wrong: str | None = None) -> None:
        self.wrong = wrong
        self.moves = self.all_moves = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.moves = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.moves += 1
        self.all_moves += 1
        ended = self.moves == 5
        metrics: dict[str, Any] = {"height": self.np_random.random()}
        if ended:
            metrics["arrived"] = bool(action)
        given = WRONG[self.wrong](self.all_moves) if self.wrong is not None else metrics
        return self._observe(), float(action), ended, False, {"metrics": given, "debug": "text"}

    def _observe(self) -> np.ndarray:
        return np.array([self.moves / 5, 0.0], np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"moves": self.moves, "all_moves": self.all_moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moves, self.all_moves = state["moves"], state["all_moves"]


WRONG: dict[str, Any] = {
    "no mapping": lambda move: [1.0],
    "text": lambda move: {"height": "high"},
    "array": lambda move: {"height": np.ones(2)},
    "none": lambda move: {"height": None},
    "nan": lambda move: {"height": float("nan")},
    "huge": lambda move: {"height": 10**400},
    "wide": lambda move: {"height": np.float64(1e300)},
    "number as name": lambda move: {3: 1.0},
    "long name": lambda move: {"x" * 101: 1.0},
    "line break": lambda move: {"a\nb": 1.0},
    "ever new names": lambda move: {f"metric {10 * move + number}": 1.0 for number in range(10)},
    "numbers of numpy": lambda move: {"height": np.float32(2), "arrived": np.True_, "left": np.array(3), "right": 4},
}
