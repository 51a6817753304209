"""Train, evaluate, resume: the functions behind the command line, also for Python users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl_training.errors import AxiomError
from rl_training.experiment.checkpoints import Checkpoint, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.own_code.run_code import admit_code, checkpoint_config, loaded_from, warn_of_changed_code
from rl_training.experiment.runs import sanitize
from rl_training.experiment.tasks import Task, choose_task, is_suite
from rl_training.runtime.acting.evaluator import EpisodeResult, evaluate_tasks
from rl_training.runtime.acting.policy import policies_from_checkpoint
from rl_training.runtime.acting.video import check_video, record_episodes
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.offline_evaluation.evaluation import OfflineEvaluation, evaluate_offline
from rl_training.runtime.session import TrainResult
from rl_training.runtime.setup.dataset_setup import warn_of_changed_dataset
from rl_training.runtime.setup.size_limits import check_episodes, check_observation_size
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.setup.threads import threads_of
from rl_training.runtime.setup.torch_setup import TorchSetup

__all__ = ["EvaluationResult", "OfflineEvaluation", "evaluate", "evaluate_offline", "resume", "train"]


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation."""

    checkpoint_path: Path
    run_dir: Path
    step: int
    resume_mode: str
    episodes: tuple[EpisodeResult, ...]
    metrics: dict[str, Any]
    video_paths: tuple[Path, ...] = ()


def train(
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    continue_from: str | Path | None = None,
    trust_code: bool = False,
) -> TrainResult:
    """Train as configured, or train the missing seeds of the sweep whose summary is `continue_from`.

    `trust_code` permits the execution of code that the sweep names.
    """
    runner = DefaultExperimentManager().setup_runner(
        config, callbacks=callbacks, continue_from=continue_from, trust_code=trust_code
    )
    return runner.run()


def resume(
    checkpoint: str | Path,
    *,
    total_timesteps: int | None = None,
    eval_episodes: int | None = None,
    fork: bool = False,
    overrides: Mapping[str, Any] | None = None,
    set_values: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    trust_code: bool = False,
) -> TrainResult:
    """Continue a run from a checkpoint, or from the newest one of a run directory.

    With `fork` it continues in a new run, in which `overrides` (values by dotted key) and `set_values` (texts
    `key=value`) may change the settings that nothing in the checkpoint depends on.
    `trust_code` permits the execution of other people's code that the checkpoint names.
    """
    runner = DefaultExperimentManager().resume_runner(
        checkpoint,
        callbacks=callbacks,
        total_timesteps=total_timesteps,
        eval_episodes=eval_episodes,
        fork=fork,
        overrides=overrides,
        set_values=set_values,
        trust_code=trust_code,
    )
    return runner.run()


def _check_environment_there(config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Raise an error if a run has learned from a dataset alone."""
    if config.env_id is None:
        raise AxiomError(
            f"{checkpoint.run_dir} has learned from the dataset {config.dataset} without an environment, so that there "
            "is none to evaluate it in; name one when you train (--env ID)"
        )


def _config_to_evaluate(checkpoint: Checkpoint, *, trust_code: bool) -> TrainConfig:
    """Return the configuration of a checkpoint whose code may be executed, and warn of what has changed since."""
    config = checkpoint_config(checkpoint, trust_code=trust_code)
    admit_code(config, loaded_from(checkpoint, trust_code=trust_code), callbacks=False)
    warn_of_changed_code(config, checkpoint)
    warn_of_changed_dataset(config, checkpoint)
    _check_environment_there(config, checkpoint)
    return config


def _generators(tasks: Sequence[Task], seed: int, device: torch.device, *, suite: bool) -> dict[Task, torch.Generator]:
    """Return what samples actions: each task of a suite has its own, so that others change nothing for it."""
    names = {task: [task.name] if suite else [] for task in tasks}
    return {
        task: torch.Generator(device).manual_seed(derive_seeds(seed, "evaluation", "policy", *name)[0])
        for task, name in names.items()
    }


def evaluate(
    checkpoint: str | Path,
    *,
    num_episodes: int | None = None,
    seed: int | None = None,
    task: str | None = None,
    stochastic: bool = False,
    video_episodes: int = 0,
    device: str = "auto",
    trust_code: bool = False,
) -> EvaluationResult:
    """Evaluate a checkpoint on new episodes, which were not used to choose it as the best one.

    Every task of a suite is evaluated on as many episodes, or only the one called `task`. `trust_code` permits the
    execution of other people's code that the checkpoint names.
    """
    sound = verify_checkpoint(resolve_checkpoint(Path(checkpoint)))
    config = _config_to_evaluate(sound, trust_code=trust_code)
    count = num_episodes if num_episodes is not None else config.eval_episodes or 10
    base = config.seed if seed is None else seed
    if count < 1 or base < 0:
        raise AxiomError(f"an evaluation needs at least 1 episode and a seed of at least 0, got {count} and {base}")
    check_episodes("num_episodes", count)
    seeds = derive_seeds(base, "evaluation", "command", count=count)
    suite = is_suite(config)
    policies = policies_from_checkpoint(sound, config, device=device, trust_code=trust_code)
    chosen = list(policies) if task is None else [choose_task(list(policies), task)]
    for one in chosen:
        check_observation_size(one)
    target = policies[chosen[0]].actor.device
    generators = _generators(chosen, base, target, suite=suite) if stochastic else {}
    for one in chosen if video_episodes else ():
        check_video(one, seeds[0])
    with TorchSetup(threads=threads_of(sound), deterministic=config.deterministic, device=target):
        episodes, metrics = evaluate_tasks(
            {one: policies[one] for one in chosen}, seeds, suite=suite, generators=generators
        )
        videos = []
        for one in chosen:
            label = f"{sanitize(one.name)}__" if suite else ""
            videos += record_episodes(
                policies[one],
                one,
                seeds[:video_episodes],
                sound.run_dir,
                step=sound.step,
                label=label,
                generator=generators.get(one),
            )
    return EvaluationResult(
        checkpoint_path=sound.path,
        run_dir=sound.run_dir,
        step=sound.step,
        resume_mode=str(sound.manifest["resume_mode"]),
        episodes=tuple(episodes),
        metrics={"global_step": sound.step, **metrics},
        video_paths=tuple(videos),
    )
