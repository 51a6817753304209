"""Batches of a dataset's transitions, sampled like those of a replay to which nothing is ever added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rl_training.data.batches import BatchMemory, ReplayBatch
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.data.datasets.episode import ACTION_MASK
from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.envs.normalize import ObservationNormalizer

RETURN_RANGE = 1000.0
"""Difference between the highest and the lowest return of a dataset with normalised rewards."""
_ROWS_AT_ONCE = 1 << 16


def measure_observations(columns: DatasetColumns, normalizer: ObservationNormalizer) -> None:
    """Add all observations of a dataset to the statistics of a normaliser."""
    rows = len(columns) + len(columns.first)
    for first in range(0, rows, _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        normalizer.update(map_observation(lambda array, part=part: array[part], columns.observation))


def return_range_scale(columns: DatasetColumns) -> float | None:
    """Return the factor of rewards that makes returns differ by at most `RETURN_RANGE`; None if all are equal."""
    spread = float(columns.episode_returns.max() - columns.episode_returns.min())
    return RETURN_RANGE / spread if spread > 0 else None


def best_transitions(columns: DatasetColumns, fraction: float) -> np.ndarray:
    """Return the rows of the transitions of the episodes with the highest returns, at least of one episode."""
    kept = max(1, int(fraction * len(columns.episode_returns)))
    best = np.argsort(-columns.episode_returns, kind="stable")[:kept]
    return np.flatnonzero(np.isin(columns.episode, best))


class OfflineReplay:
    """Samples transitions of a dataset with equal probability."""

    def __init__(
        self,
        columns: DatasetColumns,
        stored_action: Callable[[np.ndarray], np.ndarray],
        *,
        gamma: float = 1.0,
        normalizer: ObservationNormalizer | None = None,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
        reward_transform: Callable[[np.ndarray], np.ndarray] | None = None,
        rows: np.ndarray | None = None,
        with_next_action: bool = False,
    ) -> None:
        """`stored_action` converts actions of the environment to those of batches; `rows` limits what is sampled.

        `reward_transform` is applied to rewards before scale and shift.
        """
        self.columns = columns
        self.stored_action = stored_action
        self.gamma = gamma
        self.normalizer = normalizer
        self.reward_scale, self.reward_shift = reward_scale, reward_shift
        self.reward_transform = reward_transform
        self.rows = rows
        self.with_next_action = with_next_action
        self._masks = columns.observation_infos.get(ACTION_MASK)
        self._memory: BatchMemory | None = None

    @property
    def size(self) -> int:
        """Number of transitions that can be sampled."""
        return len(self.columns) if self.rows is None else len(self.rows)

    def batch_bytes(self, batch_size: int) -> int:
        """Return about how many bytes a batch has."""
        parts = self.columns.observation
        arrays = list(parts.values()) if isinstance(parts, dict) else [parts]
        return 2 * batch_size * sum(array[:1].nbytes for array in arrays)

    def sample(
        self, batch_size: int, generator: np.random.Generator, device: torch.device, *, count: int = 1
    ) -> tuple[list[ReplayBatch], np.ndarray]:
        """Sample `count` batches with one transfer; return them and their rows [count, batch_size].

        On the CPU they are valid until the next call, which uses the same memory.
        """
        rows = generator.integers(0, self.size, size=(count, batch_size))
        if self.rows is not None:
            rows = self.rows[rows]
        memory = self._memory_for((count, batch_size))
        return memory.batches(self._gather(rows, memory), device), rows

    def _memory_for(self, leading: tuple[int, int]) -> BatchMemory:
        if self._memory is None or self._memory.leading != leading:
            observation = map_observation(lambda array: (array.shape[1:], array.dtype), self.columns.observation)
            action = self.stored_action(self.columns.action[:1])
            columns: dict[str, Any] = {
                "observation": observation,
                "next_observation": observation,
                "action": (action.shape[1:], action.dtype),
                "reward": ((), np.dtype(np.float32)),
                "discount": ((), np.dtype(np.float32)),
            }
            self._memory = BatchMemory(leading, columns)
        return self._memory

    def _gather(self, rows: np.ndarray, memory: BatchMemory) -> dict[str, Any]:
        """Return the transitions in rows [count, batch_size] as host arrays, in the memory as far as possible."""
        columns, arrays = self.columns, memory.arrays
        places = columns.place.take(rows)
        arrays["action"][...] = self.stored_action(columns.action.take(rows, axis=0))
        reward = columns.reward.take(rows)
        if self.reward_transform is not None:
            reward = self.reward_transform(reward)
        np.multiply(reward, self.reward_scale, out=arrays["reward"])
        arrays["reward"] += self.reward_shift
        np.multiply(~columns.terminated.take(rows), self.gamma, out=arrays["discount"])
        gathered = {
            **{name: arrays[name] for name in ("action", "reward", "discount")},
            "observation": self._observations(places, arrays["observation"]),
            "next_observation": self._observations(places + 1, arrays["next_observation"]),
        }
        if self._masks is not None:
            gathered |= {"mask": self._legal(self._masks, places), "next_mask": self._legal(self._masks, places + 1)}
        if self.with_next_action:
            gathered["next_action"] = self._next_actions(rows)
        return gathered

    def _observations(self, places: np.ndarray, into: NumpyObservation) -> NumpyObservation:
        # With another mode NumPy would write to a copy first; no place lies outside.
        found: NumpyObservation = map_observation(
            lambda array, out: array.take(places, axis=0, out=out, mode="clip"), self.columns.observation, into
        )
        return found if self.normalizer is None else self.normalizer(found)

    @staticmethod
    def _legal(masks: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the masks of observations; where nothing is legal, as at the end of a game, everything counts as so.

        Otherwise the largest legal value would be minus infinity, which no discount turns into 0.
        """
        found = masks.take(places, axis=0).astype(np.bool_)
        found[~found.any(axis=-1)] = True
        return found

    def _next_actions(self, rows: np.ndarray) -> np.ndarray:
        """Return the actions after those in rows, NaN at the end of an episode."""
        following = np.minimum(rows + 1, len(self.columns) - 1)
        ended = (following == rows) | (self.columns.episode.take(following) != self.columns.episode.take(rows))
        action = self.stored_action(self.columns.action.take(following, axis=0)).astype(np.float32)
        action[ended] = np.nan
        return action
