"""Means of the metrics that environments give in `info["metrics"]` between two rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "env_"
"""Prefix of these metrics in training rows; in evaluations it is `eval_env_`."""


@dataclass
class EnvironmentMetrics:
    """Sums and counts of environment metrics by name."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, given: Mapping[str, float], task: str | None = None) -> None:
        """Add the metrics of one environment step, as `<name>/<task>` for a task of a suite."""
        for name, value in given.items():
            self._add(name, value, 1, task)

    def join(self, other: EnvironmentMetrics, task: str | None = None) -> None:
        """Add the sums and counts of another object."""
        for name, total in other.sums.items():
            self._add(name, total, other.counts[name], task)

    def _add(self, name: str, value: float, count: int, task: str | None) -> None:
        key = name if task is None else f"{name}/{task}"
        self.sums[key] = self.sums.get(key, 0.0) + value
        self.counts[key] = self.counts.get(key, 0) + count

    def means(self, prefix: str = PREFIX) -> dict[str, float]:
        """Return the mean of each metric."""
        return {f"{prefix}{name}": total / self.counts[name] for name, total in self.sums.items()}

    def take(self) -> dict[str, float]:
        """Return the means for a row and reset."""
        means = self.means()
        self.sums, self.counts = {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return the sums and counts since the last row; empty if there are none."""
        return {"sums": dict(self.sums), "counts": dict(self.counts)} if self.sums else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums and counts."""
        self.sums, self.counts = dict(state.get("sums", {})), dict(state.get("counts", {}))
