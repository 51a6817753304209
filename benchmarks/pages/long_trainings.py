"""Trainings at lengths that count, on the page of each algorithm: scores, kills, and published figures beside them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from learning_suites import PROOF
from pages.comparisons import Comparison, read_comparisons
from pages.published import BELOW, Published, mean_text, published_beside, published_text, read_published
from pages.result_tables import heading, row

_EXPLANATION = [
    "Long trainings, with their curves and stable-baselines3's on the [results page](../results.md). Those that were",
    "killed and resumed are counted; they go on exactly, but for LunarLander's, which start new episodes. Published",
    "figures are of other versions of the environments and measured otherwise, as said there:",
]


def long_training_blocks(results: Path, algorithms: Sequence[str]) -> list[list[str]]:
    """Return the table of these algorithms' long trainings, and which of them fall short of a published figure."""
    found = [one for one in read_comparisons(PROOF, results) if one.algo in algorithms and one.entries[0].runs]
    if not found:
        return []
    published = read_published()
    table = heading("preset", "settings", "environment", "steps", "score", "killed and resumed", "published")
    for one in found:
        ours = one.entries[0]
        table.append(
            row(
                f"`{one.cell.preset}`",
                one.cell.variant or "its own",
                one.env_id,
                f"{one.steps:,}",
                mean_text(ours.scores),
                f"{sum(bool(run.get('resumed_at_steps')) for run in ours.runs)} of {len(ours.runs)}",
                published_text(published_beside(one, published)),
            )
        )
    return [_EXPLANATION, table, [_shortfalls(found, published)]]


def _shortfalls(found: Sequence[Comparison], published: Sequence[Published]) -> str:
    """Return which presets score below a published figure of the same number of steps, in a sentence."""
    short = [
        f"`{one.cell.preset}` at {one.steps:,} steps ({other.source})"
        for one in found
        if not one.cell.variant
        for other in published_beside(one, published)
        if other.standing(statistics.fmean(one.entries[0].scores)) == BELOW
    ]
    return f"Presets below a published figure of the same number of steps: {', '.join(short) or 'none'}."
