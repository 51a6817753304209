"""Normalisation statistics of several ranks: each continues the joint ones with its own data, until they are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.envs.normalize import Normalizers, RunningMoments, ScalarMoments

Moments = RunningMoments | ScalarMoments


class JointMoments:
    """The statistics that all ranks had in common last.

    What a rank has seen since then is the difference of two sums: of its values and of their squares, both around the
    common mean. So the statistics of all of them need one exchange of sums.
    """

    def __init__(self, normalizers: Normalizers) -> None:
        self._own = normalizers.moments()
        self._common = [type(moments)(*_shape(moments)) for moments in self._own]

    def join(self, add: Callable[[Tensor], Tensor]) -> None:
        """Add what the others have seen to the statistics; `add` replaces a tensor by its sum over all ranks."""
        if not self._own:
            return
        pairs = list(zip(self._own, self._common, strict=True))
        seen = [part for own, common in pairs for part in _seen(own, common)]
        together = add(torch.from_numpy(np.concatenate(seen))).numpy()
        parts = np.split(together, np.cumsum([len(part) for part in seen])[:-1])
        for number, (own, common) in enumerate(pairs):
            joined = _joined(common, *parts[3 * number : 3 * number + 3])
            own.load_state_dict(joined)
            common.load_state_dict(joined)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the common statistics."""
        return [moments.state_dict() for moments in self._common]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Restore the common statistics."""
        for moments, saved in zip(self._common, state, strict=True):
            moments.load_state_dict(saved)


def _shape(moments: Moments) -> tuple[Any, ...]:
    return (moments.mean.shape,) if isinstance(moments, RunningMoments) else ()


def _seen(own: Moments, common: Moments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return number, sum and sum of squares of the values since the common statistics, around the common mean."""
    shift = np.ravel(own.mean) - np.ravel(common.mean)
    squares = own.count * (np.ravel(own.var) + np.square(shift)) - common.count * np.ravel(common.var)
    return np.array([float(own.count - common.count)]), own.count * shift, squares


def _joined(common: Moments, count: np.ndarray, total: np.ndarray, squares: np.ndarray) -> dict[str, Any]:
    """Return the state of statistics with values added, given their number, sum and squares around the mean."""
    rows = common.count + round(float(count[0]))
    if rows == 0:
        return common.state_dict()
    shift = total / rows
    var = (common.count * np.ravel(common.var) + squares) / rows - np.square(shift)
    shape = np.shape(common.mean)
    return {
        "mean": (np.ravel(common.mean) + shift).reshape(shape),
        "var": np.maximum(var, 0.0).reshape(shape),
        "count": rows,
    }
