"""The memory that a replay needs, computed before anything large is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from rl_training.data.replay import OBSERVATION_SLACK, Replay
from rl_training.data.samplers import UniformSampler
from rl_training.envs.normalize import Normalizers

_ENDED = 1  # hindsight: the column that marks the ends of episodes
_FIRST_AND_LAST = 8 + 8  # hindsight: serial numbers of an episode's first and last transition
_TREE_NODE = 8


@dataclass(frozen=True)
class ReplaySize:
    """Bytes that a replay of any capacity needs, given the sizes of its rows."""

    transition: int  # bytes of one row
    observation: int  # bytes of one row, including its action mask
    spare_observations: int  # rows in addition to the slack
    prioritized: bool
    hindsight: bool

    @classmethod
    def of(
        cls,
        observation_space: Space[Any],
        action: np.ndarray,
        *,
        num_envs: int,
        n_step: int,
        stack: int,
        prioritized: bool,
        hindsight: bool,
        mask_width: int = 0,
        more_width: int = 0,
        normalizers: Normalizers | None = None,
    ) -> ReplaySize:
        """Measure a replay of a single transition; `action` is an example of one step, [num_envs, ...].

        `mask_width` is the number of actions if observations come with masks, else 0; `more_width` is the number of
        bytes of a row in addition: of a search result, or of a memory.
        """
        replay = Replay(
            observation_space,
            action,
            UniformSampler(1),
            capacity=1,
            num_envs=num_envs,
            n_step=n_step,
            gamma=1.0,
            stack=stack,
            normalizers=normalizers,
        )
        return cls(
            transition=sum(column.nbytes for column in replay.columns.values()) + _ENDED * hindsight + more_width,
            observation=replay.observations.width + mask_width,
            spare_observations=replay.observations.capacity - 1,
            prioritized=prioritized,
            hindsight=hindsight,
        )

    def columns(self, rows: int) -> int:
        """Return the bytes of `rows` transitions and of the observations kept for them, in memory or in files."""
        observations = rows + rows // OBSERVATION_SLACK + self.spare_observations
        return rows * self.transition + observations * self.observation

    def index(self, capacity: int) -> int:
        """Return the bytes of priorities and of the ends of episodes, which are always in memory and used in full."""
        leaves = 1 << max(0, capacity - 1).bit_length()
        return 2 * leaves * _TREE_NODE * self.prioritized + capacity * _FIRST_AND_LAST * self.hindsight
