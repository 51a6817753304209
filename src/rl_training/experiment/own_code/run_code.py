"""The code of the user's own that a configuration names, and where that name came from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError
from rl_training.experiment.benchmarking import read_summary, run_place
from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.named_callbacks import named_callbacks
from rl_training.experiment.own_code.user_code import (
    CodeUse,
    LoadedFrom,
    admit,
    own_code,
    remember,
    split_name,
    uses_of,
)
from rl_training.experiment.registry import admit_algorithm, algorithm_code
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.tasks import TASKS, is_suite, tasks_of

logger = logging.getLogger("rl_training")

USER_CODE = "user_code"
"""The key of metadata and manifests that holds the records of the code."""


def named_code(config: TrainConfig, *, callbacks: bool = True) -> dict[str, str]:
    """Return every `module:Name` of a configuration with the key that holds it, or all but those of callbacks."""
    tasks = tasks_of(config)
    places = [f"env_kwargs.{TASKS}.{number}.env_id" for number in range(len(tasks))] if is_suite(config) else ["env_id"]
    named = {task.env_id: place for task, place in zip(tasks, places, strict=True)}
    named |= {code: "algo" for code in (algorithm_code(config.algo),) if code is not None}
    for entry in named_callbacks(config.callbacks) if callbacks else ():
        named.setdefault(entry.name, entry.place)
    return {name: place for name, place in named.items() if split_name(name)[0]} | policy_code(config)


def policy_code(config: TrainConfig) -> dict[str, str]:
    """Return every `module:Name` that a policy is made of besides its algorithm; it needs no environment."""
    encoder = config.algo_kwargs.get("encoder")
    return {encoder: "algo_kwargs.encoder"} if isinstance(encoder, str) and split_name(encoder)[0] else {}


def admit_code(
    config: TrainConfig,
    loaded: LoadedFrom | None = None,
    *,
    written: Container[str] = (),
    callbacks: bool = True,
) -> tuple[CodeUse, ...]:
    """Import the code that a configuration names; `loaded` says that the names come out of a file.

    The names in `written` are the user's own all the same. Evaluations and policies need no `callbacks`.
    """
    return tuple(
        admit(name, place=place, loaded=None if name in written else loaded)
        for name, place in named_code(config, callbacks=callbacks).items()
    )


def admit_policy_code(config: TrainConfig, loaded: LoadedFrom) -> None:
    """Import the code that the policy of a loaded checkpoint is made of."""
    for name, place in policy_code(config).items():
        admit(name, place=place, loaded=loaded)


def loaded_from(checkpoint: Checkpoint, *, trust_code: bool) -> LoadedFrom:
    """Return where the names of a checkpoint's configuration come from."""
    return LoadedFrom(f"checkpoint {checkpoint.path}", recorded_code(checkpoint.manifest), trust_code)


def loaded_from_sweep(path: Path, *, trust_code: bool) -> LoadedFrom:
    """Return where the names of a sweep's configuration come from, with what its runs say about the code they used."""
    records: list[Mapping[str, str]] = []
    for run_dir in (record.run_dir for record in read_summary(path).runs if record.run_dir is not None):
        with contextlib.suppress(AxiomError):  # a run that is gone or damaged tells nothing
            records += recorded_code(read_metadata(run_place(run_dir, path.parent)))
    return LoadedFrom(f"sweep {path}", records, trust_code)


def checkpoint_config(checkpoint: Checkpoint, *, trust_code: bool) -> TrainConfig:
    """Return the validated configuration of a checkpoint, after importing the algorithm that it names."""
    admit_algorithm(checkpoint.config.get("algo"), loaded_from(checkpoint, trust_code=trust_code))
    return validate_config(checkpoint.config)


def say_changed_code(config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Warn where code of a checkpoint is not what its run used."""
    for notice in changed_code(config, checkpoint):
        logger.warning("%s", notice)


def changed_code(config: TrainConfig, checkpoint: Checkpoint) -> list[str]:
    """Say which files of the code that a checkpoint names are not those that its run used."""
    before = {record["name"]: record["sha256"] for record in recorded_code(checkpoint.manifest)}
    return [
        f"not bit for bit: {use.file}, the code of `{use.name}`, has changed since the checkpoint"
        for use in used_code(config)
        if before.get(use.name, use.sha256) != use.sha256
    ]


def used_code(config: TrainConfig) -> tuple[CodeUse, ...]:
    """Return what the names of a configuration meant when its code was imported."""
    return uses_of(named_code(config))


def code_records(config: TrainConfig) -> list[dict[str, str]]:
    """Return what metadata and manifests keep of the code that is neither installed nor this package's."""
    return own_code(named_code(config))


def remember_code(config: TrainConfig) -> None:
    """Keep in the user's state directory that a training uses this code."""
    remember(named_code(config))


def recorded_code(content: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the records of metadata or of a manifest that have their form; those of older releases hold none."""
    records = content.get(USER_CODE)
    found = records if isinstance(records, list) else []
    return [
        record
        for record in found
        if isinstance(record, dict) and all(isinstance(record.get(key), str) for key in ("name", "file", "sha256"))
    ]
