"""Training of TD3 and DDPG: nothing differs from the off-policy loop."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.off_policy import train_off_policy
from rl_training.runtime.session import TrainResult


def train_td3(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train TD3 as configured, or go on from a checkpoint."""
    return train_off_policy(config, callbacks=callbacks, checkpoint=checkpoint)
