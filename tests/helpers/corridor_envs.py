"""Tiny tasks, named as `corridor_envs:Corridor/...`, that a learner without the right target cannot solve."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 5
CONSOLATION = 0.2
WAGE, BRIBE = 1.0, 5.0
NEAR, FAR = 2.0, 10.0
PIXELS = 36


class Corridor(gym.Env[Any, Any]):
    """Go forward five times for a reward of 1, or leave at any place for a small one.

    Only who values what follows goes forward. Between a `low` of -1 and a `high` of 3 actions are
    continuous, and going forward is anything above 1, the middle.
    """

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (LENGTH,), np.float32)
        self._continuous = low is not None and high is not None
        self.action_space: gym.Space[Any] = (
            gym.spaces.Box(low or 0.0, high or 0.0, (1,), np.float32) if self._continuous else gym.spaces.Discrete(2)
        )
        self._place = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not np.asarray(action).reshape(-1)[0] > (1.0 if self._continuous else 0.5):
            return self._observe(), CONSOLATION, True, False, {}
        self._place += 1
        if self._place == LENGTH:
            self._place = LENGTH - 1
            return self._observe(), 1.0, True, False, {}
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> np.ndarray:
        return np.eye(LENGTH, dtype=np.float32)[self._place]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place = state["place"]


class Fork(gym.Env[Any, Any]):
    """The first action decides: a small reward at once, or a large one at the end of a walk on which no action matters.

    Nothing has to be explored, but only who carries values back over the walk takes it.
    """

    WALK = 2
    observation_space = gym.spaces.Box(0, 1, (2 * WALK + 1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._place = 0
        self._patient = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._patient = 0, False
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += 1
        if self._place == 1:
            self._patient = int(action) == 1
            return self._observe(), 0.0 if self._patient else NEAR, False, False, {}
        done = self._place > self.WALK
        self._place = min(self._place, self.WALK)
        return self._observe(), FAR if done and self._patient else 0.0, done, False, {}

    def _observe(self) -> np.ndarray:
        return np.eye(2 * self.WALK + 1, dtype=np.float32)[
            self._place + self.WALK * (self._patient and self._place > 0)
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place, "patient": self._patient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place, self._patient = state["place"], state["patient"]


class Shifts(gym.Env[Any, Any]):
    """Stay for a wage, or take the bribe and be gone; the clock cuts every step.

    With a discount of 0.9 staying is worth 10 and the bribe 5, but only to who knows that the clock ends nothing.
    """

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        gone = int(action) == 1
        return np.ones(1, dtype=np.float32), BRIBE if gone else WAGE, gone, not gone, {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to put back."""


class Toll(gym.Env[Any, Any]):
    """Take the bribe and be gone, or work once for a wage, after which only leaving with nothing is legal.

    Both moments look alike, so that a learner who forgets what was illegal thinks it could work for ever: with a
    discount of 0.9 that would be worth 10, twice the bribe.
    """

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)
    LEAVE, WORK, TAKE = range(3)

    def __init__(self, clock: bool = False) -> None:
        self._clock = clock  # whether time is up after the work
        self._worked = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._worked = False
        return np.ones(1, dtype=np.float32), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        gone = int(action) != self.WORK
        reward = (0.0, WAGE, BRIBE)[int(action)]
        self._worked = True
        return np.ones(1, dtype=np.float32), reward, gone, self._clock and not gone, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([True, not self._worked, not self._worked])}

    def state_dict(self) -> dict[str, Any]:
        return {"worked": self._worked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._worked = state["worked"]


class Frames(gym.Env[Any, Any]):
    """Grey pictures that show the number of the step, ten levels apart; episodes of six steps."""

    steps_per_episode = 6

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (PIXELS, PIXELS), np.uint8)
        self.action_space: gym.Space[Any] = (
            gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else gym.spaces.Discrete(2)
        )
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._observe(), float(self._steps), self._steps == self.steps_per_episode, False, {}

    def _observe(self) -> np.ndarray:
        return np.full((PIXELS, PIXELS), 10 * self._steps, dtype=np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]


class Gradient(Frames):
    """One picture that never changes, whose every pixel differs from its neighbours."""

    def _observe(self) -> np.ndarray:
        return (np.arange(PIXELS)[:, None] + 7 * np.arange(PIXELS)[None]).astype(np.uint8)


for name, task, kwargs in (
    ("Discrete", "Corridor", {}),
    ("Box", "Corridor", {"low": -1.0, "high": 3.0}),
    ("Boundless", "Corridor", {"low": -np.inf, "high": np.inf}),
    ("Fork", "Fork", {}),
    ("Shifts", "Shifts", {}),
    ("Toll", "Toll", {}),
    ("TollWithClock", "Toll", {"clock": True}),
    ("Frames", "Frames", {}),
    ("Gradient", "Gradient", {}),
    ("FramesBox", "Frames", {"continuous": True}),
):
    if f"Corridor/{name}-v0" not in gym.registry:
        gym.register(f"Corridor/{name}-v0", entry_point=f"corridor_envs:{task}", kwargs=kwargs)
