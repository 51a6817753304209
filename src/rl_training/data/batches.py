"""Batches of transitions as tensors, in memory that one draw after the other fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.data.observations import NumpyObservation, Observation, array_to_tensor

Form = tuple[tuple[int, ...], Any]
"""Shape and dtype of one transition's part of a column."""


class ReplayBatch(NamedTuple):
    """Transitions to learn from, on the device; B is the batch size."""

    observation: Observation  # [B, ...]
    action: Tensor  # [B, ...]
    reward: Tensor  # [B] n-step
    discount: Tensor  # [B] factor of the next state's value
    next_observation: Observation  # [B, ...]
    weight: Tensor | None  # [B] importance weights
    mask: Tensor | None = None  # [B, actions] legal actions in the observation; None if none is ever illegal
    next_mask: Tensor | None = None  # [B, actions] legal actions in the next observation
    next_action: Tensor | None = None  # [B, size] a dataset's next action, NaN at the end of an episode


class BatchMemory:
    """Host memory for draws of one size, each column [count, batch_size, ...].

    It is torch's memory, so that nothing is copied again for the CPU (see `array_to_tensor`), and the batches over it
    are made once: a batch is valid until the next draw.
    """

    def __init__(self, leading: tuple[int, int], columns: Mapping[str, Form | Mapping[str, Form]]) -> None:
        """`columns` gives the form of each field of a batch; a Dict observation has one for each key."""
        self.leading = leading
        self.arrays: dict[str, Any] = {}  # what draws write to
        self._tensors: dict[str, Any] = {}
        self._double = False  # whether a column has to be copied, since it becomes single
        for name, form in columns.items():
            if isinstance(form, Mapping):
                parts = {key: self._allocate(part) for key, part in form.items()}
                self.arrays[name] = {key: array for key, (array, _) in parts.items()}
                self._tensors[name] = {key: tensor for key, (_, tensor) in parts.items()}
            else:
                self.arrays[name], self._tensors[name] = self._allocate(form)
        self._batches = [ReplayBatch(*parts) for parts in zip(*map(self._parts, ReplayBatch._fields), strict=True)]

    def _allocate(self, form: Form) -> tuple[np.ndarray, Tensor]:
        shape, dtype = form
        self._double |= dtype == np.float64
        tensor = torch.empty((*self.leading, *shape), dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
        return tensor.numpy(), tensor

    def _parts(self, name: str) -> Sequence[Any]:
        tensors = self._tensors.get(name)
        if isinstance(tensors, dict):
            return _split(tensors)
        return (None,) * self.leading[0] if tensors is None else tensors.unbind()

    def batches(self, drawn: Mapping[str, NumpyObservation | None], device: torch.device) -> list[ReplayBatch]:
        """Return what was drawn, `count` batches; columns that lie elsewhere are copied, those not drawn are None."""
        in_place = all(drawn.get(name) is self.arrays.get(name) for name in ReplayBatch._fields)
        if in_place and device.type == "cpu" and not self._double:
            return self._batches
        columns = (_batches(drawn.get(name), self.leading[0], device) for name in ReplayBatch._fields)
        return [ReplayBatch(*parts) for parts in zip(*columns, strict=True)]


def _batches(column: NumpyObservation | None, count: int, device: torch.device) -> Sequence[Any]:
    """Move arrays [count, batch_size, ...] to the device at once and return one part per batch."""
    if column is None:
        return (None,) * count
    if isinstance(column, dict):
        return _split({key: array_to_tensor(array, device) for key, array in column.items()})
    return array_to_tensor(column, device).unbind()


def _split(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    parts = [tensor.unbind() for tensor in tensors.values()]
    return [dict(zip(tensors, values, strict=True)) for values in zip(*parts, strict=True)]
