"""Charts as SVG inside a page: curves with their intervals, and scores with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from rl_training.experiment.storage.printing import printable
from rl_training.zoo.page.curves import Curve, Line
from rl_training.zoo.page.svg_parts import (
    BOTTOM,
    HEIGHT,
    SIDE,
    TOP,
    WIDTH,
    Scale,
    dashes,
    left_margin,
    mark,
    path_of,
    scale_of,
    series_class,
    shortened,
    svg,
    x_grid,
    y_grid,
)
from rl_training.zoo.quantities import Quantity
from rl_training.zoo.tables import interval_text, score_text

_ROW = 46
_MARKS = 6  # marks per curve, few enough not to cover it


class Spread(NamedTuple):
    """Scores of several seeds, one row of a chart."""

    position: int
    """Determines its colour and mark."""
    label: str
    scores: Sequence[float]
    iqm: float
    interval: tuple[float, float] | None


def line_chart(curves: Sequence[Curve], title: str, x: Quantity, y: Quantity) -> Markup:
    """Return curves with their intervals; a curve's position determines its colour and mark."""
    drawn = [(position, curve) for position, curve in enumerate(curves) if not curve.empty]
    lines = [line for _, curve in drawn for line in _lines(curve)]
    xs = np.concatenate([line.x for line in lines])
    ys = np.concatenate([line.y for line in lines])
    up = scale_of(ys, y, HEIGHT - BOTTOM, TOP, pad=0.04)
    # Steps and time start at 0, even if there is no value.
    across = scale_of(np.append(xs, 0.0), x, left_margin(up), WIDTH - SIDE, pad=0.0)
    axes = x_grid(across, x, TOP, HEIGHT - BOTTOM) + y_grid(up, across.start, across.end, y.label)
    content = Markup("").join([axes, *(_curve(*pair, across, up) for pair in drawn)])
    return svg(title, HEIGHT, content)


def interval_chart(rows: Sequence[Spread], title: str, y: Quantity) -> Markup:
    """Return the interquartile mean, its interval and the score of every seed, one row for each of some settings."""
    scores = np.concatenate([[*row.scores, *(row.interval or ())] for row in rows])
    across = scale_of(scores, y, SIDE, WIDTH - SIDE, pad=0.03)
    bottom = TOP + _ROW * len(rows)
    drawn = [_spread(row, TOP + _ROW * number + 30, across) for number, row in enumerate(rows)]
    grid = x_grid(across, y, TOP, bottom)
    return svg(title, bottom + BOTTOM, Markup("").join([grid, *drawn]))


def legend_sign(position: int) -> Markup:
    """Return the line and the mark of a curve as a small drawing for a legend."""
    return Markup(
        '<svg class="sign {}" viewBox="0 0 34 14" width="34" height="14" aria-hidden="true">'
        '<path class="line" {}d="M1,7H33"/>{}</svg>'
    ).format(series_class(position), dashes(position), mark(position, 17, 7))


def _spread(row: Spread, middle: float, across: Scale) -> Markup:
    figures = score_text(row.iqm)
    if row.interval is not None:
        figures += f" ({interval_text(row.interval, score_text)})"
    low, high = row.interval or (row.iqm, row.iqm)
    seeds = Markup("").join(
        Markup('<circle class="seed" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(across(score), middle)
        for score in row.scores
    )
    return Markup(
        '<g class="{}"><title>{}</title><text class="name" x="4" y="{}">{}</text>'
        '<text class="figure" x="{}" y="{}" text-anchor="end">{}</text>'
        '<path class="interval" d="M{:.1f},{}H{:.1f}"/>{}{}</g>'
    ).format(
        series_class(row.position),
        f"{printable(row.label)}: {figures}, seeds: {len(row.scores)}",
        middle - 14,
        shortened(row.label),
        WIDTH - 4,
        middle - 14,
        figures,
        across(low),
        middle,
        across(high),
        seeds,
        mark(row.position, across(row.iqm), middle),
    )


def _lines(curve: Curve) -> list[Line]:
    """Return all lines of a curve that must fit the chart."""
    found = [Line(curve.x, values) for values in (curve.y, curve.low, curve.high) if values is not None]
    return [*found, *curve.unfinished]


def _curve(position: int, curve: Curve, across: Scale, up: Scale) -> Markup:
    parts = []
    if curve.low is not None and curve.high is not None:
        edge = [*zip(curve.x, curve.high, strict=True), *zip(curve.x[::-1], curve.low[::-1], strict=True)]
        # The band of a single point is a bar.
        shape = "bar" if curve.x.size == 1 else "band"
        parts.append(Markup('<path class="{}" d="{}Z"/>').format(shape, path_of((across(x), up(y)) for x, y in edge)))
    if curve.x.size:
        points = list(zip(curve.x, curve.y, strict=True))
        line = Markup('<path class="line" {}d="{}"/>')
        parts.append(line.format(dashes(position), path_of((across(x), up(y)) for x, y in points)))
        # Curves have marks at different positions, so that the marks of overlapping curves stay visible.
        every = max(1, -(-len(points) // _MARKS))
        marked = points[len(points) - 1 - (position % every) :: -every] or points[-1:]
        parts += [mark(position, across(a), up(b)) for a, b in marked]
    parts += [
        Markup('<path class="line unfinished" d="{}"/>').format(
            path_of((across(x), up(y)) for x, y in zip(line.x, line.y, strict=True))
        )
        for line in curve.unfinished
    ]
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(
        series_class(position), printable(curve.name), Markup("").join(parts)
    )
