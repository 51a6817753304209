"""The tables of offline learning: what must hold between stored results, and the datasets that they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pages.result_tables import heading, row, score_text

FILE = "offline-relations.json"
PAGE = "datasets.md"
_WORDS = {
    "imitates": "reaches 95 % of the way from random actions to the behaviour",
    "fails": "stays below half of the way from random actions to the behaviour",
    "above": "has a higher interquartile mean than",
    "beats": "beats, by intervals that do not overlap,",
    "matches": "has a probability of improvement of at least 0.45 over",
    "reaches": "reaches in half of the steps the mean of",
}


def read_relations(results: Path) -> dict[str, Any]:
    """Return what is stored, or nothing."""
    path = results / FILE
    if not path.exists():
        return {"datasets": {}, "relations": []}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def relation_blocks(results: Path, algorithms: Sequence[str]) -> list[list[str]]:
    """Return the table of the relations that are about these algorithms."""
    found = [entry for entry in read_relations(results)["relations"] if entry["one"].split("-")[0] in algorithms]
    if not found:
        return []
    explanation = [
        "What must hold between results, whatever the scores are. Scores are interquartile means over the seeds with",
        "95 % intervals; [datasets](../datasets.md#datasets-to-start-with) says where the datasets come from.",
    ]
    if any(entry["relation"] == "matches" for entry in found):
        explanation += [
            "Comparisons with d3rlpy began with five seeds a side. More were trained, on both sides alike, while the",
            "probability of improvement lay below 0.45, which its interval, that of the last look, does not know.",
        ]
    table = heading("result", "seeds", "score", "relation", "to", "its score", "measured", "holds")
    for entry in found:
        other = entry.get("other_scores")
        table.append(
            row(
                f"`{entry['one']}`",
                entry["one_scores"]["seeds"],
                _estimate(entry["one_scores"]),
                _WORDS[entry["relation"]],
                f"`{entry['other']}`" + (f" at step {entry['at_step']:,}" if "at_step" in entry else ""),
                score_text(entry["behaviour"]) if other is None else _estimate(other),
                _chance(entry),
                "yes" if entry["holds"] else "**no**",
            )
        )
    return [explanation, table]


def _estimate(scores: Mapping[str, Any]) -> str:
    text = score_text(scores["iqm"])
    if scores["low"] is None:
        return text
    return f"{text} [{score_text(scores['low'])}, {score_text(scores['high'])}]"


def _chance(entry: Mapping[str, Any]) -> str:
    if "probability_of_improvement" not in entry:
        return f"{entry.get('reached', entry.get('reached_at_most')):.0%} of the way"
    text = f"probability of improvement {entry['probability_of_improvement']:.2f}"
    if "probability_low" in entry:
        text += f" [{entry['probability_low']:.2f}, {entry['probability_high']:.2f}]"
    return text


def render_datasets(results: Path) -> str:
    """Return the table of the datasets of the benchmark."""
    table = heading("dataset", "episodes", "steps", "mean return", "lowest", "highest")
    for name, entry in sorted(read_relations(results)["datasets"].items()):
        returns = (score_text(entry[f"return_{key}"]) for key in ("mean", "min", "max"))
        table.append(row(f"`{name}`", f"{entry['episodes']:,}", f"{entry['steps']:,}", *returns))
    return "\n".join(table)
