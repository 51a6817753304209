"""Real episode returns and lengths, counted below the wrappers that change rewards and episodes for training."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from rl_training.envs.checks import plain_flag, plain_reward


class EpisodeTracker(gym.Wrapper[Any, Any, Any, Any]):
    """Sums the environment's own rewards until the environment itself ends the episode.

    `finished` collects (return, length) until `take_finished` is called: a game may also end inside a reset, in the
    no-op after a lost life, and that episode must be counted too.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.finished: list[tuple[float, int]] = []
        self.warns = True
        """Whether it warns about rewards of an unusual form; one of many environments is enough."""
        self._return = 0.0
        self._length = 0

    @property
    def length(self) -> int:
        """Steps of the episode in progress."""
        return self._length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._return, self._length = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._length += 1  # before the step, so that an error message can name it
        obs, reward, terminated, truncated, info = self.env.step(action)
        if type(reward) is not float:
            reward = float(reward) if type(reward) is np.float64 else plain_reward(reward, warn=self.warns)
        if terminated is not True and terminated is not False:
            terminated = plain_flag(terminated, "terminated")
        if truncated is not True and truncated is not False:
            truncated = plain_flag(truncated, "truncated")
        self._return += reward
        if terminated or truncated:
            self.finished.append((self._return, self._length))
        return obs, reward, terminated, truncated, info

    def take_finished(self) -> list[tuple[float, int]]:
        """Return the episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def state_dict(self) -> dict[str, Any]:
        return {
            "return": self._return,
            "length": self._length,
            "finished": [list(episode) for episode in self.finished],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._return, self._length = float(state["return"]), int(state["length"])
        self.finished = [(float(total), int(length)) for total, length in state["finished"]]


def find_tracker(env: gym.Env[Any, Any]) -> EpisodeTracker | None:
    """Return the tracker in a chain of wrappers."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, EpisodeTracker):
            return layer
        layer = layer.env
    return None
