"""Parts of charts as SVG inside a page: scales, axes, marks. The page's style sets the colours, so that they follow its
theme.

`Markup.format` escapes every value. Text is large relative to the drawing, since a phone shows it at three quarters of
its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from rl_training.experiment.storage.printing import printable
from rl_training.zoo.page.palette import STYLES, dash_of, style_of
from rl_training.zoo.quantities import Quantity, tick_text

WIDTH = 480
SIDE, TOP, BOTTOM = 24, 12, 46
HEIGHT = 300
SIGN = 10
"""Largest width of a digit, in the large type of a phone."""
_LONGEST_NAME = 32


@dataclass(frozen=True)
class Scale:
    """Maps the values of an axis to the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def scale_of(values: np.ndarray, quantity: Quantity, start: float, end: float, pad: float) -> Scale:
    """Return the scale of some values between two places of the drawing, with a margin of `pad` of their range."""
    low, high = quantity.limits or (float(values.min()), float(values.max()))
    if high - low <= 1e-9 * abs(high):  # equal up to rounding
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin * (pad > 0), high + margin
    elif quantity.limits is None:
        low, high = low - pad * (high - low), high + pad * (high - low)
    return Scale(low, high, start, end)


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


def left_margin(up: Scale) -> float:
    """Return the width of the axis label and its widest tick."""
    return 30 + SIGN * max(len(tick_text(value)) for value in tick_values(up.low, up.high, 6))


def y_grid(up: Scale, left: float, right: float, label: str) -> Markup:
    """Return horizontal lines with their values, and the label of the axis."""
    rows = Markup("").join(
        Markup('<path class="grid" d="M{},{:.1f}H{}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            left, up(value), right, left - 6, up(value) + 4.5, tick_text(value)
        )
        for value in tick_values(up.low, up.high, 6)
    )
    words = Markup('<text class="label" transform="translate(16,{:.1f}) rotate(-90)" text-anchor="middle">{}</text>')
    return rows + words.format((up.start + up.end) / 2, label)


def x_grid(across: Scale, x: Quantity, top: float, bottom: float) -> Markup:
    """Return vertical lines with their values, and the label of the axis."""
    values = tick_values(across.low / x.unit, across.high / x.unit, 6)
    columns = Markup("").join(x_tick(across(value * x.unit), tick_text(value), top, bottom) for value in values)
    return columns + x_label(x.label, (across.start + across.end) / 2, bottom)


def x_tick(place: float, text: str, top: float, bottom: float) -> Markup:
    """Return a vertical line with its value."""
    half = SIGN * len(text) / 2
    inside = min(max(place, half), WIDTH - half)  # a tick near the edge would be cut off
    return Markup(
        '<path class="grid" d="M{:.1f},{}V{}"/><text x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
    ).format(place, top, bottom, inside, bottom + 18, text)


def x_label(text: str, middle: float, bottom: float) -> Markup:
    """Return the label of a horizontal axis."""
    label = Markup('<text class="label" x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
    return label.format(middle, bottom + 38, text)


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """Return the outline through some places; a single one becomes a dot."""
    places = [f"{x:.1f},{y:.1f}" for x, y in points]
    return "M" + "L".join(places if len(places) > 1 else places * 2)


def mark(position: int, x: float, y: float) -> Markup:
    """Return the mark of a series at a place."""
    return Markup('<path class="mark" transform="translate({:.1f},{:.1f})" d="{}"/>').format(
        x, y, style_of(position).mark
    )


def dashes(position: int) -> Markup:
    """Return the attribute that makes the line of a later series a dashed one."""
    lengths = dash_of(position)
    return Markup('stroke-dasharray="{}" ').format(" ".join(map("{:g}".format, lengths))) if lengths else Markup("")


def series_class(position: int) -> str:
    """Return the class that gives a series its colour."""
    return f"series-{position % len(STYLES)}"


def svg(title: str, height: float, content: Markup) -> Markup:
    """Return a whole chart."""
    return Markup('<svg class="chart" viewBox="0 0 {} {:g}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, printable(title), content
    )
