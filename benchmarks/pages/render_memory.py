"""The table of tasks that need a memory: policies that have one, those of the peer, and stacked observations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from learning_suites import Cell
from pages.comparisons import Comparison, Entry, read_comparisons
from pages.result_tables import heading, row, score_text, span, versions
from records import OURS

PAGE = "environments.md"
_WAYS = {
    "": "memory, the preset",
    "zoo": "memory, RL Zoo's settings",
    "zoo_short": "memory, RL Zoo's settings, shorter sequences",
    "separate": "memory, the critic's apart",
    "stacked": "the last four observations",
}


def render_memory(cells: Sequence[Cell], results: Path) -> str:
    """Return the table of what is stored of these cells, how they compare with the peer, and how to repeat them."""
    comparisons = sorted(read_comparisons(cells, results), key=lambda one: one.env_id)  # stable: the suite's order
    table = heading("task", "way", "side", "steps", "seeds", "IQM [interval]", "mean", "worst", "best")
    shown = [(one, entry) for one in comparisons for entry in one.entries if entry.runs]
    table += [_line(one, entry) for one, entry in shown]
    if not shown:
        return "No results are stored yet."
    beside = [text for one in comparisons if (text := _improvement(one))]
    further = [["Probability of improvement over sb3-contrib's recurrent PPO: " + "; ".join(beside) + "."]]
    command = ["```text", "python benchmarks/learning.py --suite memory", "```"]
    blocks = [table, *(further if beside else []), versions([dict(entry.summary) for _, entry in shown])]
    return "\n\n".join("\n".join(block) for block in [*blocks, ["To repeat them:"], command])


def _task(comparison: Comparison) -> str:
    return comparison.env_id.rpartition(":")[2]


def _line(comparison: Comparison, entry: Entry) -> str:
    scores = entry.scores
    return row(
        f"`{_task(comparison)}`",
        _WAYS[comparison.cell.label],
        "ours" if entry.side == OURS else "sb3-contrib",
        span([run["steps"] for run in entry.runs]),
        len(scores),
        entry.estimate().text(score_text),
        *(score_text(value) for value in (statistics.fmean(scores), min(scores), max(scores))),
    )


def _improvement(comparison: Comparison) -> str | None:
    chance = comparison.improvement()
    return None if chance is None else f"`{_task(comparison)}` {chance.text('{:.2f}'.format)}"
