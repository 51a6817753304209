"""Observations are one array or a flat dict of arrays; these helpers handle both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

Observation: TypeAlias = Tensor | dict[str, Tensor]
NumpyObservation: TypeAlias = np.ndarray | dict[str, np.ndarray]


def map_observation(function: Callable[..., Any], *observations: Any) -> Any:
    """Apply `function` to every array of observations of the same structure."""
    first = observations[0]
    if isinstance(first, dict):
        return {key: function(*(observation[key] for observation in observations)) for key in first}
    return function(*observations)


def index_observation(observation: Observation, indices: Tensor) -> Observation:
    """Return the rows given by `indices`; channels that lie last in memory stay there."""
    return map_observation(lambda array: _rows(array, indices), observation)


def _rows(array: Tensor, indices: Tensor) -> Tensor:
    # On images `array[indices]` takes ten times as long.
    if array.dim() == 4 and not array.is_contiguous() and array.is_contiguous(memory_format=torch.channels_last):
        return array.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2)
    return array.index_select(0, indices)


def to_tensor(observation: NumpyObservation, device: torch.device) -> Observation:
    """Move a batch of observations to the device; doubles, which some devices lack, become single precision."""
    if isinstance(observation, dict):
        return {key: array_to_tensor(array, device) for key, array in observation.items()}
    return array_to_tensor(observation, device)


def array_to_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """Move an array to the device; on the CPU only integers share its memory.

    Rounding in matrix products depends on the memory alignment of the operands: torch's own allocations are always
    aligned alike, while views, shared memory and NumPy arrays are not.
    """
    tensor = torch.from_numpy(array)
    if tensor.dtype == torch.float64:
        return tensor.to(device, torch.float32, memory_format=torch.contiguous_format)
    if device.type != "cpu":
        return tensor.to(device)
    return tensor.clone(memory_format=torch.contiguous_format) if tensor.dtype == torch.float32 else tensor


def sample_batch(space: Space[Any], count: int, device: torch.device) -> Observation:
    """Return random observations [count, ...] of a space, the same at every call, as networks get them."""
    private = copy.deepcopy(space)  # leaves the space's own generator unchanged
    private.seed(0)
    samples = [private.sample() for _ in range(count)]
    return to_tensor(map_observation(lambda *parts: np.stack(parts), *samples), device)


def allocate(space: Space[Any], leading: tuple[int, ...]) -> NumpyObservation:
    """Return zeroed storage [*leading, ...] for a space's observations; floats are stored in single precision."""
    if isinstance(space, spaces.Dict):
        return {key: _allocate_array(part, leading) for key, part in space.items()}
    return _allocate_array(space, leading)


def _allocate_array(space: Space[Any], leading: tuple[int, ...]) -> np.ndarray:
    dtype = np.float32 if np.issubdtype(space.dtype, np.floating) else space.dtype
    return np.zeros((*leading, *(space.shape or ())), dtype)
