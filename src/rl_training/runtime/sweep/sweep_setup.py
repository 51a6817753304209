"""Makes the runner of a sweep, new or continued, from a configuration with seeds."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.benchmarking import SweepSummary, new_summary_path, read_summary, run_place
from rl_training.experiment.checkpoints import newest_sound_checkpoint
from rl_training.experiment.config import TrainConfig, config_to_dict, validate_config
from rl_training.experiment.configuration.config_blocks import BenchmarkParams
from rl_training.experiment.configuration.forks import config_differences
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.own_code.run_code import admit_code, loaded_from_sweep
from rl_training.experiment.own_code.user_code import CodeUse, adopted
from rl_training.experiment.runs import give_up_run
from rl_training.experiment.sweeps import (
    COMPLETED,
    SeedSweepPlan,
    chosen_executor,
    jobs_at_once,
    resolve_benchmark_seeds,
)
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.recording.result import TrainResult
from rl_training.runtime.runner import BenchmarkRunner
from rl_training.runtime.setup.run_setup import RunSetup
from rl_training.runtime.sweep.executors import Executor, SerialExecutor
from rl_training.runtime.sweep.process_executor import ProcessExecutor
from rl_training.runtime.sweep.ray_executor import RayExecutor

logger = logging.getLogger("rl_training")

# Settings that may differ between a sweep and its continuation: they affect where seeds are trained, not the results.
_OPEN_KEYS = ("seed", "output_dir", "benchmark")


@dataclass(frozen=True)
class SeedRunner:
    """The run of one seed, as data that can be sent to another process."""

    manager: ExperimentManager
    config: TrainConfig
    resume_from: Path | None = None
    callbacks: tuple[Callback, ...] = ()
    code: tuple[CodeUse, ...] = ()
    """The code that the names of the configuration refer to in the process that set up the sweep."""
    label: str = ""
    """What messages about it begin with; the seed if empty."""
    fork_of: Path | None = None
    """The run from whose last checkpoint it starts, if not from the beginning."""
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What a fork sets anew, by dotted key."""

    def watched_by(self, *callbacks: Callback) -> SeedRunner:
        """Return the same runner with these callbacks added."""
        return dataclasses.replace(self, callbacks=(*self.callbacks, *callbacks))

    def placed_in(self, output_dir: Path, resume_from: Path | None) -> SeedRunner:
        """Return the same training with another output directory."""
        config = dataclasses.replace(self.config, output_dir=output_dir)
        return dataclasses.replace(self, config=config, resume_from=resume_from)

    def run(self) -> TrainResult:
        """Train the seed, from its checkpoint if there is one."""
        with adopted(self.code):
            if self.resume_from is not None:
                return self.manager.resume(self.resume_from, callbacks=self.callbacks).train()
            if self.fork_of is not None:
                forked = self.manager.resume(self.fork_of, callbacks=self.callbacks, fork=True, overrides=self.changes)
                return forked.train()
            return self.manager.setup(self.config, callbacks=self.callbacks).train()


def setup_sweep(
    manager: ExperimentManager,
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    continue_from: Path | None = None,
    trust_code: bool = False,
) -> BenchmarkRunner:
    """Return the runner of a sweep; `continue_from` is the summary of a sweep whose missing seeds are trained.

    Code that such a summary names is treated as that of a loaded file, unless `trust_code` is given.
    """
    known = None if continue_from is None else read_summary(continue_from)
    if continue_from is None or known is None:
        path = new_summary_path(config.output_dir, config.algo, config.task_name)
    else:
        path = continue_from
        config = _fitted(config, known, path)
    run_config = dataclasses.replace(config, benchmark={})
    loaded = None if known is None else loaded_from_sweep(path, trust_code=trust_code)
    code = admit_code(run_config, loaded)
    with adopted(code):
        setup = RunSetup(run_config, None)  # report a mistake once here instead of as a failure of every seed
    executor, run_config = placed(config, run_config, setup)
    if callbacks and not isinstance(executor, SerialExecutor):
        raise ConfigError(
            "callbacks: objects cannot cross processes; name their classes by the key `callbacks` of the "
            "configuration, or train with jobs 1 and executor serial"
        )
    resume_points, lost = ({}, {}) if known is None else _unfinished_runs(known, path.parent)
    fresh = _fresh_each_time(callbacks)

    def make_runner(seed: int) -> SeedRunner:
        if seed in lost:
            give_up_run(lost[seed], f"killed, and no sound checkpoint is left: {path.name} started seed {seed} anew")
        seed_config = dataclasses.replace(run_config, seed=seed)
        return SeedRunner(manager, seed_config, resume_points.get(seed), fresh(), code)

    plan = SeedSweepPlan(resolve_benchmark_seeds(config))
    return BenchmarkRunner(plan, make_runner, path, config=config_to_dict(config), executor=executor, known=known)


def refuse_executor_without_seeds(config: TrainConfig) -> None:
    """Raise an error if a configuration sets how seeds are executed but has no seeds."""
    stray = ", ".join(f"benchmark.{key}" for key in config.benchmark)
    if stray:
        raise ConfigError(
            f"{stray}: there are no seeds to train; set benchmark.seeds or --seeds 1,2,3, or leave it out"
        )


def placed(config: TrainConfig, run_config: TrainConfig, setup: RunSetup) -> tuple[Executor, TrainConfig]:
    """Return the executor that a configuration chooses, and the configuration of its runs with their threads fixed."""
    chosen, threads = chosen_executor(config), setup.torch.threads
    if chosen == "ray":
        address = BenchmarkParams(**config.benchmark).ray_address
        if threads.by_machine:  # by the cores of this machine: others may have more or fewer, and round differently
            run_config = dataclasses.replace(run_config, torch_threads=threads.number)
        return RayExecutor(address, config.output_dir, gpus=int(setup.device.type == "cuda")), run_config
    if chosen == "processes":
        if threads.by_machine:  # the seeds share the cores
            run_config = dataclasses.replace(run_config, torch_threads=1)
        return ProcessExecutor(jobs_at_once(config)), run_config
    return SerialExecutor(), run_config


def _fresh_each_time(callbacks: Sequence[Callback]) -> Callable[[], tuple[Callback, ...]]:
    """Return a function that copies the callbacks in their present state, so that no seed affects the next."""
    states = [copy.deepcopy(callback.state_dict()) for callback in callbacks]

    def fresh() -> tuple[Callback, ...]:
        for callback, state in zip(callbacks, states, strict=True):
            if state:
                callback.load_state_dict(copy.deepcopy(state))
        return tuple(callbacks)

    return fresh


def _fitted(config: TrainConfig, known: SweepSummary, path: Path) -> TrainConfig:
    """Return the configuration for continuing a sweep; raise an error if it is that of another one."""
    if known.config is None:
        raise ConfigError(f"--continue {path}: the sweep was not made from a configuration, so nothing can go on")
    original = validate_config(known.config)
    if not config.benchmark.get("seeds"):
        config = dataclasses.replace(config, benchmark={**config.benchmark, "seeds": original.benchmark["seeds"]})
    differing = [key for key in config_differences(original, config) if key.partition(".")[0] not in _OPEN_KEYS]
    if config.benchmark["seeds"] != original.benchmark["seeds"]:
        differing.append("benchmark.seeds")
    if differing:
        raise ConfigError(
            f"--continue {path}: the configuration is not that of the sweep, it differs in {', '.join(differing)}; "
            "leave the differences out, or start a new sweep without --continue"
        )
    # A summary that was moved with its runs is continued at its present place.
    same_place = config.output_dir.resolve() == path.parent.resolve()
    return config if same_place else dataclasses.replace(config, output_dir=path.parent)


def _unfinished_runs(known: SweepSummary, directory: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """Return the run directories of unfinished seeds: those with an undamaged checkpoint, and those without."""
    sound: dict[int, Path] = {}
    lost: dict[int, Path] = {}
    for record in known.runs:
        if record.status == COMPLETED or record.run_dir is None:
            continue
        run_dir = run_place(record.run_dir, directory)
        try:
            newest_sound_checkpoint(run_dir)
            sound[record.seed] = run_dir
        except CheckpointError as error:
            logger.warning("seed %d starts anew: %s", record.seed, " ".join(str(error).split()))
            lost[record.seed] = run_dir
    return sound, lost
