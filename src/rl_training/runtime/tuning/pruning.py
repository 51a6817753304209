"""Ends trials that fall behind: by their evaluations while a seed is trained, or by their scores seed after seed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.benchmarking import score_metric
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.tuning.journal import open_journal
from rl_training.experiment.tuning.study import Pruner
from rl_training.runtime.callbacks import Callback, TrainingEvent

if TYPE_CHECKING:
    import optuna

PRUNED_REASON = "pruned"
"""How the reason begins for which a pruned run stopped."""
WHILE_TRAINING: tuple[Pruner, ...] = ("median", "halving")
"""The pruners that compare evaluations while a seed is trained."""
_STARTUP_TRIALS = 5
_REDUCTION = 3
_LEAST_SEEDS = 4  # with fewer the test's smallest p-value is above its threshold
_WILCOXON_P = 0.1


def check_pruner(pruner: Pruner, config: TrainConfig, seeds: int, executor: str) -> None:
    """Raise an error if a pruner cannot work with a study."""
    if pruner == "wilcoxon":
        if find_spec("scipy") is None:
            raise MissingExtraError("--pruner wilcoxon", "tune")
        if seeds < _LEAST_SEEDS + 1:
            raise ConfigError(
                f"--pruner wilcoxon: compares trials seed by seed and can end one after {_LEAST_SEEDS} seeds at the "
                f"earliest; give --seeds-per-trial {_LEAST_SEEDS + 1} or more, or another pruner"
            )
    if pruner in WHILE_TRAINING:
        if not config.eval_interval or config.eval_interval >= config.total_timesteps or not config.eval_episodes:
            raise ConfigError(
                f"--pruner {pruner}: compares evaluations while trials are trained, and the configuration has none; "
                "set eval_interval to a part of total_timesteps"
            )
        if executor == "ray":
            raise ConfigError(
                f"--pruner {pruner}: compares evaluations through the study's directory, which the machines of a Ray "
                "cluster need not share; use wilcoxon or none"
            )


def make_pruner(pruner: Pruner, evaluations: int) -> optuna.pruners.BasePruner:
    """Return Optuna's pruner for trials with so many evaluations of each seed."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a part is experimental
        if pruner == "median":
            return optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=evaluations // 3)
        if pruner == "halving":
            return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=_REDUCTION)
        if pruner == "wilcoxon":
            return optuna.pruners.WilcoxonPruner(p_threshold=_WILCOXON_P)
        return optuna.pruners.NopPruner()


def evaluations_per_seed(config: TrainConfig) -> int:
    """Return how many evaluations a run has."""
    return max(1, math.ceil(config.total_timesteps / config.eval_interval)) if config.eval_interval else 1


class StopWhenBehind(Callback):
    """Ends a seed of a trial when the trial falls behind others; what it compares goes through the journal.

    The number that it reports is the mean of the finished seeds' scores and the present evaluation: an estimate of the
    objective that trials can be compared by at the same seed and evaluation.
    """

    def __init__(self, directory: Path, number: int, pruner: Pruner, earlier: Sequence[float], config: TrainConfig):
        """`earlier` are the scores of the trial's finished seeds."""
        self._directory, self._number, self._pruner = directory, number, pruner
        self._earlier = tuple(earlier)
        self._interval, self._evaluations = config.eval_interval or 1, evaluations_per_seed(config)
        self._trial: optuna.Trial | None = None

    def on_train_start(self, event: TrainingEvent) -> None:
        """End a run at once that was killed between the decision to prune it and its end."""
        self._decide(event)

    def on_eval_end(self, event: TrainingEvent) -> None:
        """Report an evaluation and compare it."""
        score = event.metrics.get(score_metric(event.metrics))
        place = event.step // self._interval
        if score is None or not math.isfinite(score) or event.step >= event.total_timesteps or place == 0:
            return
        self._open().report(
            (sum(self._earlier) + score) / (len(self._earlier) + 1), len(self._earlier) * self._evaluations + place
        )
        self._decide(event)

    def _decide(self, event: TrainingEvent) -> None:
        if event.step < event.total_timesteps and self._open().should_prune():
            event.request_stop(f"{PRUNED_REASON} by {self._pruner}: other trials were better at this point")

    def _open(self) -> optuna.Trial:
        if self._trial is None:
            import optuna

            study = open_journal(self._directory)
            study.pruner = make_pruner(self._pruner, self._evaluations)
            frozen = next(one for one in study.get_trials(deepcopy=False) if one.number == self._number)
            self._trial = optuna.trial.Trial(study, frozen._trial_id)
        return self._trial
