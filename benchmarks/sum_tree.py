"""Prioritised sampling against `numpy.random.choice` with probabilities, alternating, told as a ratio.

Run `python benchmarks/sum_tree.py`: draws 256 of a million transitions, priorities updated after each draw on our
side, as a training does; NumPy only draws.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.samplers import PrioritizedSampler

CAPACITY = 1_000_000
BATCH = 256
DRAWS = 50


def run(rounds: int) -> dict[str, Any]:
    """Alternate the two and return the ratios of their times per draw."""
    generator = np.random.default_rng(0)
    errors = generator.exponential(size=CAPACITY)
    sampler = PrioritizedSampler(CAPACITY, alpha=0.6, eps=1e-6)
    sampler.added(0, CAPACITY)
    sampler.update(np.arange(CAPACITY), errors)
    priorities = sampler.tree.get(np.arange(CAPACITY))
    probabilities = priorities / priorities.sum()

    def draw_by_tree() -> None:
        rows = sampler.sample(0, CAPACITY, (1, BATCH), 0.4, generator).rows[0]
        sampler.update(rows, errors[rows])

    def draw_by_numpy() -> None:
        generator.choice(CAPACITY, size=BATCH, p=probabilities)

    draw_by_tree()  # compiles
    rows = []
    for _ in range(rounds):
        ours, numpy_s = (_seconds(draw, DRAWS) for draw in (draw_by_tree, draw_by_numpy))
        rows.append({"ours_seconds": ours, "numpy_seconds": numpy_s, "ratio": numpy_s / ours})
        print(f"tree {ours * 1e6:.0f} us, numpy {numpy_s * 1e6:.0f} us, ratio {rows[-1]['ratio']:.0f}", flush=True)
    ratios = [row["ratio"] for row in rows]
    print(f"ratio {statistics.median(ratios):.0f} (from {min(ratios):.0f} to {max(ratios):.0f})")
    return {
        "benchmark": "sum_tree",
        "settings": f"{BATCH} of {CAPACITY:,} transitions; our time includes the update of their priorities",
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": rows,
        "versions": {name: version(name) for name in ("axiomrl", "numpy", "numba")},
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
    }


def _seconds(draw: Any, count: int) -> float:
    """Return the median time of one draw."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        draw()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Parse arguments, measure, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often the two alternate")
    parser.add_argument("--output", type=Path, help="write the summary as JSON")
    arguments = parser.parse_args()
    summary = run(arguments.rounds)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
