"""The tables of docs/scaling.md: measured times, what the model predicts from them, and its check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages.result_tables import heading, machine, row

FILE = "workers.json"
PAGE = "scaling.md"
_FEW_LEARNERS = (1, 8)


def render_workers(results: Path) -> str:
    """Return the section on the model."""
    path = results / FILE
    if not path.exists():
        return "No results are stored yet."
    content = json.loads(path.read_text(encoding="utf-8"))
    tasks: Mapping[str, Any] = content["tasks"]
    blocks = [
        "Times per rollout, of one process and of a sampler that has all environments:",
        "\n".join(_times(tasks)),
        "Whole runs with samplers on this machine, as multiples of one process with one thread by the clock, and what\n"
        "the model says; threads are those of the run itself, which learns:",
        "\n".join(_checks(tasks)),
        "Predicted environment steps per second with a core for every process, as multiples of one process:",
        "\n".join(_predictions(tasks)),
        f"Measured with {machine([content])}, by `python benchmarks/scaling.py --measure --check`.",
    ]
    return "\n\n".join(blocks)


def _times(tasks: Mapping[str, Any]) -> list[str]:
    columns = ("collect alone, ms", "by a sampler", "of which fixed", "update, ms", "rollout, kB", "weights, kB")
    table = heading("preset", "steps", *columns)
    for name, entry in tasks.items():
        times = entry["times"]
        milliseconds = (f"{1000 * times[key]:.1f}" for key in ("alone_collect", "collect", "collect_fixed", "update"))
        sizes = (f"{times[key] / 1000:,.0f}" for key in ("rollout_bytes", "weight_bytes"))
        table.append(row(f"`{name}`", f"{times['transitions']:,}", *milliseconds, *sizes))
    return table


def _checks(tasks: Mapping[str, Any]) -> list[str]:
    layout = ("samplers", "lag", "threads")
    table = heading("preset", *layout, "measured (smallest to largest)", "model")
    for name, entry in tasks.items():
        for found in entry.get("checks", ()):
            measured = f"{found['median']:.2f} ({found['smallest']:.2f} to {found['largest']:.2f})"
            table.append(row(f"`{name}`", *(found[key] for key in layout), measured, f"{found['predicted']:.2f}"))
    return table


def _predictions(tasks: Mapping[str, Any]) -> list[str]:
    samplers = sorted({found["samplers"] for entry in tasks.values() for found in entry["predictions"]})
    table = heading("preset", "learners", "lag", *(f"{count:,} samplers" for count in samplers))
    for name, entry in tasks.items():
        for learners in _FEW_LEARNERS:
            for lag in (0, 1):
                of_row = {
                    found["samplers"]: found["steps_per_second"] / entry["one_process"]
                    for found in entry["predictions"]
                    if (found["learners"], found["lag"]) == (learners, lag)
                }
                table.append(row(f"`{name}`", learners, lag, *(f"{of_row[count]:.2f}" for count in samplers)))
    return table
