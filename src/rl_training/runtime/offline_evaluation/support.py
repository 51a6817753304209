"""Whether a dataset contains enough of what a policy does to believe estimates of its value."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.algorithms.evaluation.action_features import ActionFeatures
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.experiment.statistics import Interval
from rl_training.runtime.offline_evaluation.policy_outputs import PolicyOutputs

NEAR = 0.25
"""Root mean square distance of two actions, scaled to [-1, 1], up to which they count as the same."""
LEAST_AGREEMENT = 0.05
"""Part of the dataset's actions that must be the policy's."""
FEWEST_EPISODES = 10
"""Episodes, or effective episodes of importance sampling, that an estimate needs."""
LARGEST_RESIDUAL = 0.05
"""Largest residual of fitted Q evaluation, as a part of the standard deviation of the dataset's values."""


def action_agreement(columns: DatasetColumns, features: ActionFeatures, outputs: PolicyOutputs) -> float:
    """Return the part of the dataset's actions that the policy would take in the same observations.

    Of a stochastic policy for discrete actions it is their mean probability; other actions count as the same if they
    are near.
    """
    taken = features(np.asarray(columns.action))
    if features.num_actions is not None:
        return float(outputs.policy[columns.place, taken].mean(dtype=np.float64))
    distances = [np.sqrt(np.square(one[columns.place] - taken).mean(axis=1)) for one in outputs.policy]
    return float(np.mean([distance <= NEAR for distance in distances]))


class Evidence(NamedTuple):
    """What is known about the support of an estimate."""

    episodes: int
    agreement: float
    """Part of the dataset's actions that the policy would take."""
    value: float
    """The estimate by fitted Q evaluation."""
    interval: Interval | None
    residual: float
    """How far fitted Q evaluation is from its fixed point."""
    dataset_values: np.ndarray  # [E] of the dataset's episodes
    effective_episodes: float | None
    """Effective sample size of importance sampling, None if it was left out."""


def doubts_about_value(evidence: Evidence) -> list[str]:
    """Return the reasons not to believe fitted Q evaluation, each as a sentence; none if there are none."""
    found = []
    values = evidence.dataset_values
    low, high = float(values.min()), float(values.max())
    if evidence.episodes < FEWEST_EPISODES:
        found.append(
            f"the dataset has only {evidence.episodes} episode{'s' if evidence.episodes > 1 else ''}; "
            f"record at least {FEWEST_EPISODES}"
        )
    if evidence.agreement < LEAST_AGREEMENT:
        found.append(
            f"the policy would take only {100 * evidence.agreement:.1f} % of the dataset's actions: what its own "
            "actions lead to is extrapolated"
        )
    if not low <= evidence.value <= high:
        found.append(
            f"the estimate {evidence.value:,.1f} is outside of the values of all episodes in the dataset, "
            f"{low:,.1f} to {high:,.1f}"
        )
    interval = evidence.interval
    if interval is not None and high > low and interval.high - interval.low > high - low:
        found.append("the interval is wider than the range of the dataset's values: it excludes nothing")
    spread = float(values.std())
    if abs(evidence.residual) > LARGEST_RESIDUAL * spread and spread > 0:
        found.append(
            f"the values were still {abs(evidence.residual):,.1f} from their fixed point after the last update; raise "
            "--updates"
        )
    return found


def doubts_about_weights(evidence: Evidence) -> list[str]:
    """Return the reasons not to believe importance sampling."""
    effective = evidence.effective_episodes
    if effective is None or effective >= FEWEST_EPISODES:
        return []
    return [
        f"importance sampling rests on {effective:.1f} effective episodes of {evidence.episodes}, and needs at least "
        f"{FEWEST_EPISODES}: the policy and the behaviour differ too much"
    ]
