"""Cadence is counted in environment steps, by the marks they cross: never in calls, never by a modulo."""

from __future__ import annotations

from dataclasses import dataclass


def marks_between(before: int, after: int, interval: int, *, beyond: int = 0) -> int:
    """Return how many multiples of `interval` lie in (before, after] and beyond a first step."""
    return max(0, after // interval - max(before, beyond) // interval)


@dataclass(frozen=True)
class Marks:
    """The steps of a run at which something is due: the multiples of an interval, up to the horizon."""

    interval: int | None
    """None where it is never due."""
    horizon: int

    def crossed(self, before: int, after: int) -> bool:
        """Return whether steps from `before` to `after` cross a mark."""
        return self.interval is not None and marks_between(before, min(after, self.horizon), self.interval) > 0
