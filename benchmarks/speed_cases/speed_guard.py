"""Which measured ratios fell too far below the stored ones."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_cases.speed_parts import Benchmark, Effort, Outcome

TOLERATED_FALL = 0.25


def fallen(stored: Mapping[str, Mapping[str, float]], measured: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return, by name, what is said of each ratio whose median fell by more than the tolerated share."""
    found = {}
    for name, values in measured.items():
        if name in stored:
            before, now = stored[name]["median"], statistics.median(values)
            if now < (1 - TOLERATED_FALL) * before:
                found[name] = f"fell by {1 - now / before:.0%}, from {before:.2f} to {now:.2f}"
    return found


def read_stored(name: str, results: Path) -> dict[str, Any] | None:
    """Return the summary of a benchmark, or None where none is stored."""
    path = results / f"speed-{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def check(benchmark: Benchmark, effort: Effort, results: Path) -> tuple[Outcome | None, list[str]]:
    """Measure a benchmark again and return what was found and a sentence for every ratio that fell, twice in a row.

    Nothing is found where no stored ratio can be compared.
    """
    stored = read_stored(benchmark.name, results)
    if stored is None:
        print(f"{benchmark.name}: nothing is stored to compare with; run without --check first")
        return None, []
    if (stored.get("settings"), stored.get("clock")) != (benchmark.settings(effort), benchmark.clock):
        print(f"{benchmark.name}: what is stored was measured in another way; run without --check to store it anew")
        return None, []
    outcome = benchmark.measure(effort)
    for reason in outcome.missing:
        print(f"{benchmark.name}: {reason}")
    unmeasured = [name for name in stored["ratios"] if name not in outcome.ratios]
    if unmeasured:
        print(f"{benchmark.name}: not measured here: {', '.join(unmeasured)}")
    if len(unmeasured) == len(stored["ratios"]):
        return None, []
    falls = fallen(stored["ratios"], outcome.ratios)
    if falls:
        # Other load on the machine passes, a regression stays.
        print(f"{benchmark.name}: below the bar, so measured once more: {', '.join(falls)}")
        again = benchmark.measure(effort)
        outcome.ratios.update({name: again.ratios[name] for name in falls})
        falls = fallen(stored["ratios"], {name: again.ratios[name] for name in falls})
    return outcome, [f"{benchmark.name}: {name} {words}" for name, words in falls.items()]
