"""Normalisation in a group of environments that is apart from the others of a run for a while.

Every environment continues the run's statistics with its own data alone, so that its numbers do not depend on which
others are in its group. What each has seen is merged into the run's statistics later, in the order of environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.normalize import Normalizers, ObservationNormalizer, RewardNormalizer
from rl_training.envs.step import Obs

_EPSILON = 1e-8


class RowMoments:
    """The run's mean and variance, continued by each of `rows` environments, and those of its own data alone."""

    def __init__(self, rows: int, shape: tuple[int, ...] = ()) -> None:
        self.mean, self.own_mean = np.zeros((2, rows, *shape))
        self.var, self.own_var = np.ones((2, rows, *shape))
        self.count = self.own_count = 0

    def begin(self, state: Mapping[str, Any]) -> None:
        """Start from the run's statistics."""
        self.mean[:], self.var[:], self.count = state["mean"], state["var"], state["count"]
        self.own_mean[:], self.own_var[:], self.own_count = 0.0, 1.0, 0

    def update(self, batch: np.ndarray) -> None:
        """Add one value of every environment, [rows, *shape]."""
        values = np.asarray(batch, dtype=np.float64)
        _add(self.mean, self.var, self.count, values)
        _add(self.own_mean, self.own_var, self.own_count, values)
        self.count += 1
        self.own_count += 1

    def gained(self) -> dict[str, Any]:
        """Return count, means and variances of the environments' own data."""
        return {"mean": self.own_mean.copy(), "var": self.own_var.copy(), "count": self.own_count}


def _add(mean: np.ndarray, var: np.ndarray, count: int, values: np.ndarray) -> None:
    """Add one value to each row's statistics of `count` values, in place."""
    total = count + 1
    delta = values - mean
    var *= count
    var += np.square(delta) * (count / total)
    var /= total
    delta /= total
    mean += delta


class RowObservationNormalizer(ObservationNormalizer):
    """Normalises each row by the statistics of its own environment."""

    def __init__(self, space: gym.Space[Any], clip: float, rows: int) -> None:
        super().__init__(space, clip)
        self.rows: dict[str, RowMoments] = {
            key: RowMoments(rows, moments.mean.shape) for key, moments in self._moments.items()
        }
        self._moments = self.rows  # type: ignore[assignment]


class RowRewardNormalizer(RewardNormalizer):
    """Scales each row's reward by the statistics of its own environment."""

    def __init__(self, rows: int, gamma: float, clip: float) -> None:
        super().__init__(rows, gamma, clip)
        self.rows = RowMoments(rows)
        self._moments = self.rows  # type: ignore[assignment]

    def __call__(self, reward: np.ndarray) -> np.ndarray:
        """Return rewards [rows] scaled by the current statistics, as float32."""
        return self._clipped(np.divide(reward, np.sqrt(self.rows.var + _EPSILON)))

    def begin(self, state: Mapping[str, Any], rows: slice) -> None:
        """Start from the run's statistics and the returns of these environments' episodes in progress."""
        self.rows.begin(state["moments"])
        self._returns[:] = state["returns"][rows]

    def gained(self) -> dict[str, Any]:
        """Return the statistics of the environments' own data, and the returns of their episodes in progress."""
        return {"moments": self.rows.gained(), "returns": self._returns.copy()}


class RowNormalizers(Normalizers):
    """The normalisers of the environments `rows` of a run, apart from the others."""

    observation: RowObservationNormalizer | None
    reward: RowRewardNormalizer | None

    def __init__(self, of_run: Normalizers, rows: slice) -> None:
        count = rows.stop - rows.start
        observation, reward = of_run.observation, of_run.reward
        super().__init__(
            None if observation is None else RowObservationNormalizer(observation.space, observation.clip, count),
            None if reward is None else RowRewardNormalizer(count, reward.gamma, reward.clip),
        )
        self._rows = rows

    def start(self, state: Mapping[str, Any]) -> None:
        """Start from the run's statistics, given as the state of its normalisers."""
        if self.observation is not None:
            for key, moments in self.observation.rows.items():
                moments.begin(state["observation"][key])
        if self.reward is not None:
            self.reward.begin(state["reward"], self._rows)

    def begin(self, obs: Obs) -> None:
        """Count nothing: the run itself adds the first observations, of all environments together."""

    def gained(self) -> dict[str, Any]:
        """Return what the environments have seen since `start`."""
        observation, reward = self.observation, self.reward
        return {
            "observation": {key: moments.gained() for key, moments in observation.rows.items()} if observation else {},
            "reward": None if reward is None else reward.gained(),
        }


def merge_rows(normalizers: Normalizers, groups: Sequence[Mapping[str, Any]]) -> None:
    """Add what groups of environments, in their order, have seen to the statistics of the run."""
    if normalizers.observation is not None:
        for key, moments in normalizers.observation.moments.items():
            moments.merge(**_joined([group["observation"][key] for group in groups]))
    if normalizers.reward is not None:
        gained = [group["reward"]["moments"] for group in groups]
        returns = np.concatenate([group["reward"]["returns"] for group in groups])
        normalizers.reward.merge(**_joined(gained), returns=returns)


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of all rows as one; all environments took the same number of steps."""
    return {
        "mean": np.concatenate([part["mean"] for part in parts]),
        "var": np.concatenate([part["var"] for part in parts]),
        "count": parts[0]["count"],
    }
