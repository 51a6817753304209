"""Training of MuZero, Gumbel MuZero and EfficientZero: nothing differs from the planning loop."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.planning import train_planning
from rl_training.runtime.session import TrainResult


def train_muzero(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train MuZero as configured, or go on from a checkpoint."""
    return train_planning(config, callbacks=callbacks, checkpoint=checkpoint)
