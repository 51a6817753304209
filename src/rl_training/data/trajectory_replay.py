"""A replay of trajectories: windows of consecutive steps with the search result of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from rl_training.data.observation_store import allocate_column
from rl_training.data.observations import NumpyObservation
from rl_training.data.replay import Replay
from rl_training.data.samplers import Sampler
from rl_training.envs.normalize import Normalizers

RUNNING, TERMINATED, TRUNCATED = range(3)


class Window(NamedTuple):
    """L consecutive steps of B trajectories, time first. If a step is not `real`, its other entries are undefined."""

    rows: np.ndarray  # [L, B] of the replay's columns
    real: np.ndarray  # [L, B] bool, whether the step was taken, in the same episode as the first
    over: np.ndarray  # [L, B] bool, whether the episode had terminated before the step
    action: np.ndarray  # [L, B]
    reward: np.ndarray  # [L, B]
    terminated: np.ndarray  # [L, B] bool, whether the step terminated the episode
    policy: np.ndarray  # [L, B, A] the search's policy
    value: np.ndarray  # [L, B] the search's value


class TrajectoryReplay(Replay):
    """The latest steps of all environments with the search's policy and value; rows never change once complete."""

    def __init__(
        self,
        observation_space: Space[Any],
        action: np.ndarray,
        sampler: Sampler,
        *,
        actions: int,
        capacity: int,
        num_envs: int,
        stack: int = 1,
        directory: Path | None = None,
        normalizers: Normalizers | None = None,
    ) -> None:
        """Allocate memory for `capacity` steps; `action` is an example of one step, [num_envs]."""
        super().__init__(
            observation_space,
            action,
            sampler,
            capacity=capacity,
            num_envs=num_envs,
            n_step=1,
            gamma=1.0,
            stack=stack,
            directory=directory,
            normalizers=normalizers,
        )
        # Single steps are stored in the order of the environments: serial numbers within an episode are num_envs apart.
        for name, (width, kind) in _search_columns(actions).items():
            self.columns[name] = allocate_column((capacity, *width), kind, directory, name)
        self._breaks: list[int] = []  # step counts at which all episodes were cut off

    def begin(self, observation: NumpyObservation, mask: np.ndarray | None = None) -> None:
        """Begin new episodes in all environments; those in progress end here."""
        super().begin(observation, mask)
        if self.count:
            self._breaks.append(self.count)

    def add_search(self, policy: np.ndarray, value: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Complete the step just added with the search's policy and value of its observations, and with its end."""
        rows = np.arange(self.count - self.num_envs, self.count) % self.capacity
        self.columns["policy"][rows] = policy
        self.columns["value"][rows] = value
        self.columns["ended"][rows] = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, RUNNING))

    def serials(self, rows: np.ndarray) -> np.ndarray:
        """Return the serial numbers of rows, which are also the environment steps at which they were collected."""
        newest = self.count - 1
        return newest - (newest - rows) % self.capacity

    def draw(
        self, batch_size: int, beta: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Sample the rows [B] at which the windows of a batch begin; return them and their importance weights."""
        rows, weight = self.sampler.sample(self.oldest, self.count, (1, batch_size), beta, generator)
        return rows[0], None if weight is None else weight[0]

    def windows(self, rows: np.ndarray, length: int) -> Window:
        """Return the windows that begin at rows [B], with rewards scaled by the current statistics."""
        serials = self.serials(rows) + np.arange(length)[:, None] * self.num_envs  # [L, B]
        places = serials % self.capacity
        ended = self.columns["ended"].take(places)
        for count in self._breaks:
            cut = (serials >= count - self.num_envs) & (serials < count) & (ended == RUNNING)
            ended = np.where(cut, TRUNCATED, ended)
        real = serials < self.count
        real[1:] &= np.logical_and.accumulate(ended[:-1] == RUNNING)
        terminated = real & (ended == TERMINATED)
        over = np.zeros_like(real)
        over[1:] = np.logical_or.accumulate(terminated[:-1])
        columns = self.columns
        return Window(
            rows=places,
            real=real,
            over=over,
            action=columns["action"].take(places),
            reward=self.normalizers.scale_reward(columns["reward"].take(places)),
            terminated=terminated,
            policy=columns["policy"].take(places, axis=0),
            value=columns["value"].take(places),
        )

    def observed(self, rows: np.ndarray) -> tuple[NumpyObservation, np.ndarray | None]:
        """Return the observations [..., *shape] before steps [...], scaled as of now, and the legal actions in them."""
        serials = self.columns["observation"].take(rows, axis=0)
        return self._scaled_at(serials), self._masks_of(serials)

    def reached(self, rows: np.ndarray) -> NumpyObservation:
        """Return the true next observations [..., *shape] of steps [...], scaled by the current statistics."""
        return self._scaled_at(self.columns["successor"].take(rows, axis=0))

    def _scaled_at(self, serials: np.ndarray) -> NumpyObservation:
        return self.normalizers.scale_observation(self.observations.get(serials))

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the rows."""
        return {**super().state_dict(), "breaks": self._breaks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; `restore_rows` restores the rows."""
        super().load_state_dict(state)
        self._breaks = list(state["breaks"])


def search_bytes(actions: int) -> int:
    """Return the bytes per step in addition to those of a plain replay."""
    return sum(
        int(np.prod(shape, initial=1)) * np.dtype(kind).itemsize for shape, kind in _search_columns(actions).values()
    )


def _search_columns(actions: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    return {"policy": ((actions,), np.float32), "value": ((), np.float32), "ended": ((), np.uint8)}
