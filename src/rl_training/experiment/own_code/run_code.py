"""The user code that a configuration names, and where these names come from."""

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
from rl_training.experiment.configuration.env_params import named_wrappers
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
from rl_training.experiment.own_code.world_names import code_of
from rl_training.experiment.registry import admit_algorithm, algorithm_code
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.tasks import TASKS, is_suite, tasks_of

logger = logging.getLogger("rl_training")

USER_CODE = "user_code"
"""The key of metadata and manifests that contains the records of the code."""


def named_code(config: TrainConfig, *, callbacks: bool = True) -> dict[str, str]:
    """Return every `module:Name` in a configuration with its key, with or without those of callbacks."""
    tasks = tasks_of(config)
    places = [f"env_kwargs.{TASKS}.{number}.env_id" for number in range(len(tasks))] if is_suite(config) else ["env_id"]
    named = {code_of(task.env_id): place for task, place in zip(tasks, places, strict=True)}
    for task, place in zip(tasks, places, strict=True):
        block = place.removesuffix(".env_id") if is_suite(config) else "env_kwargs"
        for wrapper in named_wrappers(task.env_kwargs, block):
            named.setdefault(wrapper.name, wrapper.place)
    named |= {code: "algo" for code in (algorithm_code(config.algo),) if code is not None}
    for entry in named_callbacks(config.callbacks) if callbacks else ():
        named.setdefault(entry.name, entry.place)
    return {name: place for name, place in named.items() if split_name(name)[0]} | policy_code(config)


def policy_code(config: TrainConfig) -> dict[str, str]:
    """Return every `module:Name` that a policy needs besides its algorithm; a policy needs no environment."""
    encoder = config.algo_kwargs.get("encoder")
    return {encoder: "algo_kwargs.encoder"} if isinstance(encoder, str) and split_name(encoder)[0] else {}


def admit_code(
    config: TrainConfig,
    loaded: LoadedFrom | None = None,
    *,
    written: Container[str] = (),
    callbacks: bool = True,
) -> tuple[CodeUse, ...]:
    """Import the code that a configuration names; `loaded` says that the names come from a file.

    Names in `written` count as written by the user nevertheless. Evaluations and policies need no `callbacks`.
    """
    return tuple(
        admit(name, place=place, loaded=None if name in written else loaded)
        for name, place in named_code(config, callbacks=callbacks).items()
    )


def admit_policy_code(config: TrainConfig, loaded: LoadedFrom) -> None:
    """Import the code that the policy of a loaded checkpoint needs."""
    for name, place in policy_code(config).items():
        admit(name, place=place, loaded=loaded)


def loaded_from(checkpoint: Checkpoint, *, trust_code: bool) -> LoadedFrom:
    """Return the origin of the names in a checkpoint's configuration."""
    return LoadedFrom(f"checkpoint {checkpoint.path}", recorded_code(checkpoint.manifest), trust_code)


def loaded_from_sweep(path: Path, *, trust_code: bool) -> LoadedFrom:
    """Return the origin of the names in a sweep's configuration, with its runs' records of the code they used."""
    records: list[Mapping[str, str]] = []
    for run_dir in (record.run_dir for record in read_summary(path).runs if record.run_dir is not None):
        with contextlib.suppress(AxiomError):  # a run that is missing or damaged has no records
            records += recorded_code(read_metadata(run_place(run_dir, path.parent)))
    return LoadedFrom(f"sweep {path}", records, trust_code)


def checkpoint_config(checkpoint: Checkpoint, *, trust_code: bool) -> TrainConfig:
    """Return the validated configuration of a checkpoint, after importing the algorithm that it names."""
    admit_algorithm(checkpoint.config.get("algo"), loaded_from(checkpoint, trust_code=trust_code))
    return validate_config(checkpoint.config)


def warn_of_changed_code(config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Warn if the code of a checkpoint has changed since its run used it."""
    for notice in changed_code(config, checkpoint):
        logger.warning("%s", notice)


def changed_code(config: TrainConfig, checkpoint: Checkpoint) -> list[str]:
    """Return a message for each file of a checkpoint's code that differs from the one its run used."""
    before = {record["name"]: record["sha256"] for record in recorded_code(checkpoint.manifest)}
    return [
        f"not bit for bit: {use.file}, the code of `{use.name}`, has changed since the checkpoint"
        for use in used_code(config)
        if before.get(use.name, use.sha256) != use.sha256
    ]


def used_code(config: TrainConfig) -> tuple[CodeUse, ...]:
    """Return the code that was imported for the names of a configuration."""
    return uses_of(named_code(config))


def code_records(config: TrainConfig) -> list[dict[str, str]]:
    """Return the records, for metadata and manifests, of code that is neither installed nor part of this package."""
    return own_code(named_code(config))


def remember_code(config: TrainConfig) -> None:
    """Record in the user's state directory that a training uses this code."""
    remember(named_code(config))


def recorded_code(content: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the valid records in metadata or a manifest; those of older releases have none."""
    records = content.get(USER_CODE)
    found = records if isinstance(records, list) else []
    return [
        record
        for record in found
        if isinstance(record, dict) and all(isinstance(record.get(key), str) for key in ("name", "file", "sha256"))
    ]
