"""Prioritised sampling against `numpy.random.choice` with probabilities.

Draws 256 of a million transitions, priorities updated after each draw on our side, as a training does; NumPy only
draws.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from rl_training.data.samplers import PrioritizedSampler
from speed_cases.speed_parts import Effort, Outcome, alternate, quotients

CAPACITY = 1_000_000
BATCH = 256


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return f"{BATCH} of {CAPACITY:,} transitions; our time includes the update of their priorities"


def measure(effort: Effort) -> Outcome:
    """Let the two draw in turn and compare their times per draw."""
    generator = np.random.default_rng(0)
    errors = generator.exponential(size=CAPACITY)
    sampler = PrioritizedSampler(CAPACITY, alpha=0.6, eps=1e-6)
    sampler.added(0, CAPACITY)
    sampler.update(np.arange(CAPACITY), errors)
    priorities = sampler.tree.get(np.arange(CAPACITY))
    probabilities = priorities / priorities.sum()
    draws = effort.choose(50, 10)

    def draw_by_tree() -> None:
        rows = sampler.sample(0, CAPACITY, (1, BATCH), 0.4, generator).rows[0]
        sampler.update(rows, errors[rows])

    def draw_by_numpy() -> None:
        generator.choice(CAPACITY, size=BATCH, p=probabilities)

    draw_by_tree()  # compiles
    rows = alternate(
        {"ours": lambda _: _seconds(draw_by_tree, draws), "numpy": lambda _: _seconds(draw_by_numpy, draws)},
        effort.rounds,
    )
    return Outcome(
        ratios={"numpy.random.choice": quotients(rows, "numpy", "ours")},
        details={"rounds": rows},
    )


def _seconds(draw: Callable[[], None], count: int) -> float:
    """Return the median time of one draw."""
    times = []
    for _ in range(count):
        started = time.thread_time()
        draw()
        times.append(time.thread_time() - started)
    return statistics.median(times)
