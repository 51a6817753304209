"""The protocols between those who ask for an experiment and those who carry it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl_training.experiment.config import TrainConfig

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.session import TrainResult


class Trainer(Protocol):
    """Something that trains once."""

    def train(self) -> TrainResult:
        """Train and return what was left behind."""


class Runner(Protocol):
    """Something that runs an experiment of one or several trainings."""

    def run(self) -> TrainResult:
        """Run it and return what was left behind."""


class ExperimentManager(Protocol):
    """Turns configurations and checkpoints into trainers and runners."""

    def setup(self, config: TrainConfig, *, callbacks: Sequence[Callback] = ()) -> Trainer:
        """Return a trainer for the configuration's algorithm."""

    def resume(
        self,
        checkpoint: str | Path,
        *,
        callbacks: Sequence[Callback] = (),
        total_timesteps: int | None = None,
        eval_episodes: int | None = None,
        fork: bool = False,
        overrides: Mapping[str, Any] | None = None,
        set_values: Sequence[str] = (),
        trust_code: bool = False,
    ) -> Trainer:
        """Return a trainer that goes on from a checkpoint alone."""

    def setup_runner(
        self,
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        continue_from: str | Path | None = None,
        trust_code: bool = False,
    ) -> Runner:
        """Return the runner the configuration asks for; `continue_from` is the summary of a sweep to go on with."""

    def resume_runner(
        self,
        checkpoint: str | Path,
        *,
        callbacks: Sequence[Callback] = (),
        total_timesteps: int | None = None,
        eval_episodes: int | None = None,
        fork: bool = False,
        overrides: Mapping[str, Any] | None = None,
        set_values: Sequence[str] = (),
        trust_code: bool = False,
    ) -> Runner:
        """Return a runner that goes on from a checkpoint."""
