"""Studies whose runs train nothing: each scores at once what a function of its configuration says."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig, check_config
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.tuning.journal import Trial, read_trials
from rl_training.experiment.tuning.study import read_study
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.recording.result import TrainResult
from rl_training.runtime.signals import SignalGuard
from rl_training.runtime.sweep.executors import Executor, SerialExecutor
from rl_training.runtime.tuning.search import Search
from rl_training.runtime.tuning.suggestions import Suggestions
from rl_training.runtime.tuning.tuning import new_study

Score = Callable[[TrainConfig], float]

SPACE = """
learning_rate: {log: [1e-5, 1e-2]}
gamma: {one_minus_log: [0.8, 0.9999]}
update_epochs: {int: [1, 20]}
hidden_sizes: {choice: [[64, 64], [256, 256]]}
normalize_advantage: {choice: [true, false]}
"""


def start_config(output_dir: Path, **changes: Any) -> TrainConfig:
    """Return the configuration that studies of these tests start from."""
    base = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 4096, "eval_interval": 1024}
    return load_config(base={**base, **changes}, overrides={"output_dir": output_dir})


def make_study(directory: Path, space: str = SPACE, config: TrainConfig | None = None, **choices: Any) -> Path:
    """Return the directory of a new study."""
    path = directory / "space.yaml"
    path.write_text(space)
    chosen = {"trials": 6, "seeds_per_trial": 2, **choices}
    return new_study(config or start_config(directory / "studies"), space=path, **chosen)


def hill(config: TrainConfig) -> float:
    """Return a score that is highest at a learning rate of 1e-3, and a little different for each seed."""
    rate = config.algo_kwargs["learning_rate"]
    return 100.0 - 10 * abs(math.log10(rate) + 3) + 0.1 * config.seed


@dataclass(frozen=True)
class ScoredManager:
    """Sets up runs that end at once."""

    score: Score = hill
    seconds: float = 0.0
    """How long a run takes."""
    resumed: list[Path] = field(default_factory=list)

    def setup(self, config: TrainConfig, *, callbacks: Sequence[Callback] = ()) -> Any:
        """Return what trains a run."""
        return _Run(self, check_config(config), tuple(callbacks))

    def resume(self, checkpoint: Path, *, callbacks: Sequence[Callback] = ()) -> Any:
        """Note that a run was resumed."""
        self.resumed.append(checkpoint)
        raise AssertionError("these runs have no checkpoints")


@dataclass(frozen=True)
class _Run:
    manager: ScoredManager
    config: TrainConfig
    callbacks: tuple[Callback, ...]

    def train(self) -> TrainResult:
        run_dir = self.config.output_dir / f"run-{secrets.token_hex(4)}"
        run_dir.mkdir(parents=True)
        stops: list[str] = []
        total = self.config.total_timesteps
        event = TrainingEvent(run_dir, 0, total, 0, stops.append)
        for callback in self.callbacks:
            callback.on_train_start(event)
        time.sleep(self.manager.seconds)
        score = self.manager.score(self.config)
        for step in range(self.config.eval_interval or total, total + 1, self.config.eval_interval or total):
            metrics = {"eval_return_mean": score}
            for callback in self.callbacks:
                callback.on_eval_end(dataclasses.replace(event, step=step, metrics=metrics))
            if stops:
                break
        return TrainResult(run_dir, None, {"eval_return_mean": score}, stop_reason=stops[0] if stops else None)


def search(
    directory: Path,
    manager: Any = None,
    *,
    executor: Executor | None = None,
    jobs: int = 1,
    signals: SignalGuard | None = None,
    **options: Any,
) -> list[Trial]:
    """Train what a study lacks of its trials and return all of them."""
    trained_by: Any = manager or ScoredManager()
    study = read_study(directory)
    start = study.start()
    space = study.search_space(start)
    suggestions = Suggestions(space, space.values_of(start), study.sampler, start.seed, study.trials)
    found = Search(directory, study, start, suggestions, manager=trained_by, jobs=jobs, **options)
    with found.owning():
        (executor or SerialExecutor()).execute(found.seeds(), found.begin, found.report, signals or SignalGuard())
    return read_trials(directory)
