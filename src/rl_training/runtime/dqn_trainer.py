"""Training of DQN and its variants: what differs is when the target network moves and exploration ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_training.experiment.cadence import marks_between
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.off_policy import train_off_policy
from rl_training.runtime.session import TrainResult


def train_dqn(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train DQN as configured, or go on from a checkpoint."""

    def update_targets(algorithm: Any, before: int, after: int) -> None:
        for _ in range(marks_between(before, after, algorithm.params.target_update_interval)):
            algorithm.update_target()

    def end_episodes(algorithm: Any, ended: np.ndarray) -> None:
        algorithm.end_episodes(ended)

    return train_off_policy(
        config, callbacks=callbacks, checkpoint=checkpoint, on_marks=update_targets, on_ends=end_episodes
    )
