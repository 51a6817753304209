"""The protocols of experiment managers, runners and trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl_training.experiment.config import TrainConfig

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.session import TrainResult


class Trainer(Protocol):
    """Trains once."""

    def train(self) -> TrainResult:
        """Train and return the result."""


class Runner(Protocol):
    """Runs an experiment of one or several trainings."""

    def run(self) -> TrainResult:
        """Run the experiment and return the result."""


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
        """Return a trainer that continues from a checkpoint."""

    def setup_runner(
        self,
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        continue_from: str | Path | None = None,
        trust_code: bool = False,
    ) -> Runner:
        """Return the runner for the configuration; `continue_from` is the summary of a sweep to be continued."""

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
        """Return a runner that continues from a checkpoint."""
