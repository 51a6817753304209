"""Two small goal-conditioned tasks that cannot be learned without hindsight: `BitFlip-v0` and `PointReach-v0`.

Use them as `rl_training.envs.goal_tasks:BitFlip-v0`. The reward is -1 for every step before the goal is reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.snapshots.generators import generator_from_state, generator_state

Goals = dict[str, np.ndarray]


class GoalTask(gym.Env[Goals, Any]):
    """A task whose state must become equal to a goal."""

    def __init__(self, size: int, low: float, high: float) -> None:
        box = spaces.Box(low, high, (size,), np.float32)
        self.observation_space: gym.Space[Any] = spaces.Dict(
            {"observation": box, "achieved_goal": box, "desired_goal": box}
        )
        self.state = np.zeros(size, np.float32)
        self.goal = np.zeros(size, np.float32)

    def _draw(self) -> np.ndarray:
        """Return a random state or goal."""
        raise TypeError(f"{type(self).__name__} draws nothing")

    def _move(self, action: Any) -> None:
        """Apply an action to the state."""
        raise TypeError(f"{type(self).__name__} does not move")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Goals, dict[str, Any]]:
        """Draw a state, and a goal that it does not reach yet."""
        super().reset(seed=seed)
        self.state, self.goal = self._draw(), self._draw()
        while self.compute_terminated(self.state, self.goal, {}):
            self.goal = self._draw()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Goals, float, bool, bool, dict[str, Any]]:
        """Apply the action and check whether the goal is reached."""
        self._move(action)
        reached = bool(self.compute_terminated(self.state, self.goal, {}))
        return self._observe(), float(self.compute_reward(self.state, self.goal, {})), reached, False, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        """Return 0 if the goal is reached and -1 otherwise, for one pair or a batch."""
        return np.asarray(self.compute_terminated(achieved, desired, info), np.float32) - 1.0

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        """Return whether the goal is reached, for one pair or a batch."""
        return np.linalg.norm(achieved - desired, axis=-1) < 0.1

    def _observe(self) -> Goals:
        return {"observation": self.state.copy(), "achieved_goal": self.state.copy(), "desired_goal": self.goal.copy()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state and the goal, so that resume is exact."""
        return {"state": self.state, "goal": self.goal, "generator": generator_state(self.np_random)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.state, self.goal = np.array(state["state"]), np.array(state["goal"])
        self.np_random = generator_from_state(state["generator"])


class BitFlip(GoalTask):
    """Flip one of n bits per step until they equal the goal."""

    def __init__(self, bits: int = 10) -> None:
        super().__init__(bits, 0.0, 1.0)
        self.action_space = spaces.Discrete(bits)

    def _draw(self) -> np.ndarray:
        return self.np_random.integers(0, 2, len(self.state)).astype(np.float32)

    def _move(self, action: Any) -> None:
        self.state[int(action)] = 1.0 - self.state[int(action)]


class PointReach(GoalTask):
    """Move a point in the unit square to within 0.1 of the goal."""

    def __init__(self) -> None:
        super().__init__(2, -1.0, 1.0)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _draw(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _move(self, action: Any) -> None:
        self.state = np.clip(self.state + 0.1 * np.asarray(action, np.float32), -1.0, 1.0).astype(np.float32)


gym.register("BitFlip-v0", entry_point="rl_training.envs.goal_tasks:BitFlip", max_episode_steps=15)
gym.register("PointReach-v0", entry_point="rl_training.envs.goal_tasks:PointReach", max_episode_steps=50)
