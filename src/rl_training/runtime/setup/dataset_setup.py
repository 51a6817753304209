"""The dataset of a run: its environment, its spaces, and the statistics that a policy learns from it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec

from rl_training.algorithms.params.offline_params import OfflineParams, OfflineValueParams
from rl_training.data.datasets.columns import DatasetColumns, load_columns
from rl_training.data.datasets.dataset import Dataset, open_dataset
from rl_training.data.datasets.episode import ACTION_MASK
from rl_training.data.datasets.location import datasets_root
from rl_training.data.datasets.offline_replay import (
    OfflineReplay,
    best_transitions,
    measure_observations,
    return_range_scale,
)
from rl_training.envs.lookup import find_spec
from rl_training.envs.make import inspect_environment
from rl_training.envs.normalize import Normalizers, ObservationNormalizer
from rl_training.envs.spaces import mask_width, same_form, unsupported_action, unsupported_observation
from rl_training.errors import AxiomError, CheckpointError, ConfigError, DatasetError
from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import MODES, env_params
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.tasks import Task
from rl_training.runtime.setup.task_setup import TaskSetup

logger = logging.getLogger("rl_training")

# Settings that concern the environments of training, which an offline run does not have.
_OF_TRAINING = ("normalize_observation", "normalize_reward", "num_workers", "worker_timeout", "render_mode")
RECORD = "dataset"
"""The key of metadata and manifests that contains the record of the dataset."""


def with_dataset(config: TrainConfig) -> TrainConfig:
    """Return the configuration of a new run with the dataset's environment, if an offline run names no other.

    Without an environment there is no evaluation. A path becomes absolute.
    """
    if config.dataset is None:
        return config
    dataset = open_named(config.dataset)
    if dataset.path != datasets_root() / config.dataset:
        config = dataclasses.replace(config, dataset=str(dataset.path.resolve()))
    if get_algorithm_spec(config.algo).loop != "offline" or config.env_id is not None:
        return config
    env_id, env_kwargs, _ = _environment_of(dataset, config.env_kwargs)
    if env_id is None:  # which the run reports
        return dataclasses.replace(config, eval_episodes=0)
    return dataclasses.replace(config, env_id=env_id, env_kwargs=env_kwargs)


def open_named(name: str) -> Dataset:
    """Return the dataset that a configuration names."""
    try:
        return open_dataset(name)
    except DatasetError as error:
        raise ConfigError(f"dataset: {error}") from error


def _environment_of(dataset: Dataset, given: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], str]:
    """Return id and arguments of a dataset's environment, or None and the reason why there is none.

    Somebody else may have made the dataset: what it names is looked up among registered environments, and nothing is
    imported for it.
    """
    env_id = dataset.env_id
    if env_id is None:
        return None, {}, f"the dataset {dataset.name} names no environment"
    if ":" in env_id:  # would import a module
        return None, {}, f"{env_id}, the environment of the dataset {dataset.name}, is not a registered one"
    try:
        env_kwargs = {**_recorded_arguments(dataset, find_spec(env_id)), **given}
        inspect_environment(env_id, env_kwargs)
    except AxiomError as error:
        return None, {}, f"{env_id}, the environment of the dataset {dataset.name}, cannot be made ({error})"
    return env_id, env_kwargs, ""


def _recorded_arguments(dataset: Dataset, registered: EnvSpec) -> dict[str, Any]:
    """Return the arguments and wrapper settings that a dataset was recorded with, except for those of training."""
    found = {
        key: {name: part for name, part in value.items() if name not in _OF_TRAINING} if key in MODES else value
        for key, value in dataset.env_kwargs.items()
        if key not in _OF_TRAINING and (key not in MODES or isinstance(value, Mapping))
    }
    found = {key: value for key, value in found.items() if registered.kwargs.get(key) != value}
    limit = None if dataset.env_spec is None else dataset.env_spec.get("max_episode_steps")
    if type(limit) is int and limit > 0 and limit != registered.max_episode_steps:
        found["max_episode_steps"] = limit
    return found


class DatasetTask(TaskSetup):
    """The task of an offline run: the spaces are those of its dataset, and the environment serves evaluation only."""

    def __init__(self, task: Task, config: TrainConfig, params: OfflineParams) -> None:
        """Raise an error if the algorithm cannot learn from the dataset, or the environment has other spaces."""
        assert config.dataset is not None
        self.task, self.config, self.env, self.sampled = task, config, None, None
        self.dataset = open_named(config.dataset)
        self.observation_space, self.action_space = self.dataset.observation_space, self.dataset.action_space
        self._check_supported()
        self._check_spaces()
        if config.env_id is not None:
            self._check_environment()
        clip = env_params(task.env_kwargs, "evaluation").clip_observation
        normalizer = ObservationNormalizer(self.observation_space, clip) if params.normalize_observation else None
        self._normalizers = Normalizers(normalizer)
        self.columns: DatasetColumns | None = None
        self.notices: list[str] = []
        """Messages to the user about the dataset."""
        if config.env_id is None:
            problem = _environment_of(self.dataset, config.env_kwargs)[2] or "the run began without an environment"
            repair = "name an environment by env_id (--env) to have one"
            self.notices.append(f"there is no evaluation: {problem}; {repair}")

    def load(self) -> DatasetColumns:
        """Read the transitions and measure the observations; a restored run replaces these statistics by equal ones."""
        self.columns = load_columns(self.dataset)
        self._check_masks(self.columns)
        logger.info(
            "dataset %s: %d steps in %d episodes", self.dataset.name, len(self.columns), len(self.columns.first)
        )
        if self._normalizers.observation is not None:
            measure_observations(self.columns, self._normalizers.observation)
        return self.columns

    def _check_masks(self, columns: DatasetColumns) -> None:
        masks, width = columns.observation_infos.get(ACTION_MASK), mask_width(self.action_space)
        if masks is not None and width and masks.shape[1:] != (width,):
            raise ConfigError(
                f"dataset: the action masks of {self.dataset.name} have the shape {masks.shape[1:]}, and its actions "
                f"need ({width},); remove them from its infos, or record them anew"
            )

    def _check_supported(self) -> None:
        found = (
            ("observations", unsupported_observation(self.observation_space)),
            ("actions", unsupported_action(self.action_space)),
        )
        for what, reason in found:
            if reason is not None:
                raise ConfigError(f"dataset: the {what} of {self.dataset.name} cannot be used: {reason}")

    def _check_environment(self) -> None:
        training, evaluation = inspect_environment(self.task.env_id, self.task.env_kwargs)
        check_spaces(self.dataset, self.task.env_id, evaluation.observation_space, evaluation.action_space)
        self._check_turns(None, training.turn_taking, evaluation.turn_taking)

    @property
    def described(self) -> str:
        """The dataset, for messages about its spaces."""
        return f"the dataset {self.dataset.name}"

    @property
    def backend(self) -> tuple[str, str]:
        """The backend of evaluation."""
        return "local_sync", "no environment is stepped in training"

    @property
    def normalizers(self) -> Normalizers:
        """The normaliser with the dataset's statistics."""
        return self._normalizers

    @property
    def seen_space(self) -> Space[Any]:
        """The observation space of the algorithm, after normalisation if it is configured."""
        observation = self._normalizers.observation
        return self.observation_space if observation is None else observation.normalized_space


def dataset_record(dataset: Dataset) -> dict[str, Any]:
    """Return the record of a dataset for metadata and manifests."""
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "total_episodes": dataset.total_episodes,
        "total_steps": dataset.total_steps,
    }


def check_spaces(dataset: Dataset, env_id: str, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise an error if an environment has other spaces than the dataset."""
    for kind, recorded, there, fits in (
        ("observation", dataset.observation_space, observation_space, same_form),
        ("action", dataset.action_space, action_space, _same_actions),
    ):
        if not fits(recorded, there):
            raise ConfigError(
                f"dataset: the {kind} space of {dataset.name} is {recorded}, and that of {env_id} is {there}; name the "
                "environment that the dataset was recorded in, with the same wrappers"
            )


def _same_actions(one: Space[Any], other: Space[Any]) -> bool:
    """Return whether actions mean the same; networks scale them by their bounds."""
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box) and same_form(one, other):
        return bool(np.array_equal(one.low, other.low) and np.array_equal(one.high, other.high))
    return same_form(one, other)


def make_offline_replay(
    task: DatasetTask, params: OfflineParams, stored_action: Callable[[np.ndarray], np.ndarray]
) -> OfflineReplay:
    """Return the transitions of a loaded dataset, scaled and selected as the parameters say."""
    columns = task.columns
    assert columns is not None
    rewards: dict[str, Any] = {}
    if isinstance(params, OfflineValueParams):
        scale = params.reward_scale * _reward_scale(task, params)
        rewards = {"gamma": params.gamma, "reward_scale": scale, "reward_shift": params.reward_shift}
    return OfflineReplay(
        columns,
        stored_action,
        normalizer=task.normalizers.observation,
        **rewards,
        rows=best_transitions(columns, params.top_episodes) if params.top_episodes < 1 else None,
        with_next_action=params.with_next_action,
    )


def _reward_scale(task: DatasetTask, params: OfflineValueParams) -> float:
    """Return the factor that normalises rewards as the parameters say."""
    assert task.columns is not None
    if params.normalize_reward == "none":
        return 1.0
    scale = return_range_scale(task.columns)
    if scale is None:
        task.notices.append(
            f"normalize_reward has no effect: all episodes of the dataset {task.dataset.name} have the same return"
        )
        return 1.0
    return scale


def check_same_dataset(dataset: Dataset, checkpoint: Checkpoint) -> None:
    """Raise an error if the dataset is not the one that the run of a checkpoint has learned from."""
    recorded = recorded_dataset(checkpoint)
    if recorded is not None and recorded["fingerprint"] != dataset.fingerprint:
        raise CheckpointError(
            f"the dataset {dataset.name} in {dataset.path} has changed since checkpoint {checkpoint.path} "
            "was written; restore it, or start a new run from the checkpoint's weights by `axiomrl train --init`"
        )


def warn_of_changed_dataset(config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Warn if the dataset of a checkpoint is missing or has changed; a policy does not need it."""
    recorded = recorded_dataset(checkpoint)
    if recorded is None or config.dataset is None:
        return
    try:
        changed = open_dataset(config.dataset).fingerprint != recorded["fingerprint"]
    except AxiomError as error:
        logger.warning("the dataset that the policy was learned from cannot be read: %s", error)
        return
    if changed:
        logger.warning("the dataset %s has changed since the policy was learned from it", config.dataset)


def recorded_dataset(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Return the record of the dataset in a checkpoint's manifest, None if there is none."""
    found = checkpoint.manifest.get(RECORD)
    return found if isinstance(found, dict) and isinstance(found.get("fingerprint"), str) else None
