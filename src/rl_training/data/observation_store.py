"""Observations of a replay, each stored once; transitions refer to them by serial number."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.observations import NumpyObservation
from rl_training.experiment.storage.files import storage_errors

_WHOLE = "observation"  # column name of an observation that is not a Dict


class ObservationStore:
    """A ring buffer of observations. Only the newest frame of a stack is stored; a stack is a row of serial numbers."""

    def __init__(
        self,
        space: Space[Any],
        capacity: int,
        *,
        stack: int = 1,
        directory: Path | None = None,
        keep_double: bool = False,
    ) -> None:
        """Allocate memory, or files in `directory`, for `capacity` observations; `stack` frames form one observation.

        Floats are stored in single precision, or unchanged with `keep_double`: if a mean is subtracted later, the
        digits that single precision drops can be all that is left.
        """
        self.capacity = capacity
        self.stack = stack
        self.count = 0  # observations ever stored; the serial number of the next one
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.items()) if isinstance(space, spaces.Dict) else {_WHOLE: space}
        self._shapes = {key: tuple(part.shape or ()) for key, part in parts.items()}
        dtypes = {key: part.dtype if keep_double else _single(part.dtype) for key, part in parts.items()}
        self._columns = {
            key: allocate_column((capacity, *_frame_shape(part, stack)), dtypes[key], directory, f"obs_{key}")
            for key, part in parts.items()
        }

    @property
    def oldest(self) -> int:
        """Serial number of the oldest observation still stored."""
        return max(0, self.count - self.capacity)

    @property
    def width(self) -> int:
        """Bytes of one observation."""
        return sum(column.nbytes for column in self._columns.values()) // self.capacity

    def put(self, observations: NumpyObservation) -> np.ndarray:
        """Store a batch [k, ...] (the newest frames of stacks) and return its serial numbers [k]."""
        columns = observations if isinstance(observations, dict) else {_WHOLE: observations}
        added = len(next(iter(columns.values())))
        places = ring_places(self.count, added, self.capacity)
        for key, column in self._columns.items():
            batch = columns[key]
            column[places] = batch if self.stack == 1 else batch[:, -(batch.shape[1] // self.stack) :]
        self.count += added
        return np.arange(self.count - added, self.count)

    @property
    def form(self) -> Any:
        """Shape and dtype of an observation, or those of each part of a Dict."""
        forms = {key: (self._shapes[key], column.dtype) for key, column in self._columns.items()}
        return forms if self._is_dict else forms[_WHOLE]

    def get(self, serials: np.ndarray, into: NumpyObservation | None = None) -> NumpyObservation:
        """Return observations [..., *shape] for serial numbers [...], or [..., stack] if frames are stacked.

        They are written to `into`, memory of their form, if it is given.
        """
        places = serials if self.count <= self.capacity else serials % self.capacity
        leading = places.shape if self.stack == 1 else places.shape[:-1]
        if into is None:
            columns = self._columns.items()
            parts = {key: np.empty((*leading, *self._shapes[key]), column.dtype) for key, column in columns}
            into = parts if self._is_dict else parts[_WHOLE]
        for key, column in self._columns.items():
            found = into[key] if isinstance(into, dict) else into
            if self.stack > 1:
                found = found.reshape(*places.shape, *column.shape[1:])
            # With another mode NumPy would write to a copy first; no place lies outside.
            column.take(places, axis=0, out=found, mode="clip")
        return into

    def rows(self, first: int, last: int) -> dict[str, np.ndarray]:
        """Return the columns of the serial numbers [first, last), for saving."""
        places = np.arange(first, last) % self.capacity
        return {key: column[places] for key, column in self._columns.items()}

    def restore_rows(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Restore saved columns at the serial numbers from `first` on."""
        for key, column in self._columns.items():
            places = np.arange(first, first + len(columns[key])) % self.capacity
            column[places] = columns[key]


def ring_places(first: int, count: int, capacity: int) -> slice | np.ndarray:
    """Return where a ring buffer stores the serial numbers [first, first + count), as a slice (fast) if possible."""
    start = first % capacity
    if start + count <= capacity:
        return slice(start, start + count)
    return np.arange(first, first + count) % capacity


def allocate_column(shape: tuple[int, ...], dtype: Any, directory: Path | None, name: str) -> np.ndarray:
    """Return zeroed memory, or a memory-mapped file in a directory, deleted when the process ends."""
    if directory is None:
        return np.zeros(shape, dtype)
    with storage_errors(f"the replay's column {name}", directory):
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:  # unnamed, so that a killed process leaves nothing behind
            return np.memmap(file, dtype=dtype, mode="w+", shape=shape)


def _single(dtype: Any) -> Any:
    return np.float32 if np.issubdtype(dtype, np.floating) else dtype


def _frame_shape(space: Space[Any], stack: int) -> tuple[int, ...]:
    shape = tuple(space.shape or ())
    return shape if stack == 1 else (shape[0] // stack, *shape[1:])
