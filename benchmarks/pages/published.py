"""What others have published beside what is stored here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pages.comparisons import Comparison
from pages.result_tables import heading, row, score_text
from records import ROOT

FILE = ROOT / "benchmarks" / "published_scores.yaml"
BELOW = "**below**"
_INTRODUCTION = """\
## Beside published figures

Ours are means over seeds of final policies, with the standard deviation over the seeds. Others measure otherwise, and
on other versions of the environments, which is said with each: the peer's column above, trained here by the same
settings, is the fair comparison. Where a published figure is of another number of steps, the last column is empty."""


@dataclass(frozen=True)
class Published:
    """A figure that somebody else has published, of the task of one of our trainings."""

    algo: str
    env_id: str
    steps: int
    """Of our training that it is shown beside."""
    score: float
    spread: float | None
    of: str
    """What was measured, and what the spread means."""
    source: str
    published_steps: int | None = None
    """Where it is of another number of steps."""

    @property
    def text(self) -> str:
        """The figure, with its number of steps where that is another."""
        shown = _spread(self.score, self.spread)
        return shown if self.published_steps is None else f"{shown} after {self.published_steps:,} steps"

    def is_of(self, one: Comparison) -> bool:
        """Return whether a comparison trains the same task."""
        return (self.algo, self.env_id, self.steps) == (one.algo, one.env_id, one.steps)

    def standing(self, mean: float) -> str:
        """Return whether our mean is above or below it; empty where the numbers of steps differ."""
        if self.published_steps is not None:
            return ""
        return BELOW if mean < self.score else "above"


def published_section(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the section on published figures, if anything stored here has one beside it."""
    published = read_published()
    table = heading("environment", "algorithm", "steps", "ours", "published", "of", "source", "ours is")
    first = len(table)
    for one in comparisons:
        ours = one.entries[0]
        for other in published_beside(one, published):
            table.append(
                row(
                    one.env_id,
                    ours.algorithm,
                    f"{one.steps:,}",
                    mean_text(ours.scores),
                    other.text,
                    other.of,
                    other.source,
                    other.standing(statistics.fmean(ours.scores)),
                )
            )
    return [_INTRODUCTION, "\n".join(table)] if len(table) > first else []


def published_beside(one: Comparison, published: Sequence[Published]) -> list[Published]:
    """Return the published figures of a comparison's task, if it has results of ours."""
    return [other for other in published if other.is_of(one)] if one.entries[0].runs else []


def published_text(others: Sequence[Published]) -> str:
    """Return figures with their sources, for a cell of a table."""
    return "; ".join(f"{other.text} ({other.source})" for other in others) or "-"


def read_published() -> list[Published]:
    """Return the published figures."""
    rows: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return [Published(**fields) for fields in rows]


def mean_text(scores: Sequence[float]) -> str:
    """Return the mean of scores, their standard deviation and how many they are."""
    spread = statistics.stdev(scores) if len(scores) > 1 else None
    return f"{_spread(statistics.fmean(scores), spread)} ({len(scores)} seed{'s' * (len(scores) > 1)})"


def _spread(score: float, spread: float | None) -> str:
    return score_text(score) if spread is None else f"{score_text(score)} ± {score_text(spread)}"
