"""The data that a collector gets: batched observations, one step of every environment, finished episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

Obs: TypeAlias = "np.ndarray | dict[str, np.ndarray]"
"""One observation, or a batch of them with a leading [num_envs]; a flat dict for `Dict` spaces."""


class Episode(NamedTuple):
    """An episode that ended, with the environment's own rewards and the agent's steps."""

    env_index: int
    episode_return: float
    length: int


class StepBatch(NamedTuple):
    """One step of every environment; environments whose episode ended are already reset."""

    obs: Obs
    """[num_envs, ...] the observations to act on next, after any reset."""
    reward: np.ndarray
    """[num_envs] float32"""
    terminated: np.ndarray
    """[num_envs] bool: the episode ended in a terminal state."""
    truncated: np.ndarray
    """[num_envs] bool: the episode was cut off, so that the value of `final_obs` is still needed."""
    final_obs: Obs
    """[num_envs, ...] the true next observation of every row; the same object as `obs` if no episode ended."""
    action_mask: np.ndarray | None
    """[num_envs, n] bool: the legal actions in `obs`; None if the environment gives no mask."""
    episodes: list[Episode]
    """Real episodes that ended at this step, regardless of reward clipping and episodic life."""
    final_mask: np.ndarray | None = None
    """[num_envs, n] bool: the legal actions in `final_obs`; all of them if an episode ended without a mask."""
    metrics: Sequence[dict[str, float]] = ()
    """The contents of `info["metrics"]` at this step, in the order of the environments that gave one."""
    real: np.ndarray | None = None
    """[num_envs] bool: the rows that took a step; the others belong to absent agents, and end at once. None: all."""
    present: np.ndarray | None = None
    """[num_envs] bool: the rows that act next, in the same sense."""


class StepEvents(NamedTuple):
    """What a step of the environments reported beside its transitions."""

    episodes: Sequence[Episode]
    metrics: Sequence[dict[str, float]]


def empty_obs(space: gym.Space[Any], rows: int) -> Obs:
    """Return an uninitialised batch of `rows` observations of `space`."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _empty_array(part, rows) for key, part in space.spaces.items()}
    return _empty_array(space, rows)


def write_row(batch: Obs, row: int, obs: Any) -> None:
    """Copy one observation into a row of a batch."""
    if isinstance(batch, dict):
        for key, part in batch.items():
            part[row] = obs[key]
    else:
        batch[row] = obs


def copy_obs(obs: Any) -> Any:
    """Return a copy that the environment cannot change."""
    if isinstance(obs, dict):
        return {key: np.array(part) for key, part in obs.items()}
    return np.array(obs)


def _empty_array(space: gym.Space[Any], rows: int) -> np.ndarray:
    assert space.shape is not None, f"{space} has no array form"
    return np.empty((rows, *space.shape), dtype=space.dtype)
