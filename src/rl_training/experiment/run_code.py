"""The code of the user's own that a configuration names, and where that name came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.tasks import TASKS, is_suite, tasks_of
from rl_training.experiment.user_code import CodeUse, LoadedFrom, admit, own_code, remember, split_name, uses_of

USER_CODE = "user_code"
"""The key of metadata and manifests that holds the records of the code."""


def named_code(config: TrainConfig) -> dict[str, str]:
    """Return every `module:Name` of a configuration with the key that holds it."""
    tasks = tasks_of(config)
    places = [f"env_kwargs.{TASKS}.{number}.env_id" for number in range(len(tasks))] if is_suite(config) else ["env_id"]
    named = {task.env_id: place for task, place in zip(tasks, places, strict=True)}
    return {name: place for name, place in named.items() if split_name(name)[0]} | policy_code(config)


def policy_code(config: TrainConfig) -> dict[str, str]:
    """Return every `module:Name` that a policy is made of, which needs no environment."""
    encoder = config.algo_kwargs.get("encoder")
    return {encoder: "algo_kwargs.encoder"} if isinstance(encoder, str) and split_name(encoder)[0] else {}


def admit_code(config: TrainConfig, loaded: LoadedFrom | None = None) -> tuple[CodeUse, ...]:
    """Import the code that a configuration names; `loaded` says that the names come out of a file."""
    return tuple(admit(name, place=place, loaded=loaded) for name, place in named_code(config).items())


def admit_policy_code(config: TrainConfig, loaded: LoadedFrom) -> None:
    """Import the code that the policy of a loaded checkpoint is made of."""
    for name, place in policy_code(config).items():
        admit(name, place=place, loaded=loaded)


def loaded_from(checkpoint: Checkpoint, *, trust_code: bool) -> LoadedFrom:
    """Return where the names of a checkpoint's configuration come from."""
    return LoadedFrom(f"checkpoint {checkpoint.path}", recorded_code(checkpoint.manifest), trust_code)


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
