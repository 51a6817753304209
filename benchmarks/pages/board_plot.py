"""The picture of a board game: how strong a policy becomes over its training, and by more simulations per move."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from pages.render_games import score
from pages.result_plots import SETTINGS, plain_axes
from rl_training.zoo.page.palette import STYLES
from rl_training.zoo.quantities import tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def fingerprint(played: dict[str, Any]) -> str:
    """Return what tells pictures of other games apart."""
    return hashlib.sha256(json.dumps(played["games"]).encode()).hexdigest()[:16]


def write_board_plot(played: dict[str, Any], file: Path) -> None:
    """Draw the games of one preset into an SVG file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):
        metadata = {"Date": None, "Creator": None, "Description": f"results {fingerprint(played)}"}
        draw(played).savefig(file, metadata=metadata)


def draw(played: dict[str, Any]) -> Figure:
    """Return the picture: on the left the checkpoints of training, on the right the final policy's simulations."""
    games = played["games"]
    last = max(row["step"] for row in games)
    usual = next(row["simulations"] for row in games if row["step"] < last)
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    over_training, over_simulations = figure.subplots(1, 2, sharey=True)
    over_training.set(
        title=f"over training, {usual} simulations per move",
        xlabel="environment steps",
        ylabel="wins minus losses, per game",
        ylim=(-1.05, 1.05),
    )
    _draw_lines(over_training, [row for row in games if row["simulations"] == usual], "step")
    over_training.xaxis.set_major_formatter(lambda value, _: tick_text(value))
    over_simulations.set(title="final policy", xlabel="simulations per move (logarithmic)", xscale="log")
    final = [row for row in games if row["step"] == last]
    _draw_lines(over_simulations, final, "simulations")
    over_simulations.set_xticks(numbers := sorted({row["simulations"] for row in final}), list(map(str, numbers)))
    over_simulations.xaxis.set_minor_locator(NullLocator())
    for axes in (over_training, over_simulations):
        plain_axes(axes)
    figure.legend(*over_training.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_lines(axes: Axes, rows: Sequence[dict[str, Any]], key: str) -> None:
    """Draw a line per opponent."""
    for place, opponent in enumerate(dict.fromkeys(row["opponent"] for row in rows)):
        points = sorted((row[key], score(row)) for row in rows if row["opponent"] == opponent)
        style = STYLES[place]
        axes.plot(*zip(*points, strict=True), color=style.light, marker=style.symbol, markersize=5, label=opponent)
