"""Batches of which a part comes from a replay and the rest from a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.batches import ReplayBatch
from rl_training.data.datasets.offline_replay import OfflineReplay
from rl_training.data.observations import map_observation
from rl_training.data.replay import Replay


class DatasetMix:
    """Samples transitions of a replay and of a dataset, always as many of each (Ball et al. 2023, arXiv 2302.02948)."""

    def __init__(self, replay: Replay, dataset: OfflineReplay, dataset_rows: int) -> None:
        """`dataset_rows` of each batch are drawn from the dataset."""
        self.replay = replay
        self.dataset = dataset
        self.dataset_rows = dataset_rows
        self._joined: list[ReplayBatch] = []

    def sample(
        self, batch_size: int, generator: np.random.Generator, device: torch.device, *, count: int = 1
    ) -> list[ReplayBatch]:
        """Sample `count` batches, the replay's transitions first; they are valid until the next call."""
        fresh, _ = self.replay.sample(batch_size - self.dataset_rows, generator, device, count=count)
        recorded, _ = self.dataset.sample(self.dataset_rows, generator, device, count=count)
        memory = self._joined if len(self._joined) == count else [None] * count
        self._joined = [_join(*parts) for parts in zip(fresh, recorded, memory, strict=True)]
        return self._joined


def _join(one: ReplayBatch, other: ReplayBatch, memory: ReplayBatch | None) -> ReplayBatch:
    """Return two batches as one, in the memory of an earlier one if it is given."""
    one, other = _with_masks(one, other), _with_masks(other, one)
    return ReplayBatch(
        *(
            _join_column(*column)
            for column in zip(one, other, (None,) * len(one) if memory is None else memory, strict=True)
        )
    )


def _join_column(one: Any, other: Any, memory: Any) -> Any:
    if one is None or other is None:  # weights, which a dataset has none of
        return None
    if memory is None:
        return map_observation(lambda *parts: torch.cat(parts), one, other)
    join: Callable[..., Tensor] = lambda first, second, out: torch.cat((first, second), out=out)  # noqa: E731
    return map_observation(join, one, other, memory)


def _with_masks(batch: ReplayBatch, other: ReplayBatch) -> ReplayBatch:
    """Return a batch with action masks if the other has some; without one, all actions are legal."""

    def filled(mask: Tensor | None, like: Tensor | None) -> Tensor | None:
        if mask is not None or like is None:
            return mask
        return torch.ones(len(batch.reward), like.shape[1], dtype=torch.bool, device=like.device)

    return batch._replace(mask=filled(batch.mask, other.mask), next_mask=filled(batch.next_mask, other.next_mask))
