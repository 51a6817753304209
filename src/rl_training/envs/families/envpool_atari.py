"""Atari games of EnvPool below the same wrappers as Gymnasium's games."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from rl_training.envs.families.envpool_vector import check_pool, open_pool
from rl_training.envs.slot import EnvFactory, EnvSlot, wrap_base
from rl_training.envs.step import Obs
from rl_training.envs.vector import GroupStep, SyncVectorEnv, step_slots
from rl_training.experiment.configuration.env_params import EnvParams

_ENDLESS = 2**30  # EnvPool adds one to its limit of steps


class GamePool:
    """The games of one pool, stepped together or one alone."""

    def __init__(self, spec: EnvSpec, params: EnvParams, num_threads: int) -> None:
        kwargs = {**spec.kwargs, **params.make_kwargs}
        self.name = f"{''.join(part.capitalize() for part in kwargs['game'].split('_'))}-v5"
        frames = kwargs.get("max_num_frames_per_episode")
        self.config = {
            "max_episode_steps": math.ceil(frames / params.frame_skip) if frames else _ENDLESS,
            "stack_num": 1,
            "frame_skip": params.frame_skip,
            "noop_max": params.noop_max,
            "episodic_life": False,
            "reward_clip": False,
            "use_fire_reset": False,
            "img_height": params.screen_size,
            "img_width": params.screen_size,
            "full_action_space": bool(kwargs.get("full_action_space", False)),
            "repeat_action_probability": float(kwargs.get("repeat_action_probability", 0.0)),
            "gray_scale": True,
        }
        self._threads = num_threads
        self._pool: Any = None
        self._dtype: Any = None
        self._first: Any = None
        self._stepped: Any = None

    def open(self, seeds: Sequence[int]) -> None:
        """Start all games with their seeds."""
        self.close()
        self._pool, self._dtype = open_pool(self.name, seeds, self._threads, **self.config)
        self._first = self._pool.reset()
        self._stepped = None

    def step_all(self, actions: Sequence[int]) -> None:
        """Step all games; `step` hands out the results."""
        self._stepped = self._pool.step(np.asarray(actions, self._dtype))

    def reset(self, row: int, *, fresh: bool) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the first frame of a `fresh` pool's game, or start the next game."""
        obs, info = self._first if fresh else self._pool.reset(np.array([row], np.int32))
        at = row if fresh else 0
        return obs[at, 0].copy(), {"lives": int(info["lives"][at])}

    def step(self, row: int, action: int, *, stepped: bool) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Return the row's result of `step_all`, or step this game alone."""
        if stepped:
            at, result = row, self._stepped
        else:
            at, result = 0, self._pool.step(np.array([action], self._dtype), np.array([row], np.int32))
        obs, reward, _, truncated, info = result
        # EnvPool reports a game that is over at its limit of steps as truncated alone.
        over = bool(info["terminated"][at])
        return obs[at, 0].copy(), float(reward[at]), over, bool(truncated[at]), {"lives": int(info["lives"][at])}

    def close(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class PooledGame(gym.Env[np.ndarray, int]):
    """One game of a pool."""

    def __init__(self, pool: GamePool, row: int, observation_space: gym.Space[Any], actions: list[str]) -> None:
        self._pool, self._row, self._meanings = pool, row, actions
        self.observation_space = observation_space
        self.action_space = gym.spaces.Discrete(len(actions))  # type: ignore[assignment]
        self.stepped = False
        """Whether the pool has stepped this game already."""

    def get_action_meanings(self) -> list[str]:
        """Return the names of the actions."""
        return self._meanings

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._pool.reset(self._row, fresh=seed is not None)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        stepped, self.stepped = self.stepped, False
        return self._pool.step(self._row, action, stepped=stepped)


class EnvPoolAtari(SyncVectorEnv):
    """Games of one pool, stepped by one call; steps that a reset needs are taken by one game alone."""

    def __init__(self, factory: EnvFactory, num_envs: int, num_threads: int) -> None:
        params = factory.params
        probe = EnvSlot(factory, 0)
        meanings = probe.env.get_wrapper_attr("get_action_meanings")()
        probe.close()
        frame = gym.spaces.Box(0, 255, (params.screen_size, params.screen_size), np.uint8)
        pool = GamePool(factory.spec, params, num_threads)
        stacked = gym.spaces.Box(0, 255, (1, *frame.shape), np.uint8)
        check_pool(pool.name, stacked, gym.spaces.Discrete(len(meanings)), **pool.config)
        self._pool = pool
        self._games = [PooledGame(pool, row, frame, meanings) for row in range(num_envs)]

        def wrapped(game: PooledGame) -> gym.Env[Any, Any]:
            limit = params.max_episode_steps
            return wrap_base(game if limit is None else TimeLimit(game, limit), params)

        super().__init__([EnvSlot(partial(wrapped, game), row) for row, game in enumerate(self._games)])

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        self._pool.open(seeds)
        return super().reset(seeds)

    def _step_slots(self, actions: Sequence[Any], batch: Obs, rewards: np.ndarray) -> GroupStep:
        self._pool.step_all(actions)
        for game in self._games:
            game.stepped = True
        return step_slots(self._slots, actions, batch, rewards)

    def close(self) -> None:
        super().close()
        self._pool.close()
