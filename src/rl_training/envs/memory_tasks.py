"""Tasks that need a memory: classic control without velocities, and a T-maze.

Use them as `rl_training.envs.memory_tasks:CartPoleNoVel-v1`, `PendulumNoVel-v1`, `MountainCarContinuousNoVel-v0` and
`TMaze-v0`. Without velocities one observation does not tell where the system is going; in the maze only the first
observation tells where the goal is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv, Continuous_MountainCarEnv, PendulumEnv

from rl_training.errors import ConfigError, EnvironmentFailure

LENGTH = 20
COST = 0.1
_VELOCITIES: dict[type, tuple[int, ...]] = {CartPoleEnv: (1, 3), PendulumEnv: (2,), Continuous_MountainCarEnv: (1,)}
"""Which entries of an observation are velocities."""


class WithoutVelocities(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Leaves the velocities out of the observations."""

    def __init__(self, env: gym.Env[np.ndarray, Any]) -> None:
        super().__init__(env)
        hidden = _VELOCITIES[type(env.unwrapped)]
        seen = env.observation_space
        assert isinstance(seen, spaces.Box)
        self._kept = np.array([index for index in range(seen.shape[0]) if index not in hidden])
        self.observation_space = spaces.Box(seen.low[self._kept], seen.high[self._kept], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the entries that are no velocities."""
        return observation[self._kept]

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: what is hidden is the state of the environment."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


def cart_pole(**kwargs: Any) -> gym.Env[Any, Any]:
    """Return CartPole with positions and angles only."""
    return WithoutVelocities(CartPoleEnv(**kwargs))


def pendulum(**kwargs: Any) -> gym.Env[Any, Any]:
    """Return Pendulum with the position of its tip only."""
    return WithoutVelocities(PendulumEnv(**kwargs))


def mountain_car(**kwargs: Any) -> gym.Env[Any, Any]:
    """Return MountainCarContinuous with positions only."""
    return WithoutVelocities(Continuous_MountainCarEnv(**kwargs))


class TMaze(gym.Env[np.ndarray, Any]):
    """A corridor that forks at its end; a sign at its beginning says which of the two ways leads to the goal.

    The observation is the sign (-1 or 1 in the first cell, 0 elsewhere) and whether the agent is at the fork. Actions
    are up, right, down and left. At the fork, up and down end the episode, with a reward of 1 if the sign said so;
    choosing the other way costs 0.1, and so does every step in the corridor that does not lead on (after Bakker 2002).
    Without memory the goal is found by chance, half of the time, which is a return of 0.45.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own way

    def __init__(self, length: int = LENGTH) -> None:
        """The corridor has `length` cells before the fork."""
        if type(length) is not int or length < 1:
            raise ConfigError(f"env_kwargs.length: must be an integer >= 1, got {length!r}")
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.place = 0
        self.sign = 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin at the sign."""
        super().reset(seed=seed)
        self.place, self.sign = 0, 1 if self.np_random.random() < 0.5 else -1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Go one cell, or choose a way at the fork."""
        if not 0 <= action < 4:
            raise EnvironmentFailure(f"TMaze: {action} is no action; choose one of 0 up, 1 right, 2 down, 3 left")
        if self.place == self.length and action in (0, 2):
            found = (action == 0) == (self.sign == 1)
            return self._observe(), 1.0 if found else -COST, True, False, {"metrics": {"success": float(found)}}
        leads_on = action == 1 and self.place < self.length
        if action == 1:
            self.place = min(self.place + 1, self.length)
        elif action == 3:
            self.place = max(self.place - 1, 0)
        return self._observe(), 0.0 if leads_on else -COST, False, False, {}

    def state_dict(self) -> dict[str, Any]:
        """Return place and sign; the generator is saved with every environment."""
        return {"place": self.place, "sign": self.sign}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore place and sign."""
        self.place, self.sign = int(state["place"]), int(state["sign"])

    def _observe(self) -> np.ndarray:
        shown = float(self.sign) if self.place == 0 else 0.0
        return np.array([shown, float(self.place == self.length)], np.float32)


_HERE = "rl_training.envs.memory_tasks"
gym.register("CartPoleNoVel-v1", entry_point=f"{_HERE}:cart_pole", max_episode_steps=500)
gym.register("PendulumNoVel-v1", entry_point=f"{_HERE}:pendulum", max_episode_steps=200)
gym.register("MountainCarContinuousNoVel-v0", entry_point=f"{_HERE}:mountain_car", max_episode_steps=999)
gym.register("TMaze-v0", entry_point=f"{_HERE}:TMaze", max_episode_steps=4 * LENGTH)
