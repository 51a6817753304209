"""The distribution of the episodes' returns, for a terminal and as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rl_training.experiment.storage.printing import printable
from rl_training.zoo.page.palette import style_of
from rl_training.zoo.page.picture import new_picture
from rl_training.zoo.quantities import tick_text

_BINS = 12
_WIDTH = 40  # characters of the longest bar


def histogram(values: Sequence[float], bins: int = _BINS) -> tuple[np.ndarray, np.ndarray]:
    """Return counts [n] and edges [n + 1]; equal values are one bin."""
    array = np.asarray(values, np.float64)
    if array.min() == array.max():
        return np.array([len(array)]), np.array([array[0], array[0]])
    return np.histogram(array, bins=min(bins, len(array)))


def histogram_lines(values: Sequence[float]) -> list[str]:
    """Return the histogram as lines of text, the lowest values first."""
    counts, edges = histogram(values)
    labels = [f"{low:,.6g} to {high:,.6g}" if low < high else f"{low:,.6g}" for low, high in itertools.pairwise(edges)]
    width = max(len(label) for label in labels)
    # A bin with few episodes is still to be seen.
    bars = [int(np.ceil(_WIDTH * count / counts.max())) for count in counts]
    return [
        f"{label:>{width}}  {'#' * bar:<{_WIDTH}}  {count:,}"
        for label, bar, count in zip(labels, bars, counts, strict=True)
    ]


def write_histogram(file: Path, values: Sequence[float], title: str, *, flag: str) -> None:
    """Draw the histogram into a picture."""
    counts, edges = histogram(values, bins=30)
    if len(counts) == 1:
        edges = edges + np.array([-0.5, 0.5])
    with new_picture(file, flag, size=(5.2, 3.6)) as figure:
        axes = figure.subplots()
        axes.stairs(counts, edges, fill=True, color=style_of(0).light)
        axes.set(title=printable(title), xlabel="return of an episode", ylabel="episodes")
        axes.xaxis.set_major_formatter(lambda value, _: tick_text(value))
        axes.grid(color="#e3e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
