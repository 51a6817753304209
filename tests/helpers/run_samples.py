"""Environments that misbehave on demand, and one that keeps a diary; named as `run_samples:Run/...` in tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Script(gym.Env[Any, Any]):
    """Observes [episode, step]; episodes take 3 steps and end by termination, truncation, both, in turn."""

    LENGTH = 3

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._episode = -1
        self._step = 0

    def _observe(self) -> np.ndarray:
        return np.array([self._episode, self._step], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode = 0 if seed is not None else self._episode + 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        ended = self._step == self.LENGTH
        reward = 10 * self._episode + self._step
        return self._observe(), reward, ended and self._episode % 3 != 1, ended and self._episode % 3 != 0, {}

    def state_dict(self) -> dict[str, Any]:
        return {"episode": self._episode, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._episode, self._step = state["episode"], state["step"]


class Faulty(Script):
    """Does something wrong at its `at`-th step, and no more once the file `once` exists."""

    def __init__(self, fault: str = "none", at: int = 40, once: str | None = None) -> None:
        super().__init__()
        self.fault, self.at = fault, at
        self.once = None if once is None else Path(once)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        if self.fault == "reset" and self._steps == self.at:
            return obs * np.nan, info
        return obs, info

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.fault == "float32":
            return obs, np.float32(0.1), terminated, truncated, info
        if self._steps != self.at or (self.once is not None and self.once.exists()):
            return obs, reward, terminated, truncated, info
        if self.once is not None:
            self.once.touch()
        if self.fault == "reward":
            return obs, float("nan"), terminated, truncated, info
        if self.fault == "infinite reward":
            return obs, float("inf"), terminated, truncated, info
        if self.fault == "observation":
            return obs * np.nan, reward, terminated, truncated, info
        if self.fault == "final observation":
            return obs * np.nan, reward, False, True, info
        if self.fault == "exit":
            raise SystemExit(0)
        if self.fault == "raise":
            raise RuntimeError("the floor gave way")
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return obs, reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._steps = state["steps"]


for environment in (Script, Faulty):
    name = f"Run/{environment.__name__}-v0"
    if name not in gym.registry:
        gym.register(name, entry_point=f"run_samples:{environment.__name__}")
