"""The picture of all comparisons together: profiles of both sides, and who is ahead where."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pages.aggregate import Aggregate, describe
from pages.comparisons import SIDE_NAMES
from pages.result_plots import SETTINGS, plain_axes
from records import OURS, SB3
from rl_training.experiment.statistics import performance_profile, performance_profile_band
from rl_training.zoo.page.palette import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = {OURS: STYLES[0], SB3: STYLES[1]}
_LINES = {OURS: "-", SB3: (0, (4.0, 2.0))}


def fingerprint(aggregate: Aggregate) -> str:
    """Return what tells pictures of other numbers apart."""
    return hashlib.sha256(json.dumps([aggregate.scores, describe(aggregate)]).encode()).hexdigest()[:16]


def write_aggregate_plot(aggregate: Aggregate, file: Path) -> None:
    """Draw it into an SVG file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):
        figure = draw(aggregate)
        description = f"results {fingerprint(aggregate)}"
        figure.savefig(file, metadata={"Date": None, "Creator": None, "Description": description})


def draw(aggregate: Aggregate) -> Figure:
    """Return the picture: profiles on the left, a line per comparison on the right."""
    figure = Figure(figsize=(10, 2.4 + 0.22 * len(aggregate.comparisons)), layout="constrained")
    profiles, chances = figure.subplots(1, 2, width_ratios=(1, 1.1))
    _draw_profiles(profiles, aggregate)
    _draw_chances(chances, aggregate)
    for axes in (profiles, chances):
        plain_axes(axes)
    return figure


def _draw_profiles(axes: Axes, aggregate: Aggregate) -> None:
    axes.set(title="share of runs above a score", xlabel="normalised score (random 0, target 1)", ylim=(0, 1.02))
    every = np.concatenate([scores for tasks in aggregate.scores.values() for scores in tasks.values()])
    thresholds = np.linspace(min(0.0, every.min()), every.max() + 0.02, 201)
    for side, scores in aggregate.scores.items():
        low, high = performance_profile_band(scores, thresholds)
        colour = _STYLES[side].light
        shares = performance_profile(scores, thresholds)
        axes.plot(thresholds, shares, color=colour, linestyle=_LINES[side], label=SIDE_NAMES[side])
        axes.fill_between(thresholds, low, high, color=colour, alpha=0.15, lw=0)
    axes.legend(frameon=False)


def _draw_chances(axes: Axes, aggregate: Aggregate) -> None:
    axes.set(title="probability of improvement over stable-baselines3", xlim=(-0.02, 1.02))
    found = [*(one.improvement() for one in aggregate.comparisons), aggregate.improvement()]
    names = [*aggregate.names, "all"]
    colour = _STYLES[OURS].light
    for place, estimate in enumerate(found):
        assert estimate is not None
        assert estimate.interval is not None
        axes.hlines(place, *estimate.interval, color=colour, linewidth=3 if names[place] == "all" else 1.6)
        axes.plot(estimate.value, place, marker="o", markersize=5, color=colour)
    axes.axvline(0.5, color="#6b7480", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
