"""The code of the user's own that a configuration names, and where that name came from."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.named_callbacks import named_callbacks
from rl_training.experiment.tasks import TASKS, is_suite, tasks_of
from rl_training.experiment.user_code import CodeUse, LoadedFrom, admit, own_code, remember, split_name, uses_of

USER_CODE = "user_code"
"""The key of metadata and manifests that holds the records of the code."""


def named_code(config: TrainConfig, *, callbacks: bool = True) -> dict[str, str]:
    """Return every `module:Name` of a configuration with the key that holds it, or all but those of callbacks."""
    tasks = tasks_of(config)
    places = [f"env_kwargs.{TASKS}.{number}.env_id" for number in range(len(tasks))] if is_suite(config) else ["env_id"]
    named = {task.env_id: place for task, place in zip(tasks, places, strict=True)}
    for entry in named_callbacks(config.callbacks) if callbacks else ():
        named.setdefault(entry.name, entry.place)
    return {name: place for name, place in named.items() if split_name(name)[0]}


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
