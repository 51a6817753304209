"""What every speed benchmark shares: alternating rounds, ratios with their spread, and peers that may be missing."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PEERS = ROOT / "build"
"""Where peers are installed whose requirements do not fit ours."""
PACKAGES = ("axiomrl", "torch", "gymnasium", "numpy", "numba", "stable_baselines3", "mctx", "jax", "envpool", "Box2D")

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    """How often the sides alternate."""
    quick: bool = False

    def choose(self, full: T, quick: T) -> T:
        """Return which of two amounts of work is meant."""
        return quick if self.quick else full


@dataclass
class Outcome:
    """What a benchmark found."""

    settings: str
    clock: str
    """Whose time was measured."""
    ratios: dict[str, list[float]]
    """One per round, by name; the higher, the better for this package."""
    missing: list[str] = field(default_factory=list)
    """Why peers were not measured, and how to get them."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else is stored."""


@dataclass(frozen=True)
class Benchmark:
    """One entry of the command."""

    name: str
    measure: Callable[[Effort], Outcome]
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


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return how ratios are stored."""
    return {
        "median": round(statistics.median(values), 4),
        "smallest": round(min(values), 4),
        "largest": round(max(values), 4),
    }


def spread_words(ratio: Mapping[str, float]) -> str:
    """Return a stored ratio in words; old files know the median alone."""
    if "smallest" not in ratio:
        return f"{ratio['median']:.2f}"
    return f"{ratio['median']:.2f} ({ratio['smallest']:.2f}..{ratio['largest']:.2f})"


def summary(name: str, outcome: Outcome, command: str) -> dict[str, Any]:
    """Return what is stored of a benchmark."""
    return {
        "benchmark": f"speed-{name}",
        "command": command,
        "settings": outcome.settings,
        "clock": outcome.clock,
        "ratios": {ratio: spread(values) for ratio, values in outcome.ratios.items()},
        "missing": outcome.missing,
        **outcome.details,
        "versions": installed_versions(PACKAGES),
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
    }


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are there."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
