"""Sweeps over seeds: the seeds to train, and the result of each."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_blocks import BenchmarkParams
from rl_training.experiment.configuration.validation import check_value, raise_problems
from rl_training.experiment.machine import usable_cores

PENDING, RUNNING, COMPLETED, INTERRUPTED, FAILED = "pending", "running", "completed", "interrupted", "failed"
MOST_SEEDS = 10_000
SHORTEST_IN_PROCESSES = 5_000
"""Environment steps of a run from which on `jobs: auto` starts processes: to start one takes about a second."""
_PATHS = ("run_dir", "checkpoint_path", "best_checkpoint_path")


@dataclass(frozen=True)
class SeedSweepPlan:
    """The distinct seeds of a sweep, in the order of training."""

    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        seeds = [] if self.seeds is None else list(self.seeds)
        params, problems = check_value(BenchmarkParams, {"seeds": seeds}, ("benchmark",))
        raise_problems(problems)
        object.__setattr__(self, "seeds", params.seeds)


def resolve_benchmark_seeds(config: TrainConfig) -> tuple[int, ...]:
    """Return the seeds of the configuration's sweep, an empty tuple for a single run."""
    seeds = config.benchmark.get("seeds")
    return () if seeds is None else SeedSweepPlan(seeds).seeds


def jobs_at_once(config: TrainConfig) -> int:
    """Return how many seeds are trained at the same time on this machine."""
    jobs = BenchmarkParams(**config.benchmark).jobs
    if jobs != "auto":
        return jobs
    if config.total_timesteps < SHORTEST_IN_PROCESSES:
        return 1
    return min(usable_cores().number, len(resolve_benchmark_seeds(config)))


def chosen_executor(config: TrainConfig) -> Literal["serial", "processes", "ray"]:
    """Return how the configuration's seeds are executed."""
    chosen = BenchmarkParams(**config.benchmark).executor
    return chosen or ("processes" if jobs_at_once(config) > 1 else "serial")


def trains_in_this_process(config: TrainConfig) -> bool:
    """Return whether the configuration's seeds, or its one run, are trained in the process that asks for it."""
    return chosen_executor(config) == "serial"


def parse_seeds(text: str) -> list[int | str]:
    """Return the seeds of `--seeds`: numbers and ranges such as `1-3,7`.

    Invalid items stay text; the validation of the configuration reports them.
    """
    seeds: list[int | str] = []
    for item in (part.strip() for part in text.split(",")) if text.strip() else ():
        if re.fullmatch(r"[0-9]{1,40}\s*-\s*[0-9]{1,40}", item):
            seeds += _seed_range(item)
        elif re.fullmatch(r"[0-9]+[0-9\s-]*-[0-9\s-]*", item):
            raise ConfigError(
                f"--seeds: `{item[:40]}` is no range of seeds; write the first and the last, such as 1-10"
            )
        else:
            seeds.append(int(item) if re.fullmatch(r"[+-]?[0-9]{1,40}", item) else item)
    if len(seeds) > MOST_SEEDS:
        raise ConfigError(f"--seeds: {len(seeds)} seeds are more than the {MOST_SEEDS} that a sweep may have")
    return seeds


def _seed_range(text: str) -> range:
    first, last = (int(number) for number in text.split("-"))
    if first > last:
        raise ConfigError(f"--seeds: the range {text} runs backwards; write {last}-{first}")
    if last - first >= MOST_SEEDS:
        raise ConfigError(f"--seeds: the range {text} has more than the {MOST_SEEDS} seeds that a sweep may have")
    return range(first, last + 1)


@dataclass(frozen=True)
class BenchmarkRunRecord:
    """The result of one seed."""

    seed: int
    run_dir: Path | None = None
    checkpoint_path: Path | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The run's final metrics, unchanged."""
    status: str = COMPLETED
    """`pending`, `running`, `completed`, `interrupted` or `failed`."""
    best_checkpoint_path: Path | None = None
    resume_mode: str | None = None
    stop_reason: str | None = None
    duration_seconds: float | None = None
    error: str | None = None
    """Why the seed failed, in one sentence."""
    traceback: str | None = None
    """Traceback of the failure, unless the error is one that the user can act on."""
    signal: int | None = None
    """The signal that interrupted it."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for strict JSON: paths as text, numbers that are not finite as null."""
        record = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        record |= {name: None if record[name] is None else str(record[name]) for name in _PATHS}
        return {**record, "metrics": {name: _finite(value) for name, value in self.metrics.items()}}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> BenchmarkRunRecord:
        """Return the record that `to_json` described; keys of later releases are ignored."""
        known = {entry.name for entry in dataclasses.fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        values |= {name: Path(values[name]) for name in _PATHS if values.get(name) is not None}
        return cls(**values)

    def moved_to(self, run_dir: Path) -> BenchmarkRunRecord:
        """Return the record of the same run in another directory."""

        def moved(path: Path | None) -> Path | None:
            return None if path is None or self.run_dir is None else run_dir / path.relative_to(self.run_dir)

        return dataclasses.replace(
            self,
            run_dir=run_dir,
            checkpoint_path=moved(self.checkpoint_path),
            best_checkpoint_path=moved(self.best_checkpoint_path),
        )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
