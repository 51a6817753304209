"""Metrics between two log rows: means over updates, kept as tensors until they are logged."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import NonFiniteError, RunFailure

EPISODE_WINDOW = 100
WALL_CLOCK_FIELDS = (
    "steps_per_second",
    "time_collect",
    "time_update",
    "time_eval",
    "time_video",
    "wait_collect",
    "wait_update",
)
RESERVED_FIELDS = ("event", "global_step", "update_count", *WALL_CLOCK_FIELDS)
"""Keys of a row that are not metrics."""


class RunningMeans:
    """Sums of named scalars; reading them is the only host synchronisation.

    What lies on the host already is summed there, with the rounding of tensors at a fraction of their cost.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | np.float32] = {}
        self._counts: dict[str, int] = {}

    @property
    def names(self) -> Iterable[str]:
        """Names of the scalars reported since the last `clear`."""
        return self._sums.keys()

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add one report."""
        for name, value in metrics.items():
            total = self._sums.get(name)
            if isinstance(total, np.float32):
                self._sums[name] = total + np.float32(value.item())
                self._counts[name] += 1
            elif total is None:
                self._sums[name] = _on_host(self._checked(name, value).detach())
                self._counts[name] = 1
            else:
                self._sums[name] = _on_host(total + value.detach())
                self._counts[name] += 1

    def _checked(self, name: str, value: Any) -> Tensor:
        """Raise an error for values that are not scalar tensors, as a user's algorithm may return."""
        if not isinstance(value, Tensor) or value.numel() != 1 or value.dim():
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise RunFailure(
                f"`update` returned the metric `{name}` as {what}; return a tensor with one number, shape ()"
            )
        if name in RESERVED_FIELDS:
            raise RunFailure(f"`update` returned a metric called `{name}`, which every row has already; rename it")
        return value

    def means(self) -> dict[str, float]:
        """Return the mean of every scalar since the last `clear`."""
        if not self._sums:
            return {}
        sums = self._stacked().tolist()
        return {name: total / self._counts[name] for name, total in zip(self._sums, sums, strict=True)}

    def average(self, average: Callable[[Tensor], Tensor]) -> None:
        """Replace the sums by their means over several learners, which have all reported the same names."""
        if self._sums:
            means = average(self._stacked())
            self._sums = {name: _on_host(mean) for name, mean in zip(self._sums, means.unbind(), strict=True)}

    def check_finite(self, step: int) -> None:
        """Raise an error that names the scalars that are NaN or infinite, and the step."""
        # Numbers on the host are checked one by one; only what lies elsewhere is worth a tensor.
        if all(isinstance(value, np.float32) and math.isfinite(value) for value in self._sums.values()):
            return
        finite = self._stacked().isfinite()
        if not bool(finite.all()):
            names = [name for name, good in zip(self._sums, finite.tolist(), strict=True) if not good]
            raise NonFiniteError(
                f"{', '.join(names)} became NaN or infinite at step {step}; the last good checkpoint is kept. "
                "Lower algo_kwargs.learning_rate, set algo_kwargs.max_grad_norm, or normalise observations and "
                "rewards (env_kwargs.normalize_observation, normalize_reward)"
            )

    def _stacked(self) -> Tensor:
        """Return the sums as one tensor; those from a checkpoint are on the CPU until they are reported again."""
        sums = self._tensors().values()
        device = next((value.device for value in sums if value.device.type != "cpu"), torch.device("cpu"))
        return torch.stack([value.to(device, torch.float32) for value in sums])

    def _tensors(self) -> dict[str, Tensor]:
        return {name: torch.as_tensor(value) for name, value in self._sums.items()}

    def clear(self) -> None:
        """Reset after a row was logged."""
        self._sums.clear()
        self._counts.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the sums since the last row."""
        return {"sums": self._tensors(), "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])


def _on_host(value: Tensor) -> Tensor | np.float32:
    """Return a tensor, or the number that it is where nobody has to wait for it."""
    if value.device.type == "cpu" and value.dtype == torch.float32:
        return np.float32(value.item())
    return value


class Stopwatch:
    """Adds the time of a block to a sum; a class, because a generator would cost as much as a small product."""

    def __init__(self, sums: dict[str, float], name: str) -> None:
        self._sums, self._name = sums, name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._sums[self._name] += time.perf_counter() - self._started


class EpisodeStatistics:
    """Returns and lengths of the latest training episodes."""

    def __init__(self) -> None:
        self.count = 0
        self._latest: deque[tuple[float, int]] = deque(maxlen=EPISODE_WINDOW)

    def add(self, episodes: Iterable[tuple[float, int]]) -> None:
        """Add finished episodes as (return, length)."""
        for episode in episodes:
            self._latest.append(episode)
            self.count += 1

    def metrics(self) -> dict[str, float]:
        """Return the means over the window, or nothing before the first episode ended."""
        if not self._latest:
            return {}
        returns, lengths = zip(*self._latest, strict=True)
        return {
            "train_return_mean": sum(returns) / len(returns),
            "train_length_mean": sum(lengths) / len(lengths),
            "train_episodes": self.count,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the window."""
        return {"count": self.count, "latest": [list(episode) for episode in self._latest]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the window."""
        self.count = state["count"]
        self._latest = deque(((value, length) for value, length in state["latest"]), maxlen=EPISODE_WINDOW)
