"""Gymnasium's vectorised CartPole with same-step reset, so that every transition is a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rl_training.envs.snapshots.generators import generator_from_state, generator_state
from rl_training.envs.step import Episode, Obs, StepBatch
from rl_training.errors import CheckpointError


class VectorCartPole:
    """All environments in one array; rows that end are reset in the same step.

    The environment's own next-step autoreset is disabled by clearing its flags after each step.
    """

    def __init__(self, num_envs: int, *, max_episode_steps: int, sutton_barto_reward: bool = False) -> None:
        self._env: Any = CartPoleVectorEnv(num_envs, max_episode_steps, sutton_barto_reward=sutton_barto_reward)
        self.num_envs = num_envs
        self.observation_space: gym.Space[Any] = self._env.single_observation_space
        self.action_space: gym.Space[Any] = self._env.single_action_space
        self._returns = np.zeros(num_envs)  # [num_envs] float64, of the episodes in progress

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        """Reset all environments; they share one generator, seeded by all the seeds."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        self._env.np_random = np.random.default_rng([int(seed) for seed in seeds])
        obs, _ = self._env.reset()
        self._returns[:] = 0.0
        return obs, None

    def step(self, actions: np.ndarray) -> StepBatch:
        env = self._env
        final_obs, reward, terminated, truncated, _ = env.step(np.asarray(actions))
        self._returns += reward
        ended = env.prev_done  # terminated | truncated, computed by the step
        if not ended.any():
            return StepBatch(final_obs, reward, terminated, truncated, final_obs, None, [])

        rows = np.flatnonzero(ended)
        episodes = [Episode(int(row), float(self._returns[row]), int(env.steps[row])) for row in rows]
        state = self._state()
        state[:, rows] = env.np_random.uniform(env.low, env.high, size=(4, len(rows)))
        obs = final_obs.copy()
        obs[rows] = state[:, rows].T
        env.steps[rows] = 0
        self._returns[rows] = 0.0
        env.prev_done = np.zeros(self.num_envs, dtype=np.bool_)
        return StepBatch(obs, reward, terminated, truncated, final_obs, None, episodes)

    def state_dict(self) -> dict[str, Any] | None:
        return {
            "state": self._state().copy(),
            "steps": self._env.steps.copy(),
            "returns": self._returns.copy(),
            "generator": generator_state(self._env.np_random),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if np.shape(state.get("state", ())) != (4, self.num_envs):
            raise CheckpointError(
                f"the checkpoint does not hold {self.num_envs} poles of the `vector` backend: "
                "resume with the `num_envs` and `execution_backend` it was made with"
            )
        self._env.reset(seed=0)  # its own bookkeeping; the state is replaced below
        self._env.state = np.array(state["state"], dtype=np.float64)
        self._env.steps = np.array(state["steps"], dtype=np.int32)
        self._env.np_random = generator_from_state(state["generator"])
        self._returns = np.array(state["returns"], dtype=np.float64)

    def close(self) -> None:
        self._env.close()

    def _state(self) -> np.ndarray:
        state: np.ndarray | None = self._env.state
        if state is None:
            raise RuntimeError("reset the environments first")
        return state
