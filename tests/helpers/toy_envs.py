"""Tiny tasks for every kind of space, named as `toy_envs:Toy/...` in tests: show a target, reward repeating it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

PIXELS = 36
EPISODE_STEPS = 8

ACTION_SPACES: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(4, start=1),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 4]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
}


class Echo(gym.Env[Any, Any]):
    """Shows a target action and pays for coming near to it; 0 is the best reward.

    Episodes of eight steps end by termination and by truncation in turn. With `masked`, only some actions are legal,
    the target among them, and taking any other raises.
    """

    def __init__(self, action: str = "box", observation: str = "vector", masked: bool = False) -> None:
        self.action_space = ACTION_SPACES[action]
        self.masked = masked
        self._view = observation
        numbers = gym.spaces.Box(-np.inf, np.inf, (_size(self.action_space),), np.float32)
        picture = gym.spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)
        views: dict[str, gym.Space[Any]] = {
            "vector": numbers,
            "image": picture,
            "dict": gym.spaces.Dict({"numbers": numbers, "step": gym.spaces.Discrete(EPISODE_STEPS + 1)}),
            "dict_with_image": gym.spaces.Dict({"picture": picture, "numbers": numbers}),
        }
        self.observation_space = views[observation]
        self._steps = 0
        self._episodes = 0
        self._target = np.zeros(_size(self.action_space))
        self._mask = np.ones(sum(_choices(self.action_space)), dtype=bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._episodes += 1
        self._draw()
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(np.asarray(action) if np.ndim(action) else np.int64(action)):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        chosen = _numbers(self.action_space, action)
        if self.masked and not self._legal(chosen):
            raise ValueError(f"action {action!r} is illegal under the mask {self._mask.astype(int)}")
        error = chosen - self._target
        discrete = not isinstance(self.action_space, gym.spaces.Box)
        reward = -float((error != 0).mean()) if discrete else -float(np.square(error).sum())
        self._steps += 1
        self._draw()
        ended = self._steps == EPISODE_STEPS
        by_time = self._episodes % 2 == 0
        return self._observe(), reward, ended and not by_time, ended and by_time, self._info()

    def _draw(self) -> None:
        """Choose the next target, and what is legal."""
        choices = _choices(self.action_space)
        if not choices:
            self._target = self.np_random.uniform(-0.7, 0.7, _size(self.action_space))
            return
        values = choices if not isinstance(self.action_space, gym.spaces.MultiBinary) else (2,) * len(choices)
        self._target = np.array([self.np_random.integers(n) for n in values], dtype=float)
        self._mask = self.np_random.random(sum(choices)) < 0.4
        start = 0
        for variable, n in enumerate(choices):
            # A switch may always stay off; its one mask entry says whether it may be on.
            needed = int(self._target[variable]) if n > 1 else 0
            if n > 1 or self._target[variable]:
                self._mask[start + needed] = True
            start += n

    def _legal(self, chosen: np.ndarray) -> bool:
        if isinstance(self.action_space, gym.spaces.MultiBinary):
            return bool(np.all(self._mask | (chosen == 0)))
        starts = np.cumsum((0, *_choices(self.action_space)))[:-1]
        return bool(self._mask[starts + chosen.astype(int)].all())

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask.astype(np.int8)} if self.masked else {}

    def _observe(self) -> Any:
        numbers = self._target.astype(np.float32)
        picture = np.zeros((PIXELS, PIXELS, 3), dtype=np.uint8)
        picture[:, :, : len(numbers)] = np.clip(128 + 40 * numbers[:3], 0, 255).astype(np.uint8)
        return {
            "vector": numbers,
            "image": picture,
            "dict": {"numbers": numbers, "step": self._steps},
            "dict_with_image": {"picture": picture, "numbers": numbers},
        }[self._view]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "episodes": self._episodes, "target": self._target, "mask": self._mask}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._episodes = state["steps"], state["episodes"]
        self._target, self._mask = np.array(state["target"]), np.array(state["mask"], dtype=bool)


class LateMask(Echo):
    """Says only after the first step which actions are legal."""

    def __init__(self) -> None:
        super().__init__(action="discrete", masked=True)

    def _info(self) -> dict[str, Any]:
        return super()._info() if self._steps else {}

    def _legal(self, chosen: np.ndarray) -> bool:
        return self._steps == 0 or super()._legal(chosen)


class Stuck(Echo):
    """Allows nothing from its third step on, and does not end."""

    def __init__(self) -> None:
        super().__init__(action="discrete", masked=True)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.full(4, self._steps < 3)}

    def _legal(self, chosen: np.ndarray) -> bool:
        return self._steps < 3


class Drift(gym.Env[np.ndarray, Any]):
    """Shows doubles far from 0 that never repeat, and pays more and more, now and then very much.

    No statistics of its first steps fit the later ones.
    """

    def __init__(self, action: str = "discrete") -> None:
        self.action_space = ACTION_SPACES[action]
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self._steps = 0  # of all episodes

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward = self._steps * self.np_random.normal() * (50 if self.np_random.random() < 0.1 else 1)
        ended, by_time = self.np_random.random(2) < (0.15, 0.5)
        return self._observe(), reward, bool(ended and not by_time), bool(ended and by_time), {}

    def _observe(self) -> np.ndarray:
        return 1e7 + self._steps * 0.05 + self.np_random.normal(size=2) * (1.0, 0.01)


def _size(space: gym.Space[Any]) -> int:
    """Return how many numbers an action has."""
    return int(np.prod(space.shape or (1,)))


def _choices(space: gym.Space[Any]) -> tuple[int, ...]:
    """Return the mask entries of each variable of an action."""
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec)
    return (1,) * _size(space) if isinstance(space, gym.spaces.MultiBinary) else ()


def _numbers(space: gym.Space[Any], action: Any) -> np.ndarray:
    """Return an action as a flat array counted from 0."""
    start = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0
    return np.asarray(action, dtype=float).reshape(-1) - start


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


def _register(name: str, **kwargs: Any) -> None:
    if name not in gym.registry:
        gym.register(name, entry_point="toy_envs:Echo", kwargs=kwargs)


for kind in ACTION_SPACES:
    title = "".join(word.capitalize() for word in kind.split("_"))
    _register(f"Toy/{title}-v0", action=kind)
    if kind != "box":
        _register(f"Toy/Masked{title}-v0", action=kind, masked=True)
for view in ("image", "dict", "dict_with_image"):
    title = "".join(word.capitalize() for word in view.split("_"))
    _register(f"Toy/{title}-v0", action="discrete", observation=view)
for kind in ("discrete", "box"):
    if f"Toy/Drift{kind.capitalize()}-v0" not in gym.registry:
        gym.register(f"Toy/Drift{kind.capitalize()}-v0", entry_point="toy_envs:Drift", kwargs={"action": kind})
for special in ("LateMask", "Stuck"):
    if f"Toy/{special}-v0" not in gym.registry:
        gym.register(f"Toy/{special}-v0", entry_point=f"toy_envs:{special}")
for environment in (Unseen, Picture, Renderless):
    if f"Test/{environment.__name__}-v0" not in gym.registry:
        gym.register(f"Test/{environment.__name__}-v0", entry_point=f"toy_envs:{environment.__name__}")
