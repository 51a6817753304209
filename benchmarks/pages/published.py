"""What others have published beside what is stored here, at the same number of steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import yaml

from pages.comparisons import ALGORITHM_NAMES, Comparison
from pages.result_tables import heading, row, score_text
from records import ROOT

FILE = ROOT / "benchmarks" / "published_scores.yaml"
_INTRODUCTION = """\
## Beside published figures

Ours are means over seeds of final policies, with the standard deviation over the seeds. Others measure otherwise, and
on other versions of the environments, which is said with each: the peer's column above, trained here by the same
settings, is the fair comparison."""


def published_section(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the section on published figures, if anything stored here has one beside it."""
    published = read_published()
    table = heading("environment", "algorithm", "steps", "ours", "published", "of", "source")
    first = len(table)
    for one in comparisons:
        ours = one.entries[0]
        for other in published if ours.runs else ():
            if (other["algo"], other["env_id"], other["steps"]) == (one.algo, one.env_id, one.steps):
                table.append(
                    row(
                        one.env_id,
                        ALGORITHM_NAMES[one.algo],
                        f"{one.steps:,}",
                        _ours(ours.scores),
                        _spread(float(other["score"]), other["spread"]),
                        other["of"],
                        other["source"],
                    )
                )
    return [_INTRODUCTION, "\n".join(table)] if len(table) > first else []


def read_published() -> list[dict[str, Any]]:
    """Return the published figures."""
    rows: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return rows


def _ours(scores: Sequence[float]) -> str:
    spread = statistics.stdev(scores) if len(scores) > 1 else None
    return f"{_spread(statistics.fmean(scores), spread)} ({len(scores)} seed{'s' * (len(scores) > 1)})"


def _spread(score: float, spread: float | None) -> str:
    return score_text(score) if spread is None else f"{score_text(score)} ± {score_text(spread)}"
