"""What the speed benchmarks share: alternating rounds, ratios with their spread, and peers that may be missing."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from peers import older_checkout
from records import origin

COMMAND_LINE = (sys.executable, "-c", "import sys; from rl_training.cli import main; sys.exit(main())")
"""Starts `axiomrl` of the package that is imported here."""

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    """How often the sides alternate."""
    quick: bool = False
    before: Path = older_checkout.FOLDER
    """An older checkout of this package, for what is compared with itself."""

    def choose(self, full: T, quick: T) -> T:
        """Return which of two amounts of work is meant."""
        return quick if self.quick else full


@dataclass
class Outcome:
    """What a benchmark found."""

    ratios: dict[str, list[float]]
    """One per round, by name; the higher, the better for this package."""
    missing: list[str] = field(default_factory=list)
    """Why peers were not measured, and how to get them."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else is stored."""
    clocks: dict[str, str] = field(default_factory=dict)
    """Whose time a ratio compares, by its name, where it is not the benchmark's."""


@dataclass(frozen=True)
class Benchmark:
    """One entry of the command."""

    name: str
    measure: Callable[[Effort], Outcome]
    settings: Callable[[Effort], str]
    """What is measured, in words; results of other words cannot be compared."""
    clock: str = "processor time"
    """Whose time is measured, unless the outcome says otherwise of a ratio."""
    rounds: int = 5


def alternate(sides: Mapping[str, Callable[[int], T]], rounds: int) -> list[dict[str, T]]:
    """Measure every side once per round, numbered from 1, forwards and backwards in turn; return the rounds."""
    rows, names = [], list(sides)
    for number in range(1, rounds + 1):
        measured = {name: sides[name](number) for name in (names if number % 2 else names[::-1])}
        rows.append({name: measured[name] for name in names})
    return rows


def quotients(rows: Sequence[Mapping[str, float]], above: str, below: str) -> list[float]:
    """Return one side's numbers divided by the other's, round by round."""
    return [row[above] / row[below] for row in rows]


def quickest(make: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the quickest of some calls, which other load on the machine disturbed least."""
    times = []
    for _ in range(repeats):
        started = clock()
        make()
        times.append(clock() - started)
    return min(times)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return how ratios are stored."""
    return {
        "median": round(statistics.median(values), 4),
        "smallest": round(min(values), 4),
        "largest": round(max(values), 4),
    }


def spread_words(ratio: Mapping[str, float]) -> str:
    """Return a stored ratio in words."""
    return f"{ratio['median']:.2f} ({ratio['smallest']:.2f}..{ratio['largest']:.2f})"


def summary(benchmark: Benchmark, outcome: Outcome, effort: Effort) -> dict[str, Any]:
    """Return what is stored of a benchmark."""
    return {
        "benchmark": f"speed-{benchmark.name}",
        "command": f"python benchmarks/speed.py --only {benchmark.name} --rounds {effort.rounds}",
        "settings": benchmark.settings(effort),
        "clock": benchmark.clock,
        "ratios": {ratio: spread(values) for ratio, values in outcome.ratios.items()},
        "missing": outcome.missing,
        **({"clocks": outcome.clocks} if outcome.clocks else {}),
        **outcome.details,
        **origin(),
    }
