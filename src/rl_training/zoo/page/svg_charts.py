"""Charts as SVG inside a page: the page's style sets the colours, so that they follow its theme.

`Markup.format` escapes every value. Text is large relative to the drawing, since a phone shows it at three quarters of
its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from rl_training.experiment.storage.printing import printable
from rl_training.zoo.leaderboard import Standing
from rl_training.zoo.page.curves import Curve, Line
from rl_training.zoo.page.palette import STYLES, dash_of, style_of
from rl_training.zoo.quantities import Quantity, tick_text
from rl_training.zoo.tables import interval_text, score_text

WIDTH = 480
_SIDE, _TOP, _BOTTOM = 24, 12, 46
_SIGN = 10  # largest width of a digit, in the large type of a phone
_HEIGHT = 300
_ROW = 46
_LONGEST_NAME = 32
_MARKS = 6  # marks per curve, few enough not to cover it


@dataclass(frozen=True)
class _Scale:
    """Maps the values of an axis to the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def line_chart(curves: Sequence[Curve], title: str, x: Quantity, y: Quantity) -> Markup:
    """Return curves with their intervals; a curve's position determines its colour and mark."""
    drawn = [(position, curve) for position, curve in enumerate(curves) if not curve.empty]
    lines = [line for _, curve in drawn for line in _lines(curve)]
    xs = np.concatenate([line.x for line in lines])
    ys = np.concatenate([line.y for line in lines])
    up = _scale(ys, y, _HEIGHT - _BOTTOM, _TOP, pad=0.04)
    # Steps and time start at 0, even if there is no value.
    across = _scale(np.append(xs, 0.0), x, _left_margin(up), WIDTH - _SIDE, pad=0.0)
    content = Markup("").join([_axes(across, up, x, y), *(_curve(*pair, across, up) for pair in drawn)])
    return _svg(title, _HEIGHT, content)


def interval_chart(board: Sequence[Standing], labels: Sequence[str], title: str, y: Quantity) -> Markup:
    """Return each entry's interquartile mean, its interval and the score of every seed, one row per entry."""
    scored = [(position, place, place.summary) for position, place in enumerate(board) if place.summary is not None]
    scores = np.concatenate([[summary.low, summary.high, *(summary.interval or ())] for _, _, summary in scored])
    across = _scale(scores, y, _SIDE, WIDTH - _SIDE, pad=0.03)
    bottom = _TOP + _ROW * len(scored)
    rows = []
    for row, (position, place, summary) in enumerate(scored):
        middle = _TOP + _ROW * row + 30
        figures = score_text(summary.iqm)
        if summary.interval is not None:
            figures += f" ({interval_text(summary.interval, score_text)})"
        low, high = summary.interval or (summary.iqm, summary.iqm)
        seeds = Markup("").join(
            Markup('<circle class="seed" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(across(score), middle)
            for score in place.entry.scores
        )
        rows.append(
            Markup(
                '<g class="{}"><title>{}</title><text class="name" x="4" y="{}">{}</text>'
                '<text class="figure" x="{}" y="{}" text-anchor="end">{}</text>'
                '<path class="interval" d="M{:.1f},{}H{:.1f}"/>{}{}</g>'
            ).format(
                _class(position),
                f"{printable(labels[position])}: {figures}, seeds: {len(place.entry.scores)}",
                middle - 14,
                shortened(labels[position]),
                WIDTH - 4,
                middle - 14,
                figures,
                across(low),
                middle,
                across(high),
                seeds,
                _mark(position, across(summary.iqm), middle),
            )
        )
    grid = _x_grid(across, y, _TOP, bottom)
    return _svg(title, bottom + _BOTTOM, Markup("").join([grid, *rows]))


def legend_sign(position: int) -> Markup:
    """Return the line and the mark of a curve as a small drawing for a legend."""
    return Markup(
        '<svg class="sign {}" viewBox="0 0 34 14" width="34" height="14" aria-hidden="true">'
        '<path class="line" {}d="M1,7H33"/>{}</svg>'
    ).format(_class(position), _dashes(position), _mark(position, 17, 7))


def shortened(name: str) -> str:
    """Return a name that fits a chart: long ones lose their middle, because their end identifies the configuration."""
    name = printable(name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 13]}…{name[-12:]}"


def tick_values(low: float, high: float, most: int) -> list[float]:
    """Return round values between two ends, with at most `most` steps."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _lines(curve: Curve) -> list[Line]:
    """Return all lines of a curve that must fit the chart."""
    found = [Line(curve.x, values) for values in (curve.y, curve.low, curve.high) if values is not None]
    return [*found, *curve.unfinished]


def _scale(values: np.ndarray, quantity: Quantity, start: float, end: float, pad: float) -> _Scale:
    low, high = quantity.limits or (float(values.min()), float(values.max()))
    if high - low <= 1e-9 * abs(high):  # equal up to rounding
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin * (pad > 0), high + margin
    elif quantity.limits is None:
        low, high = low - pad * (high - low), high + pad * (high - low)
    return _Scale(low, high, start, end)


def _axes(across: _Scale, up: _Scale, x: Quantity, y: Quantity) -> Markup:
    rows = Markup("").join(
        Markup('<path class="grid" d="M{},{:.1f}H{}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            across.start, up(value), across.end, across.start - 6, up(value) + 4.5, tick_text(value)
        )
        for value in tick_values(up.low, up.high, 6)
    )
    label = Markup('<text class="label" transform="translate(16,{:.1f}) rotate(-90)" text-anchor="middle">{}</text>')
    return _x_grid(across, x, _TOP, _HEIGHT - _BOTTOM) + rows + label.format((_HEIGHT - _BOTTOM + _TOP) / 2, y.label)


def _left_margin(up: _Scale) -> float:
    """Return the width of the axis label and its widest tick."""
    return 30 + _SIGN * max(len(tick_text(value)) for value in tick_values(up.low, up.high, 6))


def _x_grid(across: _Scale, x: Quantity, top: float, bottom: float) -> Markup:
    values = tick_values(across.low / x.unit, across.high / x.unit, 6)
    columns = Markup("").join(_x_tick(across(value * x.unit), tick_text(value), top, bottom) for value in values)
    middle = (across.start + across.end) / 2
    label = Markup('<text class="label" x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
    return columns + label.format(middle, bottom + 38, x.label)


def _x_tick(place: float, text: str, top: float, bottom: float) -> Markup:
    half = _SIGN * len(text) / 2
    inside = min(max(place, half), WIDTH - half)  # a tick near the edge would be cut off
    return Markup(
        '<path class="grid" d="M{:.1f},{}V{}"/><text x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
    ).format(place, top, bottom, inside, bottom + 18, text)


def _curve(position: int, curve: Curve, across: _Scale, up: _Scale) -> Markup:
    parts = []
    if curve.low is not None and curve.high is not None:
        edge = [*zip(curve.x, curve.high, strict=True), *zip(curve.x[::-1], curve.low[::-1], strict=True)]
        # The band of a single point is a bar.
        shape = "bar" if curve.x.size == 1 else "band"
        parts.append(Markup('<path class="{}" d="{}Z"/>').format(shape, _path(edge, across, up)))
    if curve.x.size:
        points = list(zip(curve.x, curve.y, strict=True))
        line = Markup('<path class="line" {}d="{}"/>')
        parts.append(line.format(_dashes(position), _path(points, across, up)))
        # Curves have marks at different positions, so that the marks of overlapping curves stay visible.
        every = max(1, -(-len(points) // _MARKS))
        marked = points[len(points) - 1 - (position % every) :: -every] or points[-1:]
        parts += [_mark(position, across(a), up(b)) for a, b in marked]
    parts += [
        Markup('<path class="line unfinished" d="{}"/>').format(_path(zip(line.x, line.y, strict=True), across, up))
        for line in curve.unfinished
    ]
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(
        _class(position), printable(curve.name), Markup("").join(parts)
    )


def _path(points: Iterable[tuple[float, float]], across: _Scale, up: _Scale) -> str:
    places = [f"{across(x):.1f},{up(y):.1f}" for x, y in points]
    return "M" + "L".join(places if len(places) > 1 else places * 2)


def _mark(position: int, x: float, y: float) -> Markup:
    return Markup('<path class="mark" transform="translate({:.1f},{:.1f})" d="{}"/>').format(
        x, y, style_of(position).mark
    )


def _dashes(position: int) -> Markup:
    dashes = dash_of(position)
    return Markup('stroke-dasharray="{}" ').format(" ".join(map("{:g}".format, dashes))) if dashes else Markup("")


def _class(position: int) -> str:
    return f"series-{position % len(STYLES)}"


def _svg(title: str, height: float, content: Markup) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {:g}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, printable(title), content
    )
