"""The agents of several worlds as rows of one batch, so that every algorithm sees them as environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_training.envs.arrays import all_finite
from rl_training.envs.multi_agent.world import AgentStep, World
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import Episode, Obs, StepBatch, empty_obs, write_row
from rl_training.envs.vector import Final, fill_masks, private_actions, slot_states, with_final_masks, with_finals
from rl_training.errors import NonFiniteError


class AgentVectorEnv:
    """Row `w * agents + a` is agent `a` of world `w`; a world without agents is reset in the same step.

    The row of an agent that has left or has not come yet is absent: its action is ignored, its step ends at once with
    no reward, and `StepBatch.real` says that there is nothing to learn from it.
    """

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = list(worlds)
        first = self._worlds[0]
        self._agents = len(first.agents)
        self._names = first.names
        self.num_envs = len(self._worlds) * self._agents
        self.observation_space = first.observation_space
        self.action_space = first.action_space
        self._mask_shape = (self.num_envs, mask_width(self.action_space))

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        """Start every world with the seed of its first row."""
        for world, seed in zip(self._worlds, seeds[:: self._agents], strict=True):
            world.reset(seed)
        return self._observations(), self._masks()

    def step(self, actions: np.ndarray) -> StepBatch:
        """Let every agent that is present act, and reset the worlds that nobody is left in."""
        acting = self._present()
        chosen = private_actions(actions, self.action_space)
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = ~acting, np.zeros(self.num_envs, np.bool_)
        finals: list[Final] = []
        episodes: list[Episode] = []
        metrics: list[dict[str, float]] = []
        for number, world in enumerate(self._worlds):
            base = number * self._agents
            present = np.flatnonzero(world.present).tolist()
            steps = world.step({agent: chosen[base + agent] for agent in present})
            for one in steps:
                row = base + one.agent
                reward[row], terminated[row], truncated[row] = one.reward, one.terminated, one.truncated
                if one.episode is not None:
                    finals.append(Final(row, one.obs, one.mask, one.terminated, one.truncated))
                    episodes.append(Episode(row, *one.episode))
                    metrics.append(agent_return(self._names, one))
            if world.over:
                world.reset()
        if not all_finite(reward):
            row = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise NonFiniteError(f"{self._names[row % self._agents]} of world {row // self._agents} got NaN as reward")
        obs, mask = self._observations(), self._masks()
        final_obs = with_finals(obs, finals) if finals or not acting.all() else obs
        final_mask = with_final_masks(mask, [(final.row, final.mask) for final in finals], self.num_envs)
        batch = StepBatch(obs, reward, terminated, truncated, final_obs, mask, episodes, final_mask, metrics)
        return batch._replace(real=_unless_all(acting), present=_unless_all(self._present()))

    def _present(self) -> np.ndarray:
        return np.concatenate([world.present for world in self._worlds])

    def _observations(self) -> Obs:
        batch = empty_obs(self.observation_space, self.num_envs)
        rows = (obs for world in self._worlds for obs in world.observations)
        for row, obs in enumerate(rows):
            write_row(batch, row, obs)
        return batch

    def _masks(self) -> np.ndarray | None:
        rows = [mask for world in self._worlds for mask in world.masks]
        known = [(row, mask) for row, mask in enumerate(rows) if mask is not None]
        if not known:
            return None
        array = np.empty(self._mask_shape, np.bool_)
        fill_masks(array, known)
        return array

    def state_dict(self) -> dict[str, Any] | None:
        states = [world.snapshot() for world in self._worlds]
        return None if any(state is None for state in states) else {"slots": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for world, saved in zip(self._worlds, slot_states(state, len(self._worlds)), strict=True):
            world.restore(saved)

    def close(self) -> None:
        for world in self._worlds:
            world.close()


def agent_return(names: Sequence[str], step: AgentStep) -> dict[str, float]:
    """Return the metric of an agent whose episode ended."""
    assert step.episode is not None
    return {f"return_{names[step.agent]}": step.episode[0]}


def _unless_all(rows: np.ndarray) -> np.ndarray | None:
    return None if rows.all() else rows
