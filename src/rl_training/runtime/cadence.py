"""Cadence is counted in environment steps, by the marks they cross: never in calls, never by a modulo."""

from __future__ import annotations


def marks_between(before: int, after: int, interval: int, *, beyond: int = 0) -> int:
    """Return how many multiples of `interval` lie in (before, after] and beyond a first step."""
    return max(0, after // interval - max(before, beyond) // interval)
