"""Where the runs of a study are trained, and how many at a time."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_blocks import BenchmarkParams
from rl_training.experiment.configuration.validation import check_value, raise_problems
from rl_training.experiment.machine import usable_cores
from rl_training.experiment.sweeps import SHORTEST_IN_PROCESSES, chosen_executor
from rl_training.experiment.tuning.study import RUNS, Study
from rl_training.runtime.setup.run_setup import RunSetup
from rl_training.runtime.sweep.executors import Executor
from rl_training.runtime.sweep.ray_executor import RayExecutor
from rl_training.runtime.sweep.sweep_setup import placed

Jobs = int | Literal["auto"]


@dataclass(frozen=True)
class Placing:
    """Where the runs of a study are trained, and for how long it begins new trials; no run's result depends on it."""

    jobs: Jobs = "auto"
    """Runs at the same time; `auto`: as many as there are cores."""
    executor: str | None = None
    ray_address: str | None = None
    hours: float | None = None
    """After so many hours no trial begins any more."""

    def __post_init__(self) -> None:
        if self.jobs != "auto" and self.jobs < 1:
            raise ConfigError(f"--jobs: must be an integer >= 1 or auto, got {self.jobs}")
        if self.jobs not in (1, "auto") and self.executor == "serial":
            raise ConfigError(f"--jobs: {self.jobs} does not go with --executor serial; leave one of them out")
        if self.hours is not None and not self.hours > 0:
            raise ConfigError(f"--hours: must be above 0, got {self.hours:g}")
        chosen = {"executor": self.executor, "ray_address": self.ray_address}
        raise_problems(check_value(BenchmarkParams, chosen, ("benchmark",))[1])

    def deadline(self) -> float | None:
        """Return until when trials may begin, by `time.monotonic`; None if there is no limit."""
        return None if self.hours is None else time.monotonic() + 3600 * self.hours

    def benchmark(self, start: TrainConfig, study: Study) -> dict[str, Any]:
        """Return the block of a configuration that trains seeds in this way."""
        if self.executor == "ray":
            return {"executor": "ray", "ray_address": self.ray_address}
        return {"executor": self.executor, "jobs": self._jobs_here(start, study)}

    def place(
        self, start: TrainConfig, study: Study, directory: Path, setup: RunSetup
    ) -> tuple[Executor, TrainConfig, int]:
        """Return the executor, the configuration of the runs, and how many of them are trained at a time."""
        benchmark = {"seeds": list(study.seeds), **self.benchmark(start, study)}
        config = dataclasses.replace(start, benchmark=benchmark, output_dir=directory / RUNS)
        executor, run_config = placed(config, start, setup)
        executor.prepare()
        if isinstance(executor, RayExecutor):
            return executor, run_config, self._jobs_of_cluster()
        return executor, run_config, benchmark["jobs"] if chosen_executor(config) == "processes" else 1

    def _jobs_here(self, start: TrainConfig, study: Study) -> int:
        if self.jobs != "auto":
            return self.jobs
        if self.executor == "serial" or start.total_timesteps < SHORTEST_IN_PROCESSES:
            return 1
        return min(usable_cores().number, study.trials * len(study.seeds))

    def _jobs_of_cluster(self) -> int:
        if self.jobs != "auto":
            return self.jobs
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1)))
