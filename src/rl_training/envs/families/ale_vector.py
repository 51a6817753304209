"""Atari games on ale-py's C++ vector environment: emulation and preprocessing in threads outside of Python.

Each game is a vector environment of one, because ale-py steps all games of a batch together, and the wrappers press
FIRE or go on after a lost life in one game alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from rl_training.envs.slot import EnvSlot, wrap_base
from rl_training.envs.step import Obs
from rl_training.envs.vector import GroupStep, SyncVectorEnv, slot_states, step_slots
from rl_training.envs.wrapping import WRAPS_NOTHING, wraps_task
from rl_training.errors import CheckpointError
from rl_training.experiment.configuration.env_params import EnvParams

OLDEST = "0.12.1"
"""The oldest ale-py that the preprocessing was compared with, frame by frame."""

# A new seed loads the game anew, which takes as long as 250 steps. Steps since the last seed are repeated on resume.
_STEPS_PER_SEED = 5000
_RESET = 255  # among the actions of a game's history
_ENDLESS = 2**30  # ale-py adds one to its limit of frames, so that the largest integer would overflow
_TAKEN = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")


def ale_vector_obstacle(spec: EnvSpec, params: EnvParams) -> str | None:
    """Return why ale-py's vector environment cannot run this, with the repair, or None if it can."""
    if spec.entry_point != "ale_py.env:AtariEnv":
        return f"{spec.id} is not an Atari game; use `auto`"
    if not params.atari:
        return "it always preprocesses frames; set env_kwargs.atari to true"
    if wraps_task(params):
        return WRAPS_NOTHING
    if not params.grayscale:
        return "it shows gray frames here; set env_kwargs.grayscale to true, or use `local_sync`"
    foreign = [key for key in params.make_kwargs if key not in _TAKEN]
    if foreign:
        return f"it does not take {', '.join(foreign)}; remove env_kwargs.{foreign[0]}, or use `local_sync`"
    try:
        installed = metadata.version("ale-py")
    except metadata.PackageNotFoundError:
        return None  # the error of a missing extra follows when the game is made
    from packaging.version import Version

    if Version(installed) < Version(OLDEST):
        return f"it needs ale-py {OLDEST} or newer, and {installed} is installed; upgrade it, or use `local_sync`"
    return None


def has_sticky_actions(spec: EnvSpec, params: EnvParams) -> bool:
    """Return whether the game repeats actions by chance, so that the emulator's state alone cannot be saved."""
    return float({**spec.kwargs, **params.make_kwargs}.get("repeat_action_probability", 0.0)) > 0


class AleGame(gym.Env[np.ndarray, int]):
    """One preprocessed game; `begin` starts a step in its thread and `step` collects the result.

    ale-py cannot save a game. But a seed and the actions since then determine it, so `state_dict` holds these, and
    `load_state_dict` plays them again.
    """

    def __init__(self, spec: EnvSpec, params: EnvParams) -> None:
        from ale_py.vector_env import AtariVectorEnv

        kwargs = {**spec.kwargs, **params.make_kwargs}
        self._noop_max = params.noop_max
        self._game: Any = AtariVectorEnv(
            kwargs["game"],
            1,
            num_threads=1,
            max_num_frames_per_episode=kwargs.get("max_num_frames_per_episode") or _ENDLESS,
            repeat_action_probability=float(kwargs.get("repeat_action_probability", 0.0)),
            full_action_space=bool(kwargs.get("full_action_space", False)),
            autoreset_mode="NextStep",  # an explicit reset comes first
            img_height=params.screen_size,
            img_width=params.screen_size,
            grayscale=True,
            stack_num=1,
            frameskip=params.frame_skip,
            maxpool=True,
            # It draws from 0 to one less; zero no-ops are drawn again, as ours are from 1 on.
            noop_max=params.noop_max + 1 if params.noop_max else 0,
            episodic_life=False,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self._emulator: Any = self._game.ale
        self.observation_space = gym.spaces.Box(0, 255, (params.screen_size, params.screen_size), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self.get_action_meanings()))  # type: ignore[assignment]
        self._seed = 0  # of the environment
        self._seedings = 0
        self._emulator_seed = 0
        self._history = bytearray()  # actions and resets since the emulator was seeded
        self._begun = False
        self._collected: Callable[[], None] | None = None

    def get_action_meanings(self) -> list[str]:
        """Return the names of the actions."""
        return [action.name for action in self._game.ale.get_action_set()]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed, self._seedings = seed, 0
            # As AtariEnv seeds its emulator, but ale-py's vector environment takes no negative seed.
            return self._start(int(np.random.SeedSequence(seed).generate_state(2)[1]) & 0x7FFFFFFF)
        if len(self._history) >= _STEPS_PER_SEED:
            self._seedings += 1
            entropy = np.random.SeedSequence([self._seed, self._seedings])
            return self._start(int(entropy.generate_state(1)[0]) & 0x7FFFFFFF)
        return self._restart()

    def _start(self, emulator_seed: int) -> tuple[Any, dict[str, Any]]:
        """Load the game with a seed and start it."""
        self._emulator_seed = emulator_seed
        self._history.clear()
        return self._started(self._game.reset(seed=np.array([emulator_seed])))

    def _restart(self) -> tuple[Any, dict[str, Any]]:
        """Start the next game; the generators continue."""
        self._history.append(_RESET)
        return self._started(self._game.reset())

    def _started(self, result: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
        while self._noop_max and result[1]["episode_frame_number"][0] == 0:
            result = self._game.reset()
        frames, info = result
        return frames[0, 0], {"lives": int(info["lives"][0])}

    def begin(self, action: int, collected: Callable[[], None] | None = None) -> None:
        """Start a step, whose action `step` has to be given again; it calls `collected` when the thread is free."""
        self._emulator.send((action,), (1.0,))
        self._begun, self._collected = True, collected

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._begun:
            self.begin(action)
        self._begun = False
        frames, rewards, terminated, truncated, info = self._emulator.recv()
        if self._collected is not None:
            self._collected()
            self._collected = None
        self._history.append(action)
        return (
            frames[0, 0],
            float(rewards[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            {"lives": int(info["lives"][0])},
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "seedings": self._seedings,
            "emulator_seed": self._emulator_seed,
            "history": np.frombuffer(bytes(self._history), np.uint8),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        history = np.asarray(state["history"], np.uint8).tolist()
        emulator_seed, actions = int(state["emulator_seed"]), range(len(self.get_action_meanings()))
        # ale-py would wait forever for a step that its thread refuses.
        if not 0 <= emulator_seed < 2**31 or any(event not in actions for event in set(history) - {_RESET}):
            raise CheckpointError("the checkpoint's Atari games hold a seed or an action that does not exist")
        self._seed, self._seedings = int(state["seed"]), int(state["seedings"])
        self._start(emulator_seed)
        for event in history:
            if event == _RESET:
                self._restart()
            else:
                self.step(event)

    def close(self) -> None:
        self._game = self._emulator = None  # its thread ends with it


def make_ale_vector(spec: EnvSpec, params: EnvParams, num_envs: int, num_threads: int) -> AleVectorEnv:
    """Make games below the same wrappers as Gymnasium's games."""

    def make() -> gym.Env[Any, Any]:
        game: gym.Env[Any, Any] = AleGame(spec, params)
        if params.max_episode_steps is not None:
            game = TimeLimit(game, params.max_episode_steps)
        return wrap_base(game, params)

    return AleVectorEnv([EnvSlot(make, index) for index in range(num_envs)], num_threads)


class AleVectorEnv(SyncVectorEnv):
    """Games whose steps run in threads, a given number of them at a time."""

    def __init__(self, slots: Sequence[EnvSlot], num_threads: int) -> None:
        super().__init__(slots)
        self._games: list[Any] = [slot.env.unwrapped for slot in slots]
        self._threads = min(num_threads, len(slots))

    def _step_slots(self, actions: Sequence[Any], batch: Obs, rewards: np.ndarray) -> GroupStep:
        rows = iter(range(self.num_envs))

        def begin_next() -> None:
            row = next(rows, None)
            if row is not None:
                self._games[row].begin(actions[row], begin_next)

        # Rows are collected in order, and each collected one lets the next begin.
        for _ in range(self._threads):
            begin_next()
        return step_slots(self._slots, actions, batch, rewards)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states = slot_states(state, self.num_envs)
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(EnvSlot.restore, self._slots, states))
