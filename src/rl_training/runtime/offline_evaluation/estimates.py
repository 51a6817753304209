"""The estimates of a policy's value, with their intervals over episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rl_training.algorithms.evaluation.importance_sampling import (
    cumulative_log_ratio,
    doubly_robust,
    effective_sample_size,
    pad_episodes,
    per_decision,
    resample_counts,
    td_errors,
    weighted_per_decision,
)
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.experiment.statistics import Interval, widened_confidence
from rl_training.runtime.offline_evaluation.fitting import FittedValues

RESAMPLES = 2000
CONFIDENCE = 0.95
RESAMPLES_AT_ONCE = 100


class Estimate(NamedTuple):
    """A value and its interval; None if a single episode shows nothing about the spread."""

    value: float
    interval: Interval | None

    def as_metrics(self, name: str) -> dict[str, float | None]:
        """Return the three numbers under their names."""
        low, high = self.interval or (None, None)
        return {f"{name}_value": self.value, f"{name}_low": low, f"{name}_high": high}


Estimator = Callable[[np.ndarray], np.ndarray]
"""Returns the estimates [R] for counts [R, E] of the episodes in resamples."""


def estimate_all(
    estimators: Mapping[str, Estimator], episodes: int, generator: np.random.Generator
) -> dict[str, Estimate]:
    """Return estimates of all episodes, and their bootstrap intervals over them from the same resamples."""
    values = {name: float(estimator(np.ones((1, episodes)))[0]) for name, estimator in estimators.items()}
    if episodes < 2:
        return {name: Estimate(value, None) for name, value in values.items()}
    draws: dict[str, list[np.ndarray]] = {name: [] for name in estimators}
    for _ in range(RESAMPLES // RESAMPLES_AT_ONCE):
        counts = resample_counts(episodes, RESAMPLES_AT_ONCE, generator)
        for name, estimator in estimators.items():
            draws[name].append(estimator(counts))
    confidence = widened_confidence(CONFIDENCE, [episodes])
    return {
        name: Estimate(value, _percentiles(np.concatenate(draws[name]), confidence)) for name, value in values.items()
    }


def mean_of(values: np.ndarray) -> Estimator:
    """Return the estimator of a mean over episodes, of values [E]."""
    return lambda counts: counts @ values / counts.sum(axis=1)


def fitted_q_estimate(initial: np.ndarray, generator: np.random.Generator) -> Estimate:
    """Return the mean of the members' values [M, E], and an interval over members and episodes.

    A resample is one member, which has learned from its own resample of the episodes, and as many initial observations
    as there are episodes. The interval is thus that of a single member: wider than that of their mean, never narrower.
    """
    members, episodes = initial.shape
    if episodes < 2:
        return Estimate(float(initial.mean()), None)
    draws = [
        np.einsum(
            "re,re->r",
            resample_counts(episodes, RESAMPLES_AT_ONCE, generator),
            initial[generator.integers(members, size=RESAMPLES_AT_ONCE)],
        )
        / episodes
        for _ in range(RESAMPLES // RESAMPLES_AT_ONCE)
    ]
    return Estimate(
        float(initial.mean()), _percentiles(np.concatenate(draws), widened_confidence(CONFIDENCE, [members]))
    )


@dataclass(frozen=True)
class WeightedEpisodes:
    """A dataset's episodes, weighted by how much more likely the policy is to act as they did."""

    log_weight: np.ndarray  # [E, T] of the actions up to each step
    reward: np.ndarray  # [E, T]
    errors: np.ndarray  # [E, T] of the fitted Q
    initial: np.ndarray  # [E] V(s_0)
    gamma: float

    @classmethod
    def of(
        cls, columns: DatasetColumns, log_ratio: np.ndarray, fitted: FittedValues, *, gamma: float
    ) -> WeightedEpisodes:
        """Make them from the log-ratios [N] of the policy's and the behaviour's probabilities."""
        assert fitted.taken is not None
        assert fitted.following is not None
        lengths = np.bincount(columns.episode)
        reward = np.asarray(columns.reward, dtype=np.float64)
        errors = td_errors(reward, fitted.taken, fitted.following, np.asarray(columns.terminated), gamma)
        return cls(
            log_weight=cumulative_log_ratio(pad_episodes(log_ratio, lengths)),
            reward=pad_episodes(reward, lengths),
            errors=pad_episodes(errors, lengths),
            initial=fitted.initial.mean(axis=0),
            gamma=gamma,
        )

    @property
    def effective_episodes(self) -> float:
        """Effective sample size of the weights of whole episodes."""
        return effective_sample_size(self.log_weight[:, -1])

    def estimators(self) -> dict[str, Estimator]:
        """Return the estimators by name."""
        weight, reward, errors, initial, gamma = (
            self.log_weight,
            self.reward,
            self.errors,
            self.initial,
            self.gamma,
        )
        return {
            "per_decision_is": lambda counts: per_decision(weight, reward, gamma, counts),
            "weighted_is": lambda counts: weighted_per_decision(weight, reward, gamma, counts),
            "doubly_robust": lambda counts: doubly_robust(weight, errors, initial, gamma, counts, weighted=False),
            "weighted_doubly_robust": lambda counts: doubly_robust(
                weight, errors, initial, gamma, counts, weighted=True
            ),
        }


def _percentiles(values: np.ndarray, confidence: float) -> Interval:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))
