"""All comparisons joined on one scale, from the stored scores of both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pages.comparisons import ALGORITHM_NAMES, Comparison, Estimate
from records import OURS, SB3
from rl_training.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    optimality_gap,
    probability_of_improvement,
    probability_of_improvement_interval,
)
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.zoo.leaderboard import SEEDS_FOR_INTERVAL
from rl_training.zoo.manifests import reference_of

AGGREGATE = "aggregate"
IQM, GAP = interquartile_mean, optimality_gap


@dataclass(frozen=True)
class Aggregate:
    """The comparisons that count, each with three seeds or more on both sides."""

    comparisons: tuple[Comparison, ...]

    @cached_property
    def scores(self) -> dict[str, dict[str, list[float]]]:
        """By side, the normalised scores of every comparison."""
        named = list(zip(self.names, self.comparisons, strict=True))
        return {
            side: {name: _normalized(comparison, place) for name, comparison in named}
            for place, side in enumerate((OURS, SB3))
        }

    @property
    def run_count(self) -> int:
        """Runs of both sides."""
        return sum(len(scores) for tasks in self.scores.values() for scores in tasks.values())

    @property
    def names(self) -> list[str]:
        """What each comparison is called."""
        return [f"{ALGORITHM_NAMES[one.algo]}, {one.place}" for one in self.comparisons]

    def estimate(self, statistic: Callable[..., float], side: str) -> Estimate:
        """Return a statistic over all runs of a side."""
        scores = self.scores[side]
        return Estimate(statistic(scores), bootstrap_interval(scores, statistic))

    def improvement(self) -> Estimate:
        """Return how probably a run of ours scores above one of the peer's, averaged over the comparisons."""
        ours, peer = self.scores[OURS], self.scores[SB3]
        return Estimate(probability_of_improvement(ours, peer), probability_of_improvement_interval(ours, peer))


def read_aggregate(comparisons: Sequence[Comparison]) -> Aggregate | None:
    """Return what can be joined, or None where there is nothing."""
    longest: dict[tuple[str, str], Comparison] = {}
    for one in comparisons:
        if not one.paired or any(len(entry.runs) < SEEDS_FOR_INTERVAL for entry in one.entries):
            continue
        if reference_of(one.env_id) is None:
            continue
        known = longest.setdefault((one.algo, one.env_id), one)
        if one.steps > known.steps:
            longest[one.algo, one.env_id] = one
    return Aggregate(tuple(longest.values())) if longest else None


def store_aggregate(aggregate: Aggregate, results: Path) -> None:
    """Store the numbers of the page."""
    write_json_atomically(results / f"{AGGREGATE}.json", describe(aggregate))


def describe(aggregate: Aggregate) -> dict[str, Any]:
    """Return the numbers of the page, by comparison and over all of them."""
    return {
        "benchmark": AGGREGATE,
        "comparisons": [
            {
                "name": name,
                "files": [entry.path.name for entry in one.entries],
                "seeds": [len(entry.runs) for entry in one.entries],
                "probability_of_improvement": _plain(one.improvement()),
            }
            for name, one in zip(aggregate.names, aggregate.comparisons, strict=True)
        ],
        "probability_of_improvement": _plain(aggregate.improvement()),
        **{
            key: {side: _plain(aggregate.estimate(statistic, side)) for side in (OURS, SB3)}
            for key, statistic in (("iqm", IQM), ("optimality_gap", GAP))
        },
    }


def _normalized(comparison: Comparison, side: int) -> list[float]:
    reference = reference_of(comparison.env_id)
    assert reference is not None
    return [reference.normalize(score) for score in comparison.entries[side].scores]


def _plain(estimate: Estimate | None) -> dict[str, float]:
    assert estimate is not None
    assert estimate.interval is not None
    return {"value": estimate.value, "low": estimate.interval.low, "high": estimate.interval.high}
