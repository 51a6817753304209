"""Ranks entries by the scores of their seeds: per environment, and per suite on normalised scores.

The score of a seed is the final evaluation of one completed run. Entries are ranked by the interquartile mean over
their distinct seeds. An entry shares a rank if its interval overlaps that of the rank's first entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rl_training.experiment.runs import SUITE_SCORE
from rl_training.experiment.statistics import (
    Interval,
    bootstrap_interval,
    interquartile_mean,
    optimality_gap,
    performance_profile,
    performance_profile_band,
)
from rl_training.zoo.drift import DriftFinding, find_drift, worst_severity
from rl_training.zoo.entries import Entry
from rl_training.zoo.manifests import Manifest, Reference, load_manifests, reference_of

SEEDS_FOR_INTERVAL = 3
SEEDS_FOR_TRUST = 5
PROFILE_THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(41))  # 0 to 2 on the normalised scale


def few_seeds(seeds: int) -> str:
    """Return a warning for a small number of seeds, empty if there are enough."""
    return "low n" if seeds < SEEDS_FOR_TRUST else ""


@dataclass(frozen=True)
class Summary:
    """Statistics of the scores of distinct seeds."""

    seeds: int
    iqm: float
    interval: Interval | None
    """95% interval of the interquartile mean; None below three seeds."""
    median: float
    mean: float
    std: float
    """Population standard deviation."""
    low: float
    high: float

    @classmethod
    def of(cls, scores: Sequence[float]) -> Summary:
        """Summarise at least one score."""
        return cls(
            seeds=len(scores),
            iqm=interquartile_mean(scores),
            interval=bootstrap_interval(scores) if len(scores) >= SEEDS_FOR_INTERVAL else None,
            median=float(np.median(scores)),
            mean=float(np.mean(scores)),
            std=float(np.std(scores)),
            low=min(scores),
            high=max(scores),
        )

    @property
    def note(self) -> str:
        """A warning if there are few seeds."""
        return few_seeds(self.seeds)


@dataclass(frozen=True)
class Standing:
    """The place of one entry on its board."""

    entry: Entry
    rank: int | None
    """None if it has no score."""
    summary: Summary | None
    drift: tuple[DriftFinding, ...]

    @cached_property
    def reference(self) -> Reference | None:
        """The scale of its environment: the manifest's, or for a task of a suite that of the configuration."""
        task = self.entry.task
        if task is None:
            return reference_of(self.entry.env_id)
        return None if task.scale is None else Reference(*task.scale, kind="target", sources=())

    @property
    def normalized(self) -> float | None:
        """Interquartile mean, normalised by the references."""
        if self.summary is None:
            return None
        if self.entry.metric == SUITE_SCORE:
            return self.summary.iqm
        return None if self.reference is None else self.reference.normalize(self.summary.iqm)

    @property
    def normalized_median(self) -> float | None:
        """Interquartile mean over seeds of the median over a suite's tasks; None if it is not recorded."""
        finals = [run.final for run in self.entry.by_seed.values()]
        medians = [final.normalized_median for final in finals if final is not None]
        known = [median for median in medians if median is not None]
        return interquartile_mean(known) if known else None


@dataclass(frozen=True)
class SuiteStanding:
    """Normalised scores of one algorithm over the environments of a suite."""

    suite: str
    algo: str
    environments: tuple[str, ...]
    """The environments that have scores and references; the others are left out."""
    suite_size: int
    """Number of environments of the suite that have references."""
    seeds: int
    """Smallest number of distinct seeds on one of the environments."""
    iqm: float
    interval: Interval | None
    optimality_gap: float
    profile: tuple[float, ...]
    """Fraction of runs above each of `PROFILE_THRESHOLDS`."""
    scores: Mapping[str, Sequence[float]]
    """Normalised score of every seed by environment."""

    @property
    def profile_band(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper end of the profile's 95% interval at each threshold; None below three seeds."""
        if self.seeds < SEEDS_FOR_INTERVAL:
            return None
        return performance_profile_band(self.scores, PROFILE_THRESHOLDS)

    @property
    def note(self) -> str:
        """A warning if there are few seeds."""
        return few_seeds(self.seeds)


def rank_entries(entries: Sequence[Entry]) -> list[Standing]:
    """Return the standings by environment, the best first; entries without a score come last."""
    standings: list[Standing] = []
    for env_id in sorted({entry.env_id for entry in entries}):
        board = [entry for entry in entries if entry.env_id == env_id]
        summaries = {entry.fingerprint: Summary.of(entry.scores) for entry in board if entry.scores}
        scored = sorted(
            (entry for entry in board if entry.scores),
            key=lambda entry: (-summaries[entry.fingerprint].iqm, entry.name),
        )
        ranks = shared_ranks([_extent(summaries[entry.fingerprint]) for entry in scored])
        standings += [
            Standing(entry, rank, summaries[entry.fingerprint], find_drift(entry))
            for entry, rank in zip(scored, ranks, strict=True)
        ]
        standings += [Standing(entry, None, None, find_drift(entry)) for entry in board if not entry.scores]
    return standings


def shared_ranks(extents: Sequence[Interval]) -> list[int]:
    """Return the ranks of intervals that are ordered from best to worst.

    An interval that overlaps the first one of the current rank shares it; the next rank counts all before it.
    """
    ranks: list[int] = []
    leader: Interval | None = None
    for position, extent in enumerate(extents, start=1):
        if leader is not None and extent.high >= leader.low and extent.low <= leader.high:
            ranks.append(ranks[-1])
        else:
            leader = extent
            ranks.append(position)
    return ranks


def suite_standings(standings: Sequence[Standing]) -> tuple[list[SuiteStanding], list[str]]:
    """Return each algorithm's aggregate over each suite, and sentences about what was left out.

    They are ordered by the number of environments and by score, but not ranked, because scores over different sets of
    environments are not comparable.
    """
    found: list[SuiteStanding] = []
    notices: list[str] = []
    for manifest in load_manifests():
        inside = [place for place in standings if place.entry.env_id in manifest.environments and place.summary]
        for algo in sorted({place.entry.algo for place in inside}):
            scores = _suite_scores(algo, [place for place in inside if place.entry.algo == algo], notices)
            if scores:
                found.append(_suite_standing(manifest, algo, scores))
    return sorted(found, key=lambda place: (place.suite, -len(place.environments), -place.iqm, place.algo)), notices


def _suite_scores(algo: str, standings: Sequence[Standing], notices: list[str]) -> dict[str, list[float]]:
    """Return an algorithm's normalised scores by environment, from one comparable entry of each."""
    scores: dict[str, list[float]] = {}
    for env_id in sorted({place.entry.env_id for place in standings}):
        board = [place for place in standings if place.entry.env_id == env_id]
        reference = board[0].reference
        if reference is None:
            continue
        comparable = [place for place in board if worst_severity(place.drift) != "critical"]
        chosen = [place for place in comparable if place.entry.name == place.entry.preset] or comparable
        if len(chosen) == 1:
            scores[env_id] = [reference.normalize(score) for score in chosen[0].entry.scores]
        elif chosen:
            notices.append(
                f"{algo} on {env_id} is left out of the suite: {len(chosen)} configurations and none is a preset's; "
                "name one by --preset or --tag"
            )
        else:
            notices.append(f"{algo} on {env_id} is left out of the suite: critical drift from its protocol")
    return scores


def _suite_standing(manifest: Manifest, algo: str, scores: Mapping[str, list[float]]) -> SuiteStanding:
    seeds = min(map(len, scores.values()))
    return SuiteStanding(
        suite=manifest.suite,
        algo=algo,
        environments=tuple(scores),
        suite_size=sum(reference is not None for reference in manifest.environments.values()),
        seeds=seeds,
        iqm=interquartile_mean(scores),
        interval=bootstrap_interval(scores) if seeds >= SEEDS_FOR_INTERVAL else None,
        optimality_gap=optimality_gap(scores),
        profile=tuple(map(float, performance_profile(scores, PROFILE_THRESHOLDS))),
        scores=scores,
    )


def _extent(summary: Summary) -> Interval:
    """Return the interval, or a point if there is none."""
    return summary.interval or Interval(summary.iqm, summary.iqm)
