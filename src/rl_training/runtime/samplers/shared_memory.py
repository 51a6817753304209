"""Rollouts and weights in memory shared by the run and its samplers.

The memory is anonymous: it is released with the last process that maps it, so nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import HostAction
from rl_training.data.observations import NumpyObservation, allocate, map_observation
from rl_training.envs.step import empty_obs
from rl_training.envs.workers.shared_rows import RawMemory, SharedArray
from rl_training.runtime.setup.restored_state import check_form


@dataclass(frozen=True)
class RolloutForm:
    """The sizes and types of a rollout's columns."""

    num_steps: int
    num_envs: int
    observation_space: Space[Any]
    mask_width: int
    """Choices of an action mask; 0: there are no masks."""
    example: HostAction
    """What acting returns for one step of all environments."""
    raw: bool = False
    """Whether observations keep their own precision, for a replay that scales them later."""
    more: Mapping[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)
    """Shape and type of what further columns contain of one step of an environment."""


class SharedRollout:
    """The columns of one rollout of all environments; each sampler writes those of its own."""

    def __init__(self, memory: RawMemory, form: RolloutForm) -> None:
        steps = (form.num_steps, form.num_envs)

        def shared(shape: tuple[int, ...], dtype: Any) -> SharedArray:
            return SharedArray(memory, (*steps, *shape), dtype)

        def of_one_row(row: np.ndarray) -> SharedArray:
            return shared(row.shape[1:], row.dtype)

        example = form.example
        row = empty_obs(form.observation_space, 1) if form.raw else allocate(form.observation_space, (1,))
        self._columns: dict[str, Any] = {
            "observation": map_observation(of_one_row, row),
            "action": of_one_row(example.action),
            "reward": shared((), np.float32),
            "terminated": shared((), np.bool_),
            "truncated": shared((), np.bool_),
            "final_value": shared((), np.float32),
        }
        if form.mask_width:
            self._columns["mask"] = shared((form.mask_width,), np.bool_)
        if example.log_prob is not None and example.value is not None:
            self._columns |= {"log_prob": shared((), np.float32), "value": shared((), np.float32)}
        if example.memory is not None:
            self._columns["memory"] = of_one_row(example.memory)
        self._columns |= {name: shared(*kind) for name, kind in form.more.items()}

    def columns(self, rows: slice) -> dict[str, Any]:
        """Return views of the columns of some environments, [num_steps, rows, ...]."""
        return {name: _views(column, rows) for name, column in self._columns.items()}

    def arrays(self, rows: slice, length: int | None = None) -> list[np.ndarray]:
        """Return the same views one after the other, of the first `length` steps if it is given."""
        return [array[:length] for column in self.columns(rows).values() for array in _arrays(column)]

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return sum(array.nbytes for array in self.arrays(slice(None)))


def _views(column: Any, rows: slice) -> NumpyObservation:
    return map_observation(lambda array: array.view()[:, rows], column)


def _arrays(column: NumpyObservation) -> list[np.ndarray]:
    return list(column.values()) if isinstance(column, dict) else [column]


class SharedWeights:
    """The weights that samplers act with: a copy of the tensors of a nested state."""

    def __init__(self, memory: RawMemory, weights: Mapping[str, Any]) -> None:
        self._arrays = {
            path: SharedArray(memory, tuple(tensor.shape), _numpy_type(tensor)) for path, tensor in leaves(weights)
        }
        self.nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in leaves(weights))

    def write(self, weights: Mapping[str, Any]) -> None:
        """Copy weights to the shared memory."""
        for path, tensor in leaves(weights):
            torch.from_numpy(self._arrays[path].view()).copy_(tensor)

    def arrays(self) -> list[np.ndarray]:
        """Return views of the shared memory, one for each tensor."""
        return [array.view() for array in self._arrays.values()]

    def read(self) -> dict[str, Any]:
        """Return the weights as tensors that share the memory."""
        tree: dict[str, Any] = {}
        for path, array in self._arrays.items():
            branch = tree
            for key in path[:-1]:
                branch = branch.setdefault(key, {})
            branch[path[-1]] = torch.from_numpy(array.view())
        return tree


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield every tensor of a nested state with its path; plain values are left out."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))
        elif isinstance(value, Tensor):
            yield (*path, key), value.detach()


def check_weights(expected: Mapping[str, Any], found: Mapping[str, Any], place: str) -> None:
    """Raise an error if restored weights are not those of the same networks."""
    check_form(expected, found, place)
    if {path for path, _ in leaves(expected)} != {path for path, _ in leaves(found)}:
        raise ValueError(f"{place} does not hold the weights of the networks that act")


def copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested state with copies of its tensors."""
    return {
        key: copied(value)
        if isinstance(value, Mapping)
        else value.detach().cpu().clone()
        if isinstance(value, Tensor)
        else value
        for key, value in tree.items()
    }


class _Packed(NamedTuple):
    array: np.ndarray


def packed(tree: Any) -> Any:
    """Return a nested state that can be sent through a pipe.

    Torch sends a tensor as a handle that its process has to serve, which one that was killed cannot.
    """
    if isinstance(tree, Mapping):
        return {key: packed(value) for key, value in tree.items()}
    return _Packed(tree.detach().cpu().numpy().copy()) if isinstance(tree, Tensor) else tree


def unpacked(tree: Any) -> Any:
    """Return the state that was `packed`."""
    if isinstance(tree, Mapping):
        return {key: unpacked(value) for key, value in tree.items()}
    return torch.from_numpy(tree.array) if isinstance(tree, _Packed) else tree


def stream_state(stream: torch.Generator | np.random.Generator, state: Any = None) -> Any:
    """Return the state of a random stream, after setting it if one is given."""
    if isinstance(stream, torch.Generator):
        if state is not None:
            stream.set_state(state)
        return stream.get_state()
    if state is not None:
        stream.bit_generator.state = state
    return stream.bit_generator.state


def _numpy_type(tensor: Tensor) -> np.dtype[Any]:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype
