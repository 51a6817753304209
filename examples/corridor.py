"""An environment of your own, in a file of your own: walk right to the end of a slippery corridor.

`axiomrl train --algo ppo --env examples/corridor.py:Corridor` trains on it; no installation and no registration.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """Pays 1 at the end and costs 0.01 for every step; one step in ten slips back."""

    action_space = gymnasium.spaces.Discrete(2)  # left, right
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)  # how far the end is

    def __init__(self, length: int = 10, longest: int = 200) -> None:
        """Make a corridor; both arguments can be set by `--set env_kwargs.length=20`."""
        self.length, self.longest = length, longest
        self.position = self.moves = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start at the left end."""
        super().reset(seed=seed)
        self.position = self.moves = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Go one cell; the episode is cut off where it takes too long."""
        self.moves += 1
        slips = self.np_random.random() < 0.1
        self.position = max(0, self.position + (1 if action == 1 and not slips else -1))
        arrived = self.position == self.length
        return self._observe(), 1.0 if arrived else -0.01, arrived, self.moves >= self.longest, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.position / self.length], dtype=np.float32)

    # With these two a run that was stopped goes on exactly; the generator is saved without them.

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the next steps."""
        return {"position": self.position, "moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        self.position, self.moves = state["position"], state["moves"]
