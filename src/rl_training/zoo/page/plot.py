"""Learning curves as an image, drawn by matplotlib: one panel per environment."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.storage.printing import printable
from rl_training.zoo.page.curves import Axis, Curve, learning_curve, metric_label, read_histories, shorter_ranges
from rl_training.zoo.page.palette import dash_of, style_of
from rl_training.zoo.page.picture import check_picture, new_picture
from rl_training.zoo.quantities import quantity_of, range_text, seed_text, tick_text
from rl_training.zoo.reporting import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_COLUMNS = 3
_LEGEND_WIDTH = 60  # characters
_SHOWN_NAMES = 30  # names of metrics listed if none is similar to the requested one


class _Panel(NamedTuple):
    """The curves of one environment, or their beginnings up to the end of its shorter curves."""

    title: str
    label: str
    curves: Sequence[Curve]


def write_plot(report: Report, file: Path, *, metric: str, axis: Axis) -> tuple[int, tuple[str, ...]]:
    """Draw the curves of a report into a picture.

    Returns the number of entries drawn, and sentences about runs that could not be drawn.
    """
    check_picture(file, "--output")
    histories = read_histories((place.entry for place in report.standings), [metric])
    panels: list[_Panel] = []
    drawn = 0
    for env_id in report.environments:
        board = report.board(env_id)
        curves = [
            learning_curve(place.entry, histories, metric, axis, label=report.label(place.entry)) for place in board
        ]
        drawn += sum(not curve.empty for curve in curves)
        label = metric_label(board[0].entry, metric)
        if not all(curve.empty for curve in curves):
            panels.append(_Panel(env_id, label, curves))
        panels += [
            _Panel(f"{env_id}, {range_text(axis, end)}", label, [curve.until(end) for curve in curves])
            for end in shorter_ranges(curves)
        ]
    if not panels:
        names = sorted(name for name in histories.names - {"event", "global_step"} if name.isprintable())
        hint = did_you_mean(metric, names) or (f"; there are {', '.join(names[:_SHOWN_NAMES])}" if names else "")
        raise ConfigError(f"there is nothing to draw: no run that was chosen has logged {metric}{hint}")
    _draw(panels, file, axis)
    return drawn, histories.problems


def _draw(panels: Sequence[_Panel], file: Path, axis: Axis) -> None:
    columns = min(len(panels), _MOST_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    lines = max(sum(len(_legend_lines(curve)) for curve in panel.curves) for panel in panels)
    height = 3.6 + 0.2 * lines  # inches; each entry has its own lines in the legend
    with new_picture(file, "--output", size=(5.2 * columns, height * rows)) as figure:
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for place, panel in zip(places, panels, strict=False):
            draw_panel(place, panel.title, panel.curves, panel.label, axis)
        for unused in places[len(panels) :]:
            unused.set_visible(False)


def _legend_lines(curve: Curve) -> list[str]:
    """Return a curve's name and seeds in lines no wider than a panel."""
    return textwrap.wrap(f"{printable(curve.name)} ({seed_text(curve.seeds)})", _LEGEND_WIDTH)


def draw_panel(axes: Axes, title: str, curves: Sequence[Curve], label: str, axis: Axis) -> None:
    """Draw one environment's curves; `label` names their metric."""
    quantity = quantity_of(axis, curves)
    for position, curve in enumerate(curves):
        if curve.empty:
            continue
        style, dashes = style_of(position), dash_of(position)
        name = "\n".join(_legend_lines(curve))
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x / quantity.unit, curve.low, curve.high, color=style.light, alpha=0.16, lw=0)
            if curve.x.size == 1:  # the band of a single point is a bar
                axes.vlines(curve.x / quantity.unit, curve.low, curve.high, color=style.light, alpha=0.5)
        axes.plot(
            curve.x / quantity.unit,
            curve.y,
            color=style.light,
            label=name,
            linestyle=(0, dashes) if dashes else "-",
            marker=style.symbol,
            markersize=6,
            markeredgecolor="white",
            markevery=max(1, math.ceil(len(curve.x) / 6)),
        )
        for line in curve.unfinished:
            axes.plot(line.x / quantity.unit, line.y, color=style.light, linewidth=1, linestyle=":")
    axes.set(title=printable(title), xlabel=quantity.label, ylabel=printable(label))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: tick_text(value))
    axes.yaxis.set_major_formatter(lambda value, _: tick_text(value))
    axes.locator_params(nbins=6)
    axes.grid(color="#e3e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
