"""What a dataset's metadata says about the run, the checkpoint and the environment that its episodes come from."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from rl_training._version import __version__
from rl_training.envs.lookup import find_spec
from rl_training.experiment.checkpoints import Checkpoint, checkpoint_lineage
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import Mode, env_params
from rl_training.experiment.configuration.validation import plain
from rl_training.experiment.runs import algorithm_slug, dependency_versions, sanitize
from rl_training.experiment.tasks import Task


def origin_of(kind: str, checkpoint: Checkpoint, config: TrainConfig, task: Task, mode: Mode) -> dict[str, Any]:
    """Return the run, the checkpoint, the environment and the versions as plain data."""
    lineage = checkpoint_lineage(checkpoint, kind)
    return {
        "kind": kind,
        "version": __version__,
        "run": checkpoint.run_dir.name,
        "checkpoint": lineage["checkpoint"],
        "checkpoint_sha256": lineage["sha256"],
        "step": lineage["step"],
        "algo": config.algo,
        "run_seed": config.seed,
        "env_id": task.env_id,
        "env_kwargs": plain(task.env_kwargs),
        "mode": mode,
        "versions": {name: version for name, version in dependency_versions().items() if version is not None},
    }


def minari_entries(config: TrainConfig, task: Task, description: str) -> dict[str, Any]:
    """Return the entries of Minari's metadata about how the episodes were made."""
    entries: dict[str, Any] = {
        "algorithm_name": config.algo,
        "description": description,
        "requirements": [f"gymnasium=={dependency_versions()['gymnasium']}"],
    }
    if task.target_return is not None and task.random_return is not None:
        entries |= {"ref_min_score": task.random_return, "ref_max_score": task.target_return}
    return entries


def environment_spec(task: Task, mode: Mode) -> str | None:
    """Return the environment as Gymnasium writes it in JSON, from which Minari makes it again.

    None for user code, and for an environment whose observations this package's wrappers change: what Gymnasium would
    make does not fit the dataset.
    """
    spec, params = find_spec(task.env_id), env_params(task.env_kwargs, mode)
    if not isinstance(spec.entry_point, str) or params.atari or params.frame_stack > 1:
        return None
    spec = dataclasses.replace(
        spec,
        kwargs={**spec.kwargs, **params.make_kwargs},
        max_episode_steps=params.max_episode_steps or spec.max_episode_steps,
    )
    try:
        text = spec.to_json()
        json.loads(text, parse_constant=_refuse)
    except (TypeError, ValueError):
        return None
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def default_stem(config: TrainConfig, task: Task, label: str) -> str:
    """Return the default id of a dataset without its version: environment, algorithm and behaviour."""
    folder = re.sub(r"[^-\w]+", "-", sanitize(task.env_id), flags=re.ASCII)
    algorithm = re.sub(r"[^-\w]+", "-", algorithm_slug(config.algo), flags=re.ASCII)
    return f"{folder}/{algorithm}-{label}"


def as_plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as it is after a round trip through JSON, to compare it with a file's content."""
    result: dict[str, Any] = json.loads(json.dumps(mapping))
    return result
