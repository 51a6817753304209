"""A picture per environment of the learning suite: curves during training beside the scores of the final policies."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from pages.comparisons import Comparison, Entry
from records import OURS
from rl_training.zoo.page.curves import Line, curve_over_seeds
from rl_training.zoo.page.palette import STYLES, Style
from rl_training.zoo.quantities import tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Pictures of the same results are the same bytes: no dates, and no random names.
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "axiomrl", "text.parse_math": False, "font.size": 9}
# By position in the palette. Those that share a style never meet on one environment, which a test holds.
_STYLES = {
    "PPO": 0,
    "PPO, RL Zoo's settings": 4,
    "PPO, images of 42x42 pixels": 0,
    "PPO, entropy bonus of 0.01": 4,
    "DQN": 1,
    "SAC": 2,
    "SAC, LayerNorm in the critics": 4,
    "SAC, RL Zoo's settings": 4,
    "TD3": 3,
    "MuZero": 2,
    "Gumbel MuZero": 3,
    "Gumbel MuZero, steady noise": 4,
    "EfficientZero": 5,
    "CrossQ": 5,
    "CrossQ, falling learning rate": 3,
    "DroQ, two updates per step": 1,
    "TQC": 1,
}
_PEER_DASHES = (0, (4.0, 2.0))
_GREY = "#6b7480"
_FEWEST_LINES = 4


def fingerprint(comparisons: Sequence[Comparison]) -> str:
    """Return what tells pictures of other numbers apart; every picture holds its own."""
    shown = [
        [entry.name, run["seed"], run["eval_return_mean"], run.get("evaluations")]
        for entry in _drawn(comparisons)
        for run in entry.runs
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def write_plot(env_id: str, comparisons: Sequence[Comparison], file: Path) -> None:
    """Draw one environment, of which at least one seed is stored, into an SVG file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):
        figure = draw(env_id, _drawn(comparisons))
        figure.savefig(
            file, metadata={"Date": None, "Creator": None, "Description": f"results {fingerprint(comparisons)}"}
        )


def draw(env_id: str, entries: Sequence[Entry]) -> Figure:
    """Return the picture: on the left the curves, on the right a line of dots per entry."""
    height = 2.6 + 0.32 * max(len(entries), _FEWEST_LINES)  # inches
    figure = Figure(figsize=(10, height), layout="constrained")
    figure.suptitle(env_id, fontweight="bold")
    curves, finals = figure.subplots(1, 2, width_ratios=(1.15, 1), gridspec_kw={"wspace": 0.04})
    _draw_curves(curves, entries)
    _draw_finals(finals, entries)
    if curves.lines:
        names = len(curves.lines)
        columns = names if names <= 4 else math.ceil(names / 2)
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)
    for axes in (curves, finals):
        plain_axes(axes)
    return figure


def plain_axes(axes: Axes) -> None:
    """Give axes a light grid, and no frame above and at the right."""
    axes.grid(color="#e3e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def style_of(algorithm: str) -> Style:
    """Return the colour and the mark of an algorithm with its options, the same on every picture."""
    return STYLES[_STYLES[algorithm]]


def _drawn(comparisons: Sequence[Comparison]) -> list[Entry]:
    return [entry for comparison in comparisons for entry in comparison.entries if entry.runs]


def _line_style(entry: Entry) -> Any:
    return "-" if entry.side == OURS else _PEER_DASHES


def _fill(entry: Entry) -> str:
    return style_of(entry.algorithm).light if entry.side == OURS else "white"


def _draw_curves(axes: Axes, entries: Sequence[Entry]) -> None:
    """Draw the interquartile mean of the evaluations during training, with its interval from three seeds on."""
    axes.set(title="evaluations during training", xlabel="environment steps", ylabel="return")
    ends = []
    for entry in entries:
        points = [np.array(run["evaluations"]).T for run in entry.runs if run.get("evaluations")]
        curve = curve_over_seeds(entry.name, [Line(steps, returns) for steps, returns in points])
        if curve.empty:
            continue
        ends.append(curve.end)
        style, seeds = style_of(entry.algorithm), f"{len(points)} of {len(entry.runs)}"
        axes.plot(
            curve.x,
            curve.y,
            color=style.light,
            linestyle=_line_style(entry),
            marker=style.symbol,
            markersize=5,
            markerfacecolor=_fill(entry),
            label=entry.name if len(points) == len(entry.runs) else f"{entry.name} ({seeds} seeds)",
        )
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=style.light, alpha=0.12, lw=0)
    if not ends:
        axes.text(0.5, 0.5, "no curves are stored", transform=axes.transAxes, ha="center", color=_GREY)
        axes.set(xticks=[], yticks=[])
        return
    axes.locator_params(nbins=6)
    if max(ends) > 2 * min(ends):
        axes.set_xscale("log")
        axes.set_xlabel("environment steps (logarithmic)")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: tick_text(value))


def _draw_finals(axes: Axes, entries: Sequence[Entry]) -> None:
    """Draw a line per entry: the score of each seed, the interquartile mean and its interval."""
    axes.set(title="final policies", xlabel="return")
    for place, entry in enumerate(entries):
        style, estimate = style_of(entry.algorithm), entry.estimate()
        if estimate.interval is not None:
            axes.hlines(place, *estimate.interval, color=style.light, linestyle=_line_style(entry), linewidth=2)
        axes.vlines(estimate.value, place - 0.36, place + 0.36, color=style.light, linewidth=2.5)
        # Seeds of equal scores stay apart.
        heights = place + np.linspace(-0.22, 0.22, len(entry.runs)) if len(entry.runs) > 1 else [place]
        axes.plot(
            entry.scores,
            heights,
            linestyle="none",
            marker=style.symbol,
            markersize=4.5,
            color=style.light,
            markerfacecolor=_fill(entry),
            zorder=3,
        )
    axes.set_yticks(range(len(entries)), [entry.name for entry in entries])
    axes.set_ylim(max(len(entries), _FEWEST_LINES) - 0.4, -0.6)
    axes.margins(x=0.06)
    axes.locator_params(axis="x", nbins=6)
