"""The stored results of both sides, cell by cell of the learning suite, as pages and plots show them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from learning import CONTRIBUTED, Job, differences, result_path, stored
from learning_suites import Cell
from records import OURS, SB3
from rl_training.experiment.statistics import (
    Interval,
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    probability_of_improvement_interval,
)
from rl_training.zoo.leaderboard import SEEDS_FOR_INTERVAL

ALGORITHM_NAMES = {
    "ppo": "PPO",
    "dqn": "DQN",
    "sac": "SAC",
    "td3": "TD3",
    "crossq": "CrossQ",
    "droq": "DroQ",
    "tqc": "TQC",
    "rainbow": "Rainbow",
    "muzero": "MuZero",
    "gumbel_muzero": "Gumbel MuZero",
    "efficientzero": "EfficientZero",
}
PEER_ALGORITHMS = ("ppo", "dqn", "sac", "td3", *CONTRIBUTED)
"""Those that can be trained on both sides (`peers/stable_baselines3_models.py`), the last two by sb3-contrib."""
SIDE_NAMES = {OURS: "ours", SB3: "stable-baselines3"}


class Estimate(NamedTuple):
    """A number about several seeds, and its 95 % interval where there are seeds enough for one."""

    value: float
    interval: Interval | None

    def text(self, of: Callable[[float], str]) -> str:
        """Return the number and its interval in words, given how one number is written."""
        if self.interval is None:
            return of(self.value)
        return f"{of(self.value)} [{of(self.interval.low)}, {of(self.interval.high)}]"


@dataclass(frozen=True)
class Entry:
    """What is stored of one side of a comparison."""

    algo: str
    env_id: str
    side: str
    path: Path
    summary: Mapping[str, Any]
    seeds_wanted: int
    variant: str = ""

    @cached_property
    def runs(self) -> list[dict[str, Any]]:
        """The rows of the seeds that have finished, in order."""
        return sorted(self.summary["runs"], key=lambda run: int(run["seed"]))

    @property
    def algorithm(self) -> str:
        """The algorithm in words, with what tells its options apart."""
        return ", ".join(filter(None, (ALGORITHM_NAMES[self.algo], self.variant)))

    @property
    def name(self) -> str:
        """The algorithm and the side, for tables and legends."""
        return f"{self.algorithm}, {SIDE_NAMES[self.side]}"

    @property
    def scores(self) -> list[float]:
        """The score of each seed: the mean return of its final policy."""
        return [run["eval_return_mean"] for run in self.runs]

    @property
    def finished(self) -> bool:
        """Whether there are as many seeds as the suite wants."""
        return len(self.runs) >= self.seeds_wanted

    def estimate(self) -> Estimate:
        """Return the interquartile mean of the scores, of which there is at least one."""
        enough = len(self.runs) >= SEEDS_FOR_INTERVAL
        return Estimate(interquartile_mean(self.scores), bootstrap_interval(self.scores) if enough else None)

    def minutes(self, key: str) -> tuple[float, int] | None:
        """Return the median minutes of a time that rows may have, and how many have it."""
        seconds = [run[key] for run in self.runs if key in run]
        return (statistics.median(seconds) / 60, len(seconds)) if seconds else None


@dataclass(frozen=True)
class Comparison:
    """One algorithm on one environment, on both sides or on ours alone."""

    cell: Cell
    entries: tuple[Entry, ...]

    @property
    def algo(self) -> str:
        """The algorithm's name in configurations."""
        return self.entries[0].algo

    @property
    def env_id(self) -> str:
        """The environment."""
        return self.entries[0].env_id

    @property
    def place(self) -> str:
        """Which section and picture shows it: the environment, or its long trainings of the same length."""
        by_length = self.cell.suite == "proof" and not self.cell.beside_other_lengths
        return f"{self.env_id} at {_steps_text(self.steps)} steps" if by_length else self.env_id

    @property
    def steps(self) -> int:
        """The budget of each seed."""
        return next(int(entry.summary["config"]["total_timesteps"]) for entry in self.entries if entry.runs)

    @property
    def paired(self) -> bool:
        """Whether the peer is trained too."""
        return len(self.entries) > 1

    @property
    def finished(self) -> bool:
        """Whether every side has its seeds."""
        return all(entry.finished for entry in self.entries)

    def improvement(self) -> Estimate | None:
        """Return how probably a run of ours scores above one of the peer's; None where seeds are too few to tell."""
        if not self.paired or any(len(entry.runs) < SEEDS_FOR_INTERVAL for entry in self.entries):
            return None
        ours, peer = (entry.scores for entry in self.entries)
        return Estimate(probability_of_improvement(ours, peer), probability_of_improvement_interval(ours, peer))


def read_comparisons(cells: Sequence[Cell], results: Path) -> list[Comparison]:
    """Return every cell with what is stored of it, which may be nothing; a long training only if it has results."""
    found = [_read(cell, results) for cell in cells]
    return [one for one in found if one.cell.suite != "proof" or any(entry.runs for entry in one.entries)]


def environments(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Return the comparisons of each environment, in the order of the suites."""
    found: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        found.setdefault(comparison.place, []).append(comparison)
    return found


def _read(cell: Cell, results: Path) -> Comparison:
    config = Job(cell, OURS, seed=0, output_dir=Path("runs"), episodes=0).config()
    entries = []
    for side in cell.sides:
        path = result_path(cell, side, results)
        entry = Entry(config.algo, config.task_name, side, path, stored(path), len(cell.seeds_of(side)), cell.variant)
        seeds = [run["seed"] for run in entry.runs]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{path} holds a seed twice: its seeds are {seeds}")
        entries.append(entry)
    configs = [entry.summary["config"] for entry in entries if entry.runs]
    changed = [key for config in configs[1:] for key in differences(configs[0], config)]
    if changed:
        raise ValueError(f"the sides of {cell.preset} were trained with another {', '.join(changed)}")
    return Comparison(cell, tuple(entries))


def _steps_text(steps: int) -> str:
    return f"{steps // 1_000_000}M" if steps % 1_000_000 == 0 else f"{steps // 1_000}k"
