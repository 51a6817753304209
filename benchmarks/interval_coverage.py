"""How often the intervals of `rl_training.experiment.statistics` hold, and how wide they are, by number of seeds.

    python benchmarks/interval_coverage.py

Simulates experiments whose true interquartile mean is known, and counts the intervals that contain it. The results
are stored in `benchmarks/results/` and shown in `docs/statistics.md`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from rl_training.experiment.statistics import (
    Interval,
    Statistic,
    bootstrap_interval,
    difference_interval,
    interquartile_mean,
)
from rl_training.experiment.storage.files import write_json_atomically

RESULTS = Path(__file__).parent / "results" / "interval-coverage.json"
PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
SEEDS = (3, 5, 10, 20)
CONFIDENCE = 0.95  # what the intervals promise unless asked for more
FAILING = 0.3

# Scores as increasing functions of a normal variable, so that their true interquartile means are exact.
POPULATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normal": lambda normal: normal,
    "skewed": lambda normal: np.exp(normal / 2),
    "failing": lambda normal: normal / 10 + (normal > NormalDist().inv_cdf(FAILING)),
}


def true_interquartile_mean(population: str, points: int = 10_000) -> float:
    """Return the mean of a population between its quartiles."""
    middle = 0.25 + (np.arange(points) + 0.5) / (2 * points)
    return float(POPULATIONS[population](np.array([NormalDist().inv_cdf(share) for share in middle])).mean())


def simulate(
    population: str, seeds: int, experiments: int, statistic: Statistic = interquartile_mean
) -> list[Interval]:
    """Return the interval of every simulated experiment."""
    generator = np.random.default_rng([seeds, list(POPULATIONS).index(population)])
    scores = POPULATIONS[population](generator.standard_normal((experiments, seeds)))
    return [bootstrap_interval(runs, statistic, seed=number) for number, runs in enumerate(scores)]


def simulate_differences(seeds: int, experiments: int) -> list[Interval]:
    """Return the intervals of the difference between two entries that are equally good."""
    scores = np.random.default_rng(seeds).standard_normal((experiments, 2, seeds))
    return [difference_interval(a, b, seed=number) for number, (a, b) in enumerate(scores)]


def simulate_unwidened(seeds: int, experiments: int, trimmed: int) -> list[Interval]:
    """Return plain percentile intervals of a trimmed mean of the normal population, for comparison."""
    generator = np.random.default_rng(seeds)
    intervals = []
    for runs in generator.standard_normal((experiments, seeds)):
        resampled = np.sort(runs[generator.integers(seeds, size=(2000, seeds))], axis=1)
        means = resampled[:, trimmed : seeds - trimmed].mean(axis=1)
        intervals.append(Interval(*np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])))
    return intervals


def coverage(intervals: list[Interval], truth: float) -> float:
    """Return the share of intervals that contain the truth."""
    return sum(low <= truth <= high for low, high in intervals) / len(intervals)


def measure(seeds: int, experiments: int) -> dict[str, Any]:
    """Return one row of the table."""
    simulated = {population: simulate(population, seeds, experiments) for population in POPULATIONS}
    return {
        "seeds": seeds,
        "width": float(np.mean([high - low for low, high in simulated["normal"]])),
        **{name: coverage(intervals, true_interquartile_mean(name)) for name, intervals in simulated.items()},
        "difference": coverage(simulate_differences(seeds, experiments), 0.0),
        "unwidened": coverage(simulate_unwidened(seeds, experiments, trimmed=seeds // 4), 0.0),
        "mean": coverage(simulate("normal", seeds, experiments, np.mean), 0.0),
        "unwidened mean": coverage(simulate_unwidened(seeds, experiments, trimmed=0), 0.0),
    }


def render(summary: dict[str, Any]) -> str:
    """Return the table of the page."""
    columns = ("seeds", "width", *POPULATIONS, "difference", "unwidened", "mean", "unwidened mean")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in summary["rows"]:
        cells = (str(row["seeds"]), f"{row['width']:.2f}", *(f"{100 * row[name]:.1f} %" for name in columns[2:]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, simulate, store, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=10_000, help="simulated experiments per cell of the table")
    parser.add_argument("--render-only", action="store_true", help="write the page from the stored results")
    arguments = parser.parse_args()
    if not arguments.render_only:
        rows = [measure(seeds, arguments.experiments) for seeds in SEEDS]
        summary = {"benchmark": "interval_coverage", "confidence": CONFIDENCE, "experiments": arguments.experiments}
        write_json_atomically(RESULTS, {**summary, "rows": rows})
    table = render(json.loads(RESULTS.read_text(encoding="utf-8")))
    text = PAGE.read_text(encoding="utf-8")
    section = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    PAGE.write_text(section.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text), encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
