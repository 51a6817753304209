"""Masks of legal actions for the observations of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rl_training.data.observation_store import allocate_column

_ILLEGAL = "illegal"  # name of the saved column


class MaskStore:
    """A ring buffer of action masks with the same serial numbers as the observations.

    It allocates nothing before the first mask. It stores which actions are illegal, so that zeroed memory means all
    legal.
    """

    def __init__(self, capacity: int, *, directory: Path | None = None) -> None:
        self.capacity = capacity
        self._directory = directory
        self._illegal: np.ndarray | None = None  # [capacity, actions]

    @property
    def width(self) -> int:
        """Bytes of one mask."""
        return 0 if self._illegal is None else self._illegal.shape[1]

    def put(self, serials: np.ndarray, masks: np.ndarray | None) -> None:
        """Store the masks [k, actions] of these observations [k]; None means that all actions are legal.

        A terminal observation may have no legal action. Its value is never used but must be finite: all count as legal.
        """
        if masks is None:
            if self._illegal is not None:
                self._illegal[serials % self.capacity] = False
            return
        self._column(masks.shape[1])[serials % self.capacity] = ~masks & masks.any(axis=1, keepdims=True)

    def get(self, serials: np.ndarray, into: np.ndarray | None = None) -> np.ndarray | None:
        """Return the masks [..., actions] of observations [...], or None if there never was a mask.

        They are written to `into` if it is given.
        """
        if self._illegal is None:
            return None
        illegal = self._illegal.take(serials % self.capacity, axis=0, out=into, mode="clip")
        return np.logical_not(illegal, out=illegal)

    def rows(self, first: int, last: int) -> dict[str, np.ndarray]:
        """Return the column of the serial numbers [first, last), for saving."""
        return {} if self._illegal is None else {_ILLEGAL: self._illegal[np.arange(first, last) % self.capacity]}

    def restore_rows(self, first: int, columns: Mapping[str, np.ndarray]) -> None:
        """Restore a saved column at the serial numbers from `first` on; rows from before the first mask have none."""
        if _ILLEGAL in columns:
            illegal = columns[_ILLEGAL]
            self._column(illegal.shape[1])[np.arange(first, first + len(illegal)) % self.capacity] = illegal

    def _column(self, actions: int) -> np.ndarray:
        if self._illegal is None:
            self._illegal = allocate_column((self.capacity, actions), np.bool_, self._directory, _ILLEGAL)
        return self._illegal
