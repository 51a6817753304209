"""What fresh seeds say about the settings that a search found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.benchmarking import FEWEST_FOR_INTERVAL
from rl_training.experiment.statistics import (
    Interval,
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    probability_of_improvement_interval,
)
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_json
from rl_training.experiment.tuning.study import CONFIRMATION

EVEN = 0.5
"""The probability of improvement of settings that make no difference."""


@dataclass(frozen=True)
class Side:
    """Settings and their scores on fresh seeds."""

    trial: int
    searched: float | None
    """The objective that the search saw; None for a start that failed there."""
    scores: Mapping[int, float]
    """By fresh seed."""

    @property
    def iqm(self) -> float:
        """Interquartile mean of the scores."""
        return interquartile_mean(list(self.scores.values()))

    @property
    def interval(self) -> Interval | None:
        """Its 95% interval; None with too few seeds."""
        return bootstrap_interval(list(self.scores.values())) if len(self.scores) >= FEWEST_FOR_INTERVAL else None

    def as_record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        interval = self.interval
        return {
            "trial": self.trial,
            "searched": self.searched,
            "scores": {str(seed): score for seed, score in self.scores.items()},
            "iqm": self.iqm,
            "interval": None if interval is None else list(interval),
        }


@dataclass(frozen=True)
class Confirmation:
    """The best settings of a search beside the start, on seeds that no trial saw."""

    best: Side
    baseline: Side
    trials: int
    """How many trials the best was chosen from."""

    @property
    def same(self) -> bool:
        """Whether the search found nothing better than the start even on its own seeds."""
        return self.best.trial == self.baseline.trial

    @property
    def probability(self) -> float:
        """Probability that a run with the best settings scores above one with the start's; ties count half."""
        return probability_of_improvement(list(self.best.scores.values()), list(self.baseline.scores.values()))

    @property
    def probability_interval(self) -> Interval | None:
        """Its 95% interval; None with too few seeds."""
        if min(len(self.best.scores), len(self.baseline.scores)) < FEWEST_FOR_INTERVAL:
            return None
        return probability_of_improvement_interval(list(self.best.scores.values()), list(self.baseline.scores.values()))

    @property
    def optimism(self) -> float:
        """By how much the search overstated the best settings: their objective there minus that on fresh seeds."""
        assert self.best.searched is not None
        return self.best.searched - self.best.iqm

    @property
    def improved(self) -> bool:
        """Whether fresh seeds show that the best settings are better."""
        interval = self.probability_interval
        return not self.same and interval is not None and interval.low > EVEN

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        seeds, figures = len(self.best.scores), f"{self.best.iqm:,.2f} against {self.baseline.iqm:,.2f}"
        if self.same:
            return f"the search found nothing better than the start among {self.trials} trials"
        interval = self.probability_interval
        if interval is None:
            return (
                f"{seeds} fresh seeds are too few to tell trial {self.best.trial} from the start ({figures}); "
                f"{FEWEST_FOR_INTERVAL} are the least"
            )
        chance = f"probability of improvement {self.probability:.2f}, 95% interval {_words(interval)}"
        if interval.low > EVEN:
            return f"trial {self.best.trial} is better than the start on {seeds} fresh seeds: {figures} ({chance})"
        if interval.high < EVEN:
            return f"nothing better was found: trial {self.best.trial} is worse on fresh seeds, {figures} ({chance})"
        return (
            f"nothing better was shown: on {seeds} fresh seeds trial {self.best.trial} and the start cannot be told "
            f"apart, {figures} ({chance})"
        )

    def as_record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        interval = self.probability_interval
        return {
            "trials": self.trials,
            "best": self.best.as_record(),
            "baseline": self.baseline.as_record(),
            "probability_of_improvement": self.probability,
            "probability_of_improvement_interval": None if interval is None else list(interval),
            "optimism": self.optimism,
            "improved": self.improved,
            "verdict": self.sentence,
        }


def _words(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}"


def write_confirmation(directory: Path, confirmation: Confirmation) -> None:
    """Write the file of a study's confirmation."""
    write_json_atomically(directory / CONFIRMATION, confirmation.as_record())


def read_confirmation(directory: Path) -> Confirmation | None:
    """Return the confirmation of a study, computed again from its scores; None if there is none yet."""
    from rl_training.experiment.storage.schemas import StoredConfirmation, mismatch

    path = directory / CONFIRMATION
    try:
        record = read_json(path)
        problem = mismatch(StoredConfirmation, record)
    except FileNotFoundError:
        return None
    except UntrustedFileError as error:
        problem = str(error)
    if problem is not None:
        raise ConfigError(
            f"{path} is damaged ({' '.join(problem.split())[:200]}); delete it, and "
            f"`axiomrl tune --continue {directory}` writes it again from the runs"
        )
    return Confirmation(_side(record["best"]), _side(record["baseline"]), record["trials"])


def _side(record: Mapping[str, Any]) -> Side:
    scores = {int(seed): float(score) for seed, score in record["scores"].items()}
    return Side(record["trial"], record["searched"], scores)
