"""Memory that stands for shared memory where there is none: each side has its own, and what is written is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class MirroredMemory:
    """Allocates arrays that arrive in another process with their size alone, as zeros."""

    def RawArray(self, typecode_or_type: Any, size_or_initializer: Any) -> Any:
        """Return a buffer of as many bytes, which are zero."""
        return _mirror(int(size_or_initializer))


class _Mirror(np.ndarray):
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _mirror, (self.size,)


def _mirror(size: int) -> _Mirror:
    # Zeros take no memory until they are written to, as a sampler never does with the rows of others.
    return np.zeros(size, np.uint8).view(_Mirror)


def snapshot(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return contiguous arrays to send."""
    return [np.ascontiguousarray(array) for array in arrays]


def write(arrays: Sequence[np.ndarray], sent: Sequence[np.ndarray]) -> None:
    """Copy what the other side has sent."""
    for ours, theirs in zip(arrays, sent, strict=True):
        np.copyto(ours, theirs)
