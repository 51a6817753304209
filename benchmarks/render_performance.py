"""The tables of `docs/performance.md`, from the stored summaries of `speed.py` and `limits.py`.

`python benchmarks/render_results.py` writes them with the other pages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from result_tables import heading, row, versions
from speed_parts import spread_words

PAGE = "performance.md"
_AXES = {"width": "width of both hidden layers", "environments": "environments", "replay": "transitions in the replay"}


def render_performance(results_dir: Path) -> str:
    """Return the section between the page's markers: ratios, growth, limits, and where they come from."""
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results_dir.glob("*.json"))]
    speeds = [entry for entry in stored if str(entry.get("benchmark", "")).startswith("speed-")]
    limits = [entry for entry in stored if entry.get("benchmark") == "limits"]
    blocks: list[Sequence[str]] = [["### Ratios"], _ratios(speeds)]
    blocks += [_checkpoints(entry) for entry in speeds if "share_of_training" in entry]
    for entry in speeds:
        if entry.get("growth"):
            blocks += [["### How the cost grows"], [f"{entry['settings'].capitalize()}."], _growth(entry["growth"])]
    for entry in limits:
        blocks += [["### How far the limit is"], _limits(entry["cases"])]
    if speeds or limits:
        blocks += [["### Sources"], _sources([*speeds, *limits]), versions([*speeds, *limits])]
    return "\n\n".join("\n".join(block) for block in blocks)


def _ratios(speeds: Sequence[dict[str, Any]]) -> list[str]:
    table = heading("benchmark", "against", "median (smallest..largest)")
    for entry in speeds:
        if entry.get("growth"):  # one line per point would be no table to read
            continue
        name = entry["benchmark"].removeprefix("speed-")
        for against, ratio in entry["ratios"].items():
            table.append(row(name, against, spread_words(ratio)))
    return table


def _checkpoints(entry: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{share:.1%} of {algo}'s" for algo, share in entry["share_of_training"].items())
    return [f"Checkpoints, ten per training, take {shares} time in the trainings measured here."]


def _growth(points: Sequence[dict[str, Any]]) -> list[str]:
    table = heading("algorithm", "what grows", "to", "ours: µs per step", "growth", "stable-baselines3", "growth")
    for point in points:
        peer = [point.get(f"stable_baselines3_{key}", "-") for key in ("microseconds_per_step", "growth")]
        table.append(
            row(
                point["algo"],
                _AXES[point["axis"]],
                f"{point['value']:,}",
                point["ours_microseconds_per_step"],
                point["ours_growth"],
                *peer,
            )
        )
    return table


def _limits(cases: Sequence[dict[str, Any]]) -> list[str]:
    table = heading("algorithm", "update, µs", "its products alone, µs", "share", "GFLOPS", "collecting a step, µs")
    for case in cases:
        table.append(
            row(
                case["algo"],
                f"{case['update_microseconds']:,}",
                f"{case['products_microseconds']:,}",
                f"{case['share_of_products']:.0%}",
                case["gflops_of_products"],
                case["collect_microseconds_per_step"],
            )
        )
    return table


def _sources(entries: Sequence[dict[str, Any]]) -> list[str]:
    table = heading("benchmark", "command", "settings", "whose time", "not measured")
    for entry in entries:
        missing = "; ".join(entry.get("missing", ())) or "-"
        table.append(row(entry["benchmark"], f"`{entry['command']}`", entry["settings"], entry["clock"], missing))
    return table
