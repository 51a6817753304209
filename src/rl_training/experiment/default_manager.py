"""The manager behind the command line and the Python workflows."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.checkpoints import Checkpoint, ResumePoint, newest_sound_checkpoint
from rl_training.experiment.config import TrainConfig, check_config
from rl_training.experiment.configuration.config_files import overlay_config
from rl_training.experiment.configuration.forks import changed_settings
from rl_training.experiment.manager import Runner, Trainer
from rl_training.experiment.named_callbacks import CALLBACKS, dropped_callbacks
from rl_training.experiment.own_code.run_code import (
    admit_code,
    changed_code,
    checkpoint_config,
    loaded_from,
    loaded_from_sweep,
)
from rl_training.experiment.registry import admit_algorithm, get_algorithm_spec
from rl_training.experiment.runs import dependency_versions
from rl_training.experiment.sweeps import resolve_benchmark_seeds
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ranks.placement import placed_config, refuse_ranks_of_sweeps
from rl_training.runtime.runner import FunctionRunner
from rl_training.runtime.session import TrainResult
from rl_training.runtime.setup.dataset_setup import with_dataset
from rl_training.runtime.setup.warm_start import with_fixed_init
from rl_training.runtime.sweep.sweep_setup import refuse_executor_without_seeds, setup_sweep

logger = logging.getLogger("rl_training")


@dataclass(frozen=True)
class AlgorithmTrainer:
    """Trains one run with the algorithm that the configuration names."""

    config: TrainConfig
    callbacks: tuple[Callback, ...] = ()
    resume_point: ResumePoint | None = None

    def train(self) -> TrainResult:
        """Run the algorithm's train function."""
        config = placed_config(self.config, self.resume_point)
        train = get_algorithm_spec(config.algo).load_train()
        result: TrainResult = train(config, callbacks=self.callbacks, checkpoint=self.resume_point)
        return result


def _changed_versions(checkpoint: Checkpoint) -> list[str]:
    """Return a message if package versions changed since the checkpoint, so that results may be rounded differently."""
    saved, current = checkpoint.manifest.get("versions", {}), dependency_versions()
    changed = [
        f"{name} {saved[name]} -> {current[name]}"
        for name in current
        if saved.get(name, current[name]) != current[name]
    ]
    return [f"not bit for bit: versions changed since the checkpoint: {', '.join(changed)}"] if changed else []


def _check_horizon(config: TrainConfig, checkpoint: Checkpoint, changed: Mapping[str, Any], *, fork: bool) -> None:
    """Raise an error for a horizon that leaves nothing to train with the changed settings."""
    if "total_timesteps" in changed and config.total_timesteps < checkpoint.step:
        raise ConfigError(
            f"--total-timesteps: {config.total_timesteps} lies before the checkpoint's step {checkpoint.step}; "
            "give a larger number, or leave it out to keep the original horizon"
        )
    if fork and changed and config.total_timesteps <= checkpoint.step:
        raise ConfigError(
            f"--total-timesteps: the checkpoint's step {checkpoint.step} is the end of its run, so that a fork would "
            "train nothing with other settings; give a larger number, or an earlier checkpoint"
        )


class DefaultExperimentManager:
    """Sets up runs of any algorithm in the registry."""

    def setup(self, config: TrainConfig, *, callbacks: Sequence[Callback] = ()) -> Trainer:
        """Return a trainer for one run of the configuration."""
        admit_algorithm(config.algo)
        return AlgorithmTrainer(with_dataset(with_fixed_init(check_config(config))), tuple(callbacks))

    def resume(
        self,
        checkpoint: str | Path,
        *,
        callbacks: Sequence[Callback] = (),
        total_timesteps: int | None = None,
        eval_episodes: int | None = None,
        fork: bool = False,
        overrides: Mapping[str, Any] | None = None,
        set_values: Sequence[str] = (),
        trust_code: bool = False,
    ) -> Trainer:
        """Return a trainer that continues from a checkpoint, a run directory or `.../checkpoints/best`.

        If a checkpoint is damaged, this is reported and the newest undamaged one before it is used. `total_timesteps`
        moves the horizon; `fork` starts a new run with the checkpoint's run as its parent, in which `overrides` and
        `set_values` (see `load_config`) may change every setting that nothing in the checkpoint depends on.
        `trust_code` allows the execution of code that the checkpoint names and that this user has neither installed nor
        used.
        """
        sound, damaged = newest_sound_checkpoint(Path(checkpoint))
        notices = [*damaged, f"going on from {sound.path}"] if damaged else []
        notices += _changed_versions(sound)
        try:
            original = checkpoint_config(sound, trust_code=trust_code)
        except ConfigError as error:
            raise AxiomError(f"checkpoint {sound.path} cannot be resumed: {error}") from error
        admit_code(original, loaded_from(sound, trust_code=trust_code))
        notices += changed_code(original, sound)
        for notice in notices:
            logger.warning("%s", notice)
        if fork:
            original = dataclasses.replace(original, output_dir=sound.run_dir.parent)
        flags = {"total_timesteps": total_timesteps, "eval_episodes": eval_episodes, **(overrides or {})}
        config = overlay_config(original, overrides=flags, set_values=set_values)
        changed = changed_settings(original, config, fork=fork)
        _check_horizon(config, sound, changed, fork=fork)
        for key, (before, after) in changed.items():
            logger.info("%s: %s instead of %s", key, after, before)
        if CALLBACKS in changed:
            dropped = dropped_callbacks(*changed[CALLBACKS])
            for notice in dropped:
                logger.warning("%s", notice)
            notices += dropped
        point = ResumePoint(sound, fork=fork, notices=tuple(notices), changed=changed, trust_code=trust_code)
        return AlgorithmTrainer(config, tuple(callbacks), point)

    def setup_runner(
        self,
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        continue_from: str | Path | None = None,
        trust_code: bool = False,
    ) -> Runner:
        """Return a runner: of a sweep if the configuration has seeds, else of one run.

        `continue_from` is the summary of a sweep of this configuration; only its missing seeds are trained.
        `trust_code` applies to the code that the summary names.
        """
        origin = None if continue_from is None else loaded_from_sweep(Path(continue_from), trust_code=trust_code)
        admit_algorithm(config.algo, origin)
        config = with_dataset(with_fixed_init(check_config(config)))
        if resolve_benchmark_seeds(config) or continue_from is not None:
            refuse_ranks_of_sweeps()
            summary = None if continue_from is None else Path(continue_from)
            return setup_sweep(self, config, callbacks=callbacks, continue_from=summary, trust_code=trust_code)
        refuse_executor_without_seeds(config)
        return FunctionRunner(self.setup(config, callbacks=callbacks).train)

    def resume_runner(
        self,
        checkpoint: str | Path,
        *,
        callbacks: Sequence[Callback] = (),
        total_timesteps: int | None = None,
        eval_episodes: int | None = None,
        fork: bool = False,
        overrides: Mapping[str, Any] | None = None,
        set_values: Sequence[str] = (),
        trust_code: bool = False,
    ) -> Runner:
        """Return a runner that continues from a checkpoint; see `resume`."""
        trainer = self.resume(
            checkpoint,
            callbacks=callbacks,
            total_timesteps=total_timesteps,
            eval_episodes=eval_episodes,
            fork=fork,
            overrides=overrides,
            set_values=set_values,
            trust_code=trust_code,
        )
        return FunctionRunner(trainer.train)
