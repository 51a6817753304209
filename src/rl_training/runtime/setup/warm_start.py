"""Starts a new run with the weights and observation statistics of another run (`init`)."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rl_training.algorithms.base import Algorithm
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoints import Checkpoint, checkpoint_lineage, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.configuration.forks import network_differences
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.setup.restored_state import checkpoint_fits, read_checked_state
from rl_training.runtime.setup.task_setup import TaskSetup

logger = logging.getLogger("rl_training")


def with_fixed_init(config: TrainConfig) -> TrainConfig:
    """Return the configuration with `init` as the absolute path of one checkpoint.

    A run directory refers to another checkpoint after its next save; all seeds of a sweep should start from the same
    one.
    """
    if config.init is None:
        return config
    try:
        checkpoint = resolve_checkpoint(Path(os.path.expanduser(config.init)))
    except CheckpointError as error:
        raise ConfigError(f"init: {error}") from error
    return dataclasses.replace(config, init=checkpoint)


class StartingWeights(Protocol):
    """Weights with which a new run starts."""

    def apply(self, algorithm: Algorithm, tasks: Sequence[TaskSetup]) -> None:
        """Load the weights into an algorithm, and observation statistics into the environments of its tasks."""

    def lineage(self) -> dict[str, Any] | None:
        """Return the metadata entry about the origin of the weights, None if it is no run."""


class WarmStart:
    """A checkpoint whose weights fit a configuration."""

    def __init__(self, config: TrainConfig, spaces: Mapping[str, Any]) -> None:
        """Raise an error for a checkpoint of another algorithm, of other spaces or of other networks."""
        fixed = with_fixed_init(config)
        assert fixed.init is not None
        try:
            self.checkpoint: Checkpoint = verify_checkpoint(fixed.init)
        except CheckpointError as error:
            raise ConfigError(f"init: {error}") from error
        self.many_tasks = get_algorithm_spec(config.algo).many_tasks
        self._check_fit(config, spaces)

    def _check_fit(self, config: TrainConfig, spaces: Mapping[str, Any]) -> None:
        place, manifest = self.checkpoint.path, self.checkpoint.manifest
        with checkpoint_fits(self.checkpoint):
            algo = manifest["algo"]
            forms = {kind: _form(manifest["spaces"][kind]) for kind in spaces}
        if not _same_networks(algo, config.algo):
            raise ConfigError(
                f"init: {place} holds weights of {algo}, and this run trains {config.algo}; train the same"
            )
        for kind, space in spaces.items():
            if forms[kind] != _form(space):
                raise ConfigError(
                    f"init: the {kind} space of {place} is {forms[kind]}, and that of {config.task_name} is "
                    f"{_form(space)}; choose a run on the same spaces"
                )
        try:
            differing = network_differences(validate_config(self.checkpoint.config), config)
        except ConfigError as error:
            raise ConfigError(
                f"init: the configuration of {place} cannot be read: {'; '.join(error.problems)}"
            ) from error
        if differing:
            words = ", ".join(f"{key} ({before} there, {after} here)" for key, (before, after) in differing.items())
            raise ConfigError(f"init: the networks of {place} were built with other settings: {words}; use the same")

    def apply(self, algorithm: Algorithm, tasks: Sequence[TaskSetup]) -> None:
        """Load the weights into an algorithm, and the observation statistics into the environments of its tasks."""
        state = read_checked_state(self.checkpoint, validate_config(self.checkpoint.config))
        with checkpoint_fits(self.checkpoint):
            algorithm.load_weights(state["algorithm"])
            for task in tasks:
                saved = state["normalizers"]
                self._load_statistics(task, saved[task.task.name] if self.many_tasks else saved)
        logger.info("starting with the weights of %s", self.checkpoint.path)

    def _load_statistics(self, task: TaskSetup, saved: Mapping[str, Any] | None) -> None:
        fresh = task.normalizer_state_dict()
        there = None if saved is None else saved["observation"]
        here = None if fresh is None else fresh["observation"]
        if (there is None) != (here is None):
            raise ConfigError(
                f"init: {self.checkpoint.path} was trained with env_kwargs.normalize_observation "
                f"{'false' if there is None else 'true'}; set it so here"
            )
        if fresh is not None and there is not None:
            task.load_normalizer_state_dict({**fresh, "observation": there})

    def lineage(self) -> dict[str, Any]:
        """Return the metadata entry about the origin of the weights."""
        return checkpoint_lineage(self.checkpoint, "init")


def _form(space: Mapping[str, Any]) -> str:
    """Return the parts of a JSON space that networks depend on; bounds may differ between similar tasks."""
    kind = space.get("type")
    if kind == "Dict":
        parts = ", ".join(f"{name}: {_form(part)}" for name, part in space["spaces"])
        return f"Dict({parts})"
    if kind == "Box":
        return f"Box({space['shape']}, {space['dtype']})"
    size = space["nvec"] if kind == "MultiDiscrete" else space["n"]
    return f"{kind}({size})"


def _same_networks(theirs: str, ours: str) -> bool:
    """Return whether weights fit an algorithm: they are of the same, or of an offline form of it."""
    one, other = ALGORITHMS.get(theirs), ALGORITHMS.get(ours)
    if theirs == ours or one is None or other is None or one.loop != "offline":
        return theirs == ours
    offline, online = one.load_algorithm(), other.load_algorithm()
    assert isinstance(offline, type)
    assert isinstance(online, type)
    return issubclass(offline, online)
