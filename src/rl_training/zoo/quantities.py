"""Labels, units and short numbers on the axes of charts, the same on pages and in images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rl_training.zoo.page.curves import Axis, Curve


class Quantity(NamedTuple):
    """The quantity on an axis."""

    label: str
    unit: float = 1.0
    """Size of the label's unit in units of the data."""
    limits: tuple[float, float] | None = None
    """Ends of the axis; by default those of the data."""


def quantity_of(axis: Axis, curves: Iterable[Curve]) -> Quantity:
    """Return the x axis of some curves, of which at least one is not empty."""
    if axis == "steps":
        return Quantity("environment steps")
    longest = max(curve.end for curve in curves if not curve.empty)
    for name, unit, until in (("seconds", 1.0, 180.0), ("minutes", 60.0, 10_800.0)):
        if longest <= until:
            return Quantity(f"training time ({name})", unit)
    return Quantity("training time (hours)", 3600.0)


def range_text(axis: Axis, end: float) -> str:
    """Return a description of the part of an axis that is shown."""
    if axis == "steps":
        return f"first {end:,.0f} steps"
    return f"first {f'{end:.3g} seconds' if end < 180 else f'{end / 60:.3g} minutes'}"


def tick_text(value: float) -> str:
    """Return a value in few characters: 250k, 1.5M, 0.25."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1e12:
            return f"{value / size:.6g}{letter}"
    return f"{value:.6g}"


def seed_text(seeds: int) -> str:
    """Return the number of seeds of a curve, as text for a legend."""
    return "no completed run" if not seeds else "1 seed" if seeds == 1 else f"{seeds} seeds"
