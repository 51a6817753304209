"""The tables of `docs/performance.md`, from the stored summaries of `speed.py` and `limits.py`.

`python benchmarks/render_results.py` writes them with the other pages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages.result_tables import heading, row, versions
from speed_cases.speed_parts import spread, spread_words
from speed_cases.speed_targets import ROUNDS, TARGETS

PAGE = "performance.md"
_AXES = {"width": "width of both hidden layers", "environments": "environments", "replay": "transitions in the replay"}


def render_performance(results_dir: Path) -> str:
    """Return the section between the page's markers: targets, ratios, growth, limits, and where they come from."""
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results_dir.glob("*.json"))]
    speeds = [entry for entry in stored if str(entry.get("benchmark", "")).startswith("speed-")]
    limits = [entry for entry in stored if entry.get("benchmark") == "limits"]
    blocks: list[Sequence[str]] = [["### Targets"], *_targets(speeds), ["### Ratios"], _ratios(speeds)]
    prepared = _preparation(speeds)
    if prepared:
        blocks += [["### Before the first counted step"], *prepared]
    blocks += [_checkpoints(entry) for entry in speeds if "share_of_training" in entry]
    for entry in speeds:
        if entry.get("growth"):
            blocks += [["### How the cost grows"], [f"{entry['settings'].capitalize()}."], _growth(entry["growth"])]
    for entry in limits:
        blocks += [["### How far the limit is"], *_limits(entry)]
    if speeds or limits:
        blocks += [["### Sources"], _sources([*speeds, *limits]), versions([*speeds, *limits])]
    return "\n\n".join("\n".join(block) for block in blocks)


def _targets(speeds: Sequence[dict[str, Any]]) -> list[Sequence[str]]:
    """Return every target with the ratio that is stored beside it."""
    stored = {entry["benchmark"].removeprefix("speed-"): entry for entry in speeds}
    table = heading("benchmark", "against", "target", "median (smallest..largest)", "rounds", "reached")
    for name, targets in TARGETS.items():
        for against, target in targets.items():
            ratio = stored[name]["ratios"].get(against) if name in stored else None
            if ratio is None:
                table.append(row(name, against, f"{target:g}", "not measured yet", "-", "-"))
                continue
            rounds = _rounds(stored[name])
            reached = "too few rounds" if rounds < ROUNDS else "yes" if ratio["median"] >= target else "no"
            table.append(row(name, against, f"{target:g}", spread_words(ratio), rounds, reached))
    return [[f"A target is reached where the median of at least {ROUNDS} rounds is not below it."], table]


def _rounds(entry: dict[str, Any]) -> int:
    """Return how often the sides alternated, as the command says."""
    return int(str(entry["command"]).rpartition("--rounds ")[2])


def _preparation(speeds: Sequence[dict[str, Any]]) -> list[Sequence[str]]:
    """Return how long each side took until its steps were counted, where that is stored."""
    table = heading("benchmark", "side", "seconds of the processor, median (smallest..largest)")
    lines = len(table)
    for entry in speeds:
        rounds = entry.get("rounds") or [{}]
        for side, measured in rounds[0].items():
            if isinstance(measured, dict) and "preparation_seconds" in measured:
                seconds = spread([one[side]["preparation_seconds"] for one in rounds])
                table.append(row(entry["benchmark"].removeprefix("speed-"), side, spread_words(seconds)))
    if len(table) == lines:
        return []
    explanation = [
        "Making environments and networks, compiling, the random steps of a warm-up: no ratio contains them. Imports",
        "are left out. JAX compiles in every process; what numba compiled once, later processes read from its files.",
    ]
    return [explanation, table]


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


def _limits(entry: dict[str, Any]) -> list[Sequence[str]]:
    """Return the table of updates beside their products; where an older commit was measured, beside that too."""
    cases = entry["cases"]
    compared = "before" in entry
    was = ("update then, µs", "share then", "collecting a step then, µs") if compared else ()
    table = heading(
        *("algorithm", "update, µs", "its products alone, µs", "share", "GFLOPS", "collecting a step, µs"), *was
    )
    for case in cases:
        cells = [
            case["algo"],
            f"{case['update_microseconds']:,}",
            f"{case['products_microseconds']:,}",
            f"{case['share_of_products']:.0%}",
            case["gflops_of_products"],
            case["collect_microseconds_per_step"],
        ]
        if compared:
            then = case["before"]
            cells += [
                f"{then['update_microseconds']:,}",
                f"{then['share_of_products']:.0%}",
                then["collect_microseconds_per_step"],
            ]
        table.append(row(*cells))
    return [[f"Then: at commit {entry['before']}, measured in turn with the present."], table] if compared else [table]


def _sources(entries: Sequence[dict[str, Any]]) -> list[str]:
    table = heading("benchmark", "command", "settings", "whose time", "not measured")
    for entry in entries:
        missing = "; ".join(entry.get("missing", ())) or "-"
        others = "; ".join(f"{ratio}: {clock}" for ratio, clock in entry.get("clocks", {}).items())
        clock = f"{entry['clock']} ({others})" if others else entry["clock"]
        table.append(row(entry["benchmark"], f"`{entry['command']}`", entry["settings"], clock, missing))
    return table
