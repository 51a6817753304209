"""What a collector sees: batched observations, one step of every environment, finished episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

Obs: TypeAlias = "np.ndarray | dict[str, np.ndarray]"
"""One observation, or a batch of them with a leading [num_envs]; a flat dict for `Dict` spaces."""


class Episode(NamedTuple):
    """A real episode that ended, in the environment's own rewards and the agent's own steps."""

    env_index: int
    episode_return: float
    length: int


class StepBatch(NamedTuple):
    """One real step of every environment; rows that ended are already reset."""

    obs: Obs
    """[num_envs, ...] what to act on next, after any reset."""
    reward: np.ndarray
    """[num_envs] float32"""
    terminated: np.ndarray
    """[num_envs] bool: the task itself ended, nothing follows."""
    truncated: np.ndarray
    """[num_envs] bool: cut off from outside, the value of `final_obs` still counts."""
    final_obs: Obs
    """[num_envs, ...] the true successor of every row; the same object as `obs` where no row ended."""
    action_mask: np.ndarray | None
    """[num_envs, n] bool: which actions are allowed in `obs`; None where the environment does not say."""
    episodes: list[Episode]
    """Real episodes that ended at this step, whatever clipping or episodic life make of them."""
    final_mask: np.ndarray | None = None
    """[num_envs, n] bool: which actions are allowed in `final_obs`; everything where a row ended without saying."""
    metrics: Sequence[dict[str, float]] = ()
    """What environments gave in `info["metrics"]` at this step, in the order of the environments that did."""


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
    """Return a copy that no environment can change any more."""
    if isinstance(obs, dict):
        return {key: np.array(part) for key, part in obs.items()}
    return np.array(obs)


def _empty_array(space: gym.Space[Any], rows: int) -> np.ndarray:
    assert space.shape is not None, f"{space} has no array form"
    return np.empty((rows, *space.shape), dtype=space.dtype)
