"""Metrics defined by an environment: the mapping `info["metrics"]` of a step, from names to numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.envs.checks import BrokenContract

METRICS = "metrics"
"""The key of `info` that holds the metrics."""

SUCCESS = "success"
"""The metric of whether an episode reached its goal."""
_SUCCESS_KEYS = ("is_success", "success")  # Stable-Baselines3's name, and that of Gymnasium-Robotics' mazes

LONGEST_NAME = 100
MOST_NAMES = 100
_LARGEST = float(np.finfo(np.float32).max)  # upper bound for dashboards, and far below the overflow of sums
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


class InfoMetrics:
    """Checks the metrics of one environment and limits how many names it uses."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def read(self, given: Any) -> dict[str, float]:
        """Return the metrics of a step as floats; booleans become 0 and 1."""
        if not isinstance(given, Mapping):
            raise BrokenContract(
                f"gave {given!r:.60} as info[{METRICS!r}]", "let it be a mapping from names to numbers, or leave it out"
            )
        for name in given:
            if name not in self._names:
                self._admit(name)
        return {name: _number(name, value) for name, value in given.items()}

    def _admit(self, name: Any) -> None:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise BrokenContract(
                f"gave info[{METRICS!r}] with the name {name!r:.120}",
                f"name a metric by 1 to {LONGEST_NAME} printable characters",
            )
        if len(self._names) == MOST_NAMES:
            raise BrokenContract(
                f"gave info[{METRICS!r}] with {name!r}, its metric number {MOST_NAMES + 1}",
                f"use at most {MOST_NAMES} names, and keep what varies out of them",
            )
        self._names.add(name)


def success_of(info: Mapping[str, Any]) -> float | None:
    """Return 1 or 0 if the last step of an episode says whether the goal was reached, else None."""
    for key in _SUCCESS_KEYS:
        if key in info:
            value = np.asarray(info[key])
            return float(bool(value)) if value.ndim == 0 and value.dtype.kind in "biuf" else None
    return None


def _number(name: str, value: Any) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    try:
        number = float(value) if isinstance(value, _NUMBERS) else math.nan
    except OverflowError:
        number = math.inf
    if not -_LARGEST < number < _LARGEST:  # also refuses NaN
        raise BrokenContract(
            f"gave {value!r:.60} as info[{METRICS!r}][{name!r}]",
            "let every metric be a finite number in the range of float32",
        )
    return number
