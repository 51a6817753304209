"""CartPole in one array, step by step as Gymnasium's, with same-step reset, so that no step is a fake transition."""

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

    Gymnasium's own vector environment gives the constants. Its step, which checks spaces and resets poles a step late,
    takes several times as long as the equations, which are written here in the same order and so give the same bits.
    """

    def __init__(self, num_envs: int, *, max_episode_steps: int, sutton_barto_reward: bool = False) -> None:
        self.constants: Any = CartPoleVectorEnv(num_envs, max_episode_steps)
        self.num_envs = num_envs
        self.observation_space: gym.Space[Any] = self.constants.single_observation_space
        self.action_space: gym.Space[Any] = self.constants.single_action_space
        self.max_steps = max_episode_steps
        self.sutton_barto_reward = sutton_barto_reward
        self._random = np.random.default_rng(0)
        self.poles = np.zeros((4, num_envs))  # position, velocity, angle, angular velocity
        self.steps = np.zeros(num_envs, np.int32)
        self.returns = np.zeros(num_envs)  # of the episodes in progress
        self._started = False

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        """Reset all environments; they share one generator, seeded by all the seeds."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        self._random = np.random.default_rng([int(seed) for seed in seeds])
        self.poles[:] = self._random.uniform(-0.05, 0.05, size=(4, self.num_envs))
        self.steps[:] = 0
        self.returns[:] = 0.0
        self._started = True
        return self.observation(), None

    def step(self, actions: np.ndarray) -> StepBatch:
        """Push every cart."""
        if not self._started:
            raise RuntimeError("reset the environments first")
        self._move(actions)
        position, _, angle, _ = self.poles
        constants = self.constants
        terminated = np.abs(position) > constants.x_threshold
        terminated |= np.abs(angle) > constants.theta_threshold_radians
        self.steps += 1
        truncated = self.steps >= self.max_steps
        if self.sutton_barto_reward:
            reward = -terminated.astype(np.float32)
        else:
            reward = np.ones(self.num_envs, np.float32)
        self.returns += reward
        return self.end_step(reward, terminated, truncated)

    def end_step(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> StepBatch:
        """Reset the poles whose episode ended, after all of them have moved and been counted."""
        final_obs, ended = self.observation(), terminated | truncated
        if not ended.any():
            return StepBatch(final_obs, reward, terminated, truncated, final_obs, None, [])
        rows = np.flatnonzero(ended)
        episodes = [Episode(int(row), float(self.returns[row]), int(self.steps[row])) for row in rows]
        self.poles[:, rows] = self._random.uniform(-0.05, 0.05, size=(4, len(rows)))
        self.steps[rows] = 0
        self.returns[rows] = 0.0
        return StepBatch(self.observation(), reward, terminated, truncated, final_obs, None, episodes)

    def _move(self, actions: np.ndarray) -> None:
        """Integrate the equations of motion by one step of Euler's method."""
        constants = self.constants
        position, velocity, angle, spin = self.poles
        cosine, sine = np.cos(angle), np.sin(angle)
        force = np.asarray(actions) * (2 * constants.force_mag) - constants.force_mag
        push = (force + constants.polemass_length * np.square(spin) * sine) / constants.total_mass
        spin_change = (constants.gravity * sine - cosine * push) / (
            constants.length * (4.0 / 3.0 - constants.masspole * np.square(cosine) / constants.total_mass)
        )
        change = push - constants.polemass_length * spin_change * cosine / constants.total_mass
        position += constants.tau * velocity
        velocity += constants.tau * change
        angle += constants.tau * spin
        spin += constants.tau * spin_change

    def observation(self) -> np.ndarray:
        """Return what is seen of all poles, [num_envs, 4]."""
        return self.poles.T.astype(np.float32)

    def state_dict(self) -> dict[str, Any] | None:
        if not self._started:
            raise RuntimeError("reset the environments first")
        return {
            "state": self.poles.copy(),
            "steps": self.steps.copy(),
            "returns": self.returns.copy(),
            "generator": generator_state(self._random),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        shapes = {"state": (4, self.num_envs), "steps": (self.num_envs,), "returns": (self.num_envs,)}
        if any(np.shape(state.get(name, ())) != shape for name, shape in shapes.items()):
            raise CheckpointError(
                f"the checkpoint does not hold {self.num_envs} poles of the `vector` backend: "
                "resume with the `num_envs` and `execution_backend` it was made with"
            )
        self.poles = np.array(state["state"], dtype=np.float64, order="C")
        self.steps = np.array(state["steps"], dtype=np.int32)
        self.returns = np.array(state["returns"], dtype=np.float64)
        self._random = generator_from_state(state["generator"])
        self._started = True

    def close(self) -> None:
        self.constants.close()
