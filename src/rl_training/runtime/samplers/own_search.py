"""Searching for some environments of a run exactly as the run would search for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.muzero import MuZero
from rl_training.data.observations import Observation, map_observation, sample_batch
from rl_training.errors import ConfigError
from rl_training.runtime.samplers.own_rows import AmongAll
from rl_training.search.search import SearchResult

_MOVED = 0.3  # deviation of what is added to the weights for the trial: heads of zeros hide what is before them


class OwnDraws:
    """Draws random numbers for all rows of a run and returns those of the own ones."""

    def __init__(self, generator: np.random.Generator, num_envs: int, rows: slice) -> None:
        self._generator, self._num_envs, self._rows = generator, num_envs, rows

    def standard_gamma(self, shape: float, size: tuple[int, ...]) -> np.ndarray:
        """Return gamma variates of the own rows."""
        return self._generator.standard_gamma(shape, (self._num_envs, *size[1:]))[self._rows]

    def gumbel(self, *, size: tuple[int, ...]) -> np.ndarray:
        """Return Gumbel variates of the own rows."""
        return self._generator.gumbel(size=(self._num_envs, *size[1:]))[self._rows]

    def random(self, size: tuple[int, ...]) -> np.ndarray:
        """Return uniform variates of the own rows."""
        return self._generator.random((self._num_envs, *size[1:]))[self._rows]


class OwnSearch(AmongAll):
    """Stands for a planning algorithm in a sampler.

    Where a row's results do not depend on how many rows there are, as in compiled searches, only the own rows are
    searched for; else those of more environments, of which only the own ones count.
    """

    algorithm: MuZero

    def __init__(self, algorithm: MuZero, num_envs: int, rows: slice) -> None:
        super().__init__(algorithm, num_envs, rows)
        self.searched = rows
        """The environments that are searched for, the own ones among them."""

    @property
    def for_all(self) -> bool:
        """Whether environments of other samplers are all searched for as well."""
        return self.searched != self.rows and self.searched == slice(0, self._num_envs)

    def plan(
        self,
        observation: Observation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: np.random.Generator,
    ) -> SearchResult:
        """Return what a search for all environments finds for the own ones."""
        draws: Any = OwnDraws(generator, self._num_envs, self.searched)
        if self.searched == self.rows:
            return self.algorithm.plan(observation, mask, controls, draws)
        whole = self._among_all("observation", observation)
        seen = map_observation(
            lambda tensor: tensor[self.searched].clone(), whole
        )  # aligned like all of torch's memory
        legal = None if mask is None else self._among_all("mask", mask, fill=True)[self.searched]
        found = self.algorithm.plan(seen, legal, controls, draws)
        first = self.rows.start - self.searched.start
        return _rows_of(found, slice(first, first + self.rows.stop - self.rows.start))

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the own actions in the format of the environment's action space."""
        return self.algorithm.env_action(action)

    def try_rows(self, space: Space[Any], controls: Mapping[str, float]) -> None:
        """Find out which rows have to be searched for; raise an error if the own ones depend on what others contain.

        The weights are changed; every order brings its own.
        """
        algorithm, generator = self.algorithm, torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in algorithm.network.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=_MOVED)
        observation = sample_batch(space, self._num_envs, algorithm.device)
        own = map_observation(lambda tensor: tensor[self.rows].clone(), observation)
        expected = _rows_of(algorithm.plan(observation, None, controls, np.random.default_rng(0)), self.rows)
        start = max(0, min(self.rows.start, self._num_envs - 2))
        pair = slice(start, max(self.rows.stop, start + 2))  # torch computes a single row in another order
        for searched in (self.rows, pair, slice(0, self._num_envs)):
            self.searched = searched
            found = self.plan(own, None, controls, np.random.default_rng(0))
            if all(map(np.array_equal, found, expected)):
                return
        raise ConfigError(
            f"samplers: the network of {type(algorithm).__qualname__} mixes the rows of a batch, so that the search of "
            "an environment depends on the others; leave samplers out, or use a network that does not"
        )


def _rows_of(found: SearchResult, rows: slice) -> SearchResult:
    return SearchResult(*(part[rows] for part in found))
