"""Curves drawn with characters: Braille dots, or ASCII where a terminal has no others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

Points = Sequence[tuple[int, float]]
"""Steps and values, in order."""

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of one character: 4 rows, 2 columns
_BLANK = 0x2800
_LEVELS = "_.-=+*#@"


def plot(points: Points, width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    """Return `height` lines of `width` characters with the curve from its smallest to its largest value."""
    if ascii_only:
        return _bars(points, width, height)
    heights = _heights(points, 2 * width, 4 * height)
    cells = [[_BLANK] * width for _ in range(height)]
    before: int | None = None
    for column, level in enumerate(heights):
        if level is None:
            continue
        for dot in _between(before, level):
            row = 4 * height - 1 - dot
            cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        before = level
    return ["".join(map(chr, line)) for line in cells]


def _between(before: int | None, level: int) -> range:
    """Return the dots that join a column to the one before it."""
    if before is None or before == level:
        return range(level, level + 1)
    return range(before + 1, level + 1) if before < level else range(level, before)


def _bars(points: Points, width: int, height: int) -> list[str]:
    """Return the curve as one line of eight levels, below empty lines."""
    levels = _heights(points, width, len(_LEVELS))
    line = "".join(" " if level is None else _LEVELS[level] for level in levels)
    return [" " * width] * (height - 1) + [line]


def _heights(points: Points, columns: int, levels: int) -> list[int | None]:
    """Return the level of the curve in each column: means of its values, interpolated where it has none."""
    if not points:
        return [None] * columns
    first, last = points[0][0], points[-1][0]
    sums, counts = [0.0] * columns, [0] * columns
    for step, value in points:
        column = (step - first) * (columns - 1) // max(1, last - first)
        sums[column] += value
        counts[column] += 1
    known = [(column, sums[column] / counts[column]) for column in range(columns) if counts[column]]
    values: list[float | None] = [None] * columns
    for (left, low), (right, high) in itertools.pairwise(known):
        for column in range(left, right + 1):
            values[column] = low + (high - low) * (column - left) / (right - left)
    values[known[-1][0]] = known[-1][1]
    smallest, largest = min(value for _, value in known), max(value for _, value in known)
    scale = (levels - 1) / (largest - smallest) if largest > smallest else 0.0
    middle = (levels - 1) // 2
    return [None if value is None else round((value - smallest) * scale) if scale else middle for value in values]
