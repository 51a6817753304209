"""Functions shared by all trainers: device, plain config, run directory, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from rl_training.errors import ConfigError
from rl_training.experiment.checkpoints import LATEST, point, write_checkpoint
from rl_training.experiment.config import TrainConfig, config_to_dict
from rl_training.experiment.own_code.run_code import USER_CODE, code_records
from rl_training.experiment.runs import (
    CONFIG,
    create_run_directory,
    dependency_versions,
    new_metadata,
    write_metadata,
)
from rl_training.experiment.storage.files import replace_text, storage_errors
from rl_training.experiment.storage.segments import check_segments_still_there
from rl_training.experiment.storage.state_files import write_state


def resolve_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda`, `cuda:N` or `mps`, or raise an error if it is unusable."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {name!r} is not a device; use auto, cpu, cuda, cuda:N or mps") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device: {name!r} is not supported; use auto, cpu, cuda, cuda:N or mps")
    if device.type == "cuda":
        if torch.version.cuda is None and torch.version.hip is None:
            raise ConfigError(
                f"device: {name} cannot be used, this torch ({torch.__version__}) was built without CUDA; install a "
                "build of torch with CUDA (https://pytorch.org/get-started/locally), or use auto or cpu"
            )
        available = torch.cuda.device_count()
        if (device.index or 0) >= available:
            raise ConfigError(f"device: {name} is not there, {available} CUDA devices are; use auto or cpu")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device: mps is not available on this machine; use auto or cpu")
    return device


def serialize_train_config(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration as plain data: paths as text, tags as a list."""
    return config_to_dict(config)


def create_training_run(
    config: TrainConfig, *, resume_mode: str = "exact", parent: Mapping[str, Any] | None = None
) -> Path:
    """Create a run directory with `config.yaml` and `metadata.json` and return it."""
    run_dir = create_run_directory(config.output_dir, config.algo, config.task_name, config.seed)
    write_run_config(run_dir, config)
    write_metadata(
        run_dir,
        new_metadata(
            algo=config.algo,
            env_id=config.task_name,
            seed=config.seed,
            name=config.name,
            resume_mode=resume_mode,
            parent=parent,
            user_code=code_records(config),
        ),
    )
    return run_dir


def write_run_config(run_dir: Path, config: TrainConfig) -> None:
    """Write the resolved configuration, with which `axiomrl train --config` repeats the run."""
    text = yaml.safe_dump(serialize_train_config(config), sort_keys=False, allow_unicode=True)
    with storage_errors(CONFIG, run_dir):
        replace_text(run_dir / CONFIG, text)


def save_training_checkpoint(
    run_dir: Path,
    *,
    step: int,
    config: TrainConfig,
    state: Mapping[str, Any],
    resume_mode: str,
    spaces: Mapping[str, Any],
    torch_threads: int,
    segments: Sequence[Mapping[str, Any]] = (),
    dataset: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint of the complete state durably, move `latest` to it and return its directory."""
    check_segments_still_there(run_dir, segments)
    manifest = {
        "algo": config.algo,
        "env_id": config.task_name,
        "resume_mode": resume_mode,
        "config": serialize_train_config(config),
        "spaces": dict(spaces),
        "torch_threads": torch_threads,
        "segments": [dict(entry) for entry in segments],
        "versions": dict(dependency_versions()),
        USER_CODE: code_records(config),
        **({} if dataset is None else {"dataset": dict(dataset)}),
    }
    checkpoint = write_checkpoint(run_dir, step, lambda directory: write_state(directory, dict(state)), manifest)
    point(run_dir, LATEST, checkpoint)
    return checkpoint
