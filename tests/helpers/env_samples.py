"""Small environments that show what a backend does to them; named as `env_samples:Sample/...` in tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np

HANG_SECONDS = 600
"""How long an environment that hangs does so: whatever ends sooner did not wait for it."""


class Diary(gym.Env[Any, Any]):
    """Observes [episode, step, steps ever taken] and ends at random, by termination, truncation or both.

    It hands out one buffer again and again, as careless environments do.
    """

    def __init__(self, longest: int = 6) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(3)
        self.longest = longest
        self._buffer = np.zeros(3)
        self._last_step = 0
        self._ending = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._buffer[:] = -1, 0, 0
        self._buffer[0] += 1
        self._buffer[1] = 0
        self._last_step = int(self.np_random.integers(1, self.longest + 1))
        self._ending = int(self.np_random.integers(3))
        return self._buffer, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._buffer[1:] += 1
        ended = bool(self._buffer[1] >= self._last_step)
        reward = float(self._buffer[1]) * 10 + action
        return self._buffer, reward, ended and self._ending != 1, ended and self._ending != 0, {}

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self._buffer, "last_step": self._last_step, "ending": self._ending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._buffer[:] = state["buffer"]
        self._last_step, self._ending = state["last_step"], state["ending"]


class Forgetful(Diary):
    """A diary that keeps state and cannot give it."""

    state_dict = None  # type: ignore[assignment]
    load_state_dict = None  # type: ignore[assignment]


class UnsavableDiary(Diary):
    """A diary whose state holds something that is not plain data."""

    def state_dict(self) -> dict[str, Any]:
        return {"lamp": object()}


class Cupboard(gym.Env[Any, Any]):
    """A Dict observation and a MultiDiscrete action, of which it keeps the last."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Dict(
            {
                "picture": gym.spaces.Box(0, 255, (4, 4), np.uint8),
                "shelf": gym.spaces.Discrete(5),
                "weights": gym.spaces.Box(-5, 5, (2,), np.float32),
            }
        )
        self.action_space = gym.spaces.MultiDiscrete([3, 4])
        self._steps = 0
        self._last_action = np.zeros(2, np.int64)

    def _look(self) -> dict[str, Any]:
        return {
            "picture": self.np_random.integers(0, 256, (4, 4), dtype=np.uint8),
            "shelf": int(self.np_random.integers(5)),
            "weights": self.np_random.normal(size=2).astype(np.float32),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._last_action = action
        return self._look(), float(action.sum()), self._steps % 7 == 0, False, {}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "last_action": self._last_action}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._last_action = state["steps"], state["last_action"]


class Masked(Diary):
    """Allows only the action that equals the step modulo three."""

    def _mask(self) -> np.ndarray:
        return np.arange(3) == int(self._buffer[1]) % 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"action_mask": self._mask().astype(np.int8)}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"action_mask": self._mask().astype(np.int8)}


class SometimesMasked(Masked):
    """Says nothing about what is legal at the beginning and at the end of an episode."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {} if terminated or truncated else info


class MaskedByMethod(Diary):
    """Says by a method which actions are allowed."""

    def action_masks(self) -> np.ndarray:
        return np.array([True, False, True])


class Trouble(Diary):
    """Raises, exits, is killed or hangs: when made, in reset, or at the action 2."""

    def __init__(self, kind: str = "raise", when: str = "step") -> None:
        super().__init__(longest=100)
        self.kind, self.when = kind, when
        if when == "made":
            self._trouble()

    def _trouble(self) -> None:
        if self.kind == "exit":
            os._exit(7)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "hang":
            time.sleep(HANG_SECONDS)
        raise RuntimeError("the floor gave way")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.when == "reset":
            self._trouble()
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 2:
            self._trouble()
        return super().step(action)


class Slow(Diary):
    """A diary whose steps take milliseconds, as those of a simulator do."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.004)
        return super().step(action)


class WrongShape(Diary):
    """Observes fewer numbers than its space says."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1), {}


class NotADict(WrongShape):
    """Observes an array where its space says a Dict."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Dict({"speed": gym.spaces.Box(-1, 1, (1,))})


class Tupled(Diary):
    """An observation space that no encoder takes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(3)))


class Nested(Diary):
    """A Dict in a Dict."""

    def __init__(self) -> None:
        super().__init__()
        inner = gym.spaces.Dict({"x": gym.spaces.Discrete(2)})
        self.observation_space = gym.spaces.Dict({"inner": inner})


class TupledAction(Diary):
    """An action space that no head gives."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Tuple((gym.spaces.Discrete(2),))


for environment in (
    Diary,
    Forgetful,
    UnsavableDiary,
    Cupboard,
    Masked,
    SometimesMasked,
    MaskedByMethod,
    Trouble,
    Slow,
    WrongShape,
    NotADict,
    Tupled,
    Nested,
    TupledAction,
):
    name = f"Sample/{environment.__name__}-v0"
    if name not in gym.registry:
        gym.register(name, entry_point=f"env_samples:{environment.__name__}")
