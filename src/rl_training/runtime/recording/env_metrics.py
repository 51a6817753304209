"""Metrics that environments give in `info["metrics"]`: their means until the next row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "env_"
"""Starts the names of these metrics in training rows; those of evaluations start with `eval_env_`."""


@dataclass
class EnvironmentMetrics:
    """Sums and counts of what environments gave, by name."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, given: Mapping[str, float], task: str | None = None) -> None:
        """Add what an environment gave at a step, as `<name>/<task>` where it is a task of a suite."""
        for name, value in given.items():
            self._add(name, value, 1, task)

    def join(self, other: EnvironmentMetrics, task: str | None = None) -> None:
        """Add everything that was added to another one."""
        for name, total in other.sums.items():
            self._add(name, total, other.counts[name], task)

    def _add(self, name: str, value: float, count: int, task: str | None) -> None:
        key = name if task is None else f"{name}/{task}"
        self.sums[key] = self.sums.get(key, 0.0) + value
        self.counts[key] = self.counts.get(key, 0) + count

    def means(self, prefix: str = PREFIX) -> dict[str, float]:
        """Return the mean of everything that was given under each name."""
        return {f"{prefix}{name}": total / self.counts[name] for name, total in self.sums.items()}

    def take(self) -> dict[str, float]:
        """Return the means for a row and start anew."""
        means = self.means()
        self.sums, self.counts = {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return what was given since the last row; nothing where nothing was."""
        return {"sums": dict(self.sums), "counts": dict(self.counts)} if self.sums else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on summing."""
        self.sums, self.counts = dict(state.get("sums", {})), dict(state.get("counts", {}))
