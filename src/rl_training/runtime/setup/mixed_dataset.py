"""The dataset that is mixed into the batches of an algorithm with a replay (`dataset_fraction`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.data.datasets.columns import load_columns
from rl_training.data.datasets.dataset import Dataset
from rl_training.data.datasets.dataset_mix import DatasetMix
from rl_training.data.datasets.offline_replay import OfflineReplay
from rl_training.data.replay import Replay
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import env_params
from rl_training.runtime.setup.dataset_setup import check_same_dataset, check_spaces, open_named
from rl_training.runtime.setup.task_setup import TaskSetup

if TYPE_CHECKING:
    from rl_training.runtime.setup.run_setup import RunSetup

logger = logging.getLogger("rl_training")


def open_mixed_dataset(
    config: TrainConfig, params: Any, task: TaskSetup, resume_point: ResumePoint | None
) -> Dataset | None:
    """Return the dataset to mix in, checked against the environment and the resumed run; None if there is none."""
    if config.dataset is None or not getattr(params, "dataset_fraction", 0):
        return None
    dataset = open_named(config.dataset)
    check_spaces(dataset, task.described, task.observation_space, task.action_space)
    if resume_point is not None:
        check_same_dataset(dataset, resume_point.checkpoint)
    return dataset


def mix_dataset(setup: RunSetup, algorithm: OffPolicyAlgorithm, replay: Replay) -> DatasetMix | None:
    """Return the source of mixed batches, None if the run has no dataset.

    A dataset's observations and rewards are scaled like those of the replay, by the statistics of the environments.
    """
    dataset = setup.mixed_dataset
    if dataset is None:
        return None
    columns = load_columns(dataset)
    rows = setup.params.dataset_rows
    logger.info("%d of %d transitions in each batch are from dataset %s", rows, setup.params.batch_size, dataset.name)
    signs, normalize = env_params(setup.config, "training").reward_sign, replay.normalizers.reward

    def scaled(reward: np.ndarray) -> np.ndarray:
        reward = np.sign(reward) if signs else reward
        return reward if normalize is None else normalize(reward)

    recorded = OfflineReplay(
        columns,
        algorithm.stored_action,
        gamma=setup.params.gamma,
        normalizer=replay.normalizers.observation,
        reward_transform=scaled if signs or normalize is not None else None,
    )
    return DatasetMix(replay, recorded, rows)
