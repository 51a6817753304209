"""A user-defined environment in a single file: walk right to the end of a slippery corridor.

`axiomrl train --algo ppo --env examples/corridor.py:Corridor` trains on it; no installation and no registration.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """The reward is 1 at the end and -0.01 for every other step; one step in ten slips back."""

    action_space = gymnasium.spaces.Discrete(2)  # left, right
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)  # position relative to the length

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
        """Move by one cell; the episode is truncated after `longest` steps."""
        self.moves += 1
        slips = self.np_random.random() < 0.1
        self.position = max(0, self.position + (1 if action == 1 and not slips else -1))
        arrived = self.position == self.length
        return self._observe(), 1.0 if arrived else -0.01, arrived, self.moves >= self.longest, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.position / self.length], dtype=np.float32)

    # With these two methods resume is exact; the generator is saved without them.

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        return {"position": self.position, "moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.position, self.moves = state["position"], state["moves"]
