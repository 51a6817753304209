"""Intervals counted in environment steps: an event is due when the step count passes a multiple of its interval."""

from __future__ import annotations

from dataclasses import dataclass


def marks_between(before: int, after: int, interval: int, *, beyond: int = 0) -> int:
    """Return the number of multiples of `interval` in (before, after] that are larger than `beyond`."""
    return max(0, after // interval - max(before, beyond) // interval)


@dataclass(frozen=True)
class Marks:
    """The steps of a run at which something is due: the multiples of an interval, up to the horizon."""

    interval: int | None
    """None if it is never due."""
    horizon: int

    def crossed(self, before: int, after: int) -> bool:
        """Return whether a mark lies in (before, after]."""
        return self.interval is not None and marks_between(before, min(after, self.horizon), self.interval) > 0
