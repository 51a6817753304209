"""The offline loop: learn from batches of a dataset; no environment is stepped.

A step is a gradient step: `total_timesteps` is their number, and `global_step` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import OfflineAlgorithm
from rl_training.data.batches import ReplayBatch
from rl_training.data.datasets.offline_replay import OfflineReplay
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.session import TrainingSession, TrainResult
from rl_training.runtime.setup.dataset_setup import DatasetTask, make_offline_replay
from rl_training.runtime.setup.streams import derive_seeds

BATCHES_PER_DRAW = 64
BYTES_PER_DRAW = 32 << 20


def train_offline(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train an offline algorithm as configured, or continue from a checkpoint."""
    with TrainingSession(config, callbacks=callbacks, checkpoint=checkpoint) as session:
        (task,) = session.setup.tasks
        assert isinstance(task, DatasetTask)
        task.load()
        algorithm: OfflineAlgorithm = session.setup.make_algorithm(session.streams.initial())
        batches = BatchSource(
            make_offline_replay(task, session.params, algorithm.stored_action),
            batch_size=session.params.batch_size,
            seed=session.config.seed,
            device=session.device,
        )
        session.start(algorithm, batches)
        while not session.done:
            _train_step(session, algorithm, batches)
        return session.result()


def _train_step(session: TrainingSession, algorithm: OfflineAlgorithm, batches: BatchSource) -> None:
    step = session.step
    controls = session.controls()
    with session.timed("collect"):
        batch = batches.at(step)
    session.collected()
    with session.timed("update"):
        metrics = algorithm.update(batch, controls, session.streams["update"])
        algorithm.steps_taken(step, step + 1)
    session.advance(1, metrics, check_finite=False)


class BatchSource:
    """The batch of every gradient step, drawn many at a time.

    A draw depends on the run's seed and on the number of the draw alone, so that a resumed run needs no state of it.
    """

    steps_in_progress = 0

    def __init__(self, replay: OfflineReplay, *, batch_size: int, seed: int, device: torch.device) -> None:
        self.replay = replay
        self.batch_size = batch_size
        self.seed = seed
        self.device = device
        fitting = BYTES_PER_DRAW // max(1, replay.batch_bytes(batch_size))
        self.per_draw = min(max(1, fitting), BATCHES_PER_DRAW)
        self._draw = -1
        self._batches: list[ReplayBatch] = []

    def at(self, step: int) -> ReplayBatch:
        """Return the batch of a step."""
        draw, place = divmod(step, self.per_draw)
        if draw != self._draw:
            generator = np.random.default_rng(derive_seeds(self.seed, "dataset", draw, count=4))
            self._batches, _ = self.replay.sample(self.batch_size, generator, self.device, count=self.per_draw)
            self._draw = draw
        return self._batches[place]

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state; the environments of an offline run are none, and so are always saved."""
        return {"env": {}}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Do nothing: there is no state."""
