"""Colours and marks that distinguish the curves of a chart, on light and dark backgrounds and without colour vision.

Each colour has a contrast of at least 3 to its background, and any two are distinguishable for every kind of colour
blindness; a test checks both. Each comes with a mark of its own, and from the seventh curve on with a dashed line.
"""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """The appearance of one curve."""

    light: str
    """Colour on a light background."""
    dark: str
    """Colour on a dark background."""
    mark: str
    """Outline of its mark around the origin, as an SVG path."""
    symbol: str
    """Name of the same mark in matplotlib."""


LIGHT_PAPER = "#ffffff"
DARK_PAPER = "#15181d"
STYLES = (
    Style("#22568a", "#4f90f8", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", "o"),
    Style("#db700c", "#fb8c1a", "M-3.6,-3.6h7.2v7.2h-7.2Z", "s"),
    Style("#06a077", "#a5ecd5", "M0,-4.8L4.6,3.6H-4.6Z", "^"),
    Style("#c83add", "#e6a4f7", "M0,-5.2L5.2,0L0,5.2L-5.2,0Z", "D"),
    Style("#272a2e", "#8b909c", "M-4.6,-3.6H4.6L0,4.8Z", "v"),
    Style("#960014", "#fb3550", "M-1.6,-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2Z", "P"),
)
DASHES = ((), (7.0, 3.0), (2.0, 3.0))
"""Line and gap lengths of the first six curves, the next six, and the rest."""


def style_of(position: int) -> Style:
    """Return the style of a curve by its position; colours repeat."""
    return STYLES[position % len(STYLES)]


def dash_of(position: int) -> tuple[float, ...]:
    """Return the dashes of a curve by its position, empty for a solid line."""
    return DASHES[min(position // len(STYLES), len(DASHES) - 1)]
