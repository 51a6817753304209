"""What a policy does in every observation of a dataset, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from rl_training.algorithms.evaluation.action_features import ActionFeatures
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.data.datasets.episode import ACTION_MASK
from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.runtime.acting.policy import Policy

ROWS_AT_ONCE = 1024
SAMPLES = 16
"""Actions that are sampled in every observation if the policy is stochastic and cannot tell its probabilities."""


class PolicyOutputs(NamedTuple):
    """A policy's outputs for all rows of a dataset's observations."""

    policy: np.ndarray  # float32 [rows, n] probabilities of discrete actions, or [K, rows, size] sampled actions
    log_prob: np.ndarray | None
    """[N] log-probabilities of the dataset's actions; None if the policy has no such probabilities."""

    def at(self, rows: np.ndarray) -> np.ndarray:
        """Return the outputs of some rows, [B, n] or [K, B, size]."""
        return self.policy[rows] if self.policy.ndim == 2 else self.policy[:, rows]

    def sample_at(self, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return probabilities [B, n], or one of the sampled actions of each row, [1, B, size]."""
        if self.policy.ndim == 2:
            return self.policy[rows]
        return self.policy[generator.integers(len(self.policy), size=len(rows)), rows][None]


def policy_outputs(
    policy: Policy,
    columns: DatasetColumns,
    features: ActionFeatures,
    *,
    generator: torch.Generator | None,
    advance: Callable[[int], None] = lambda rows: None,
) -> PolicyOutputs:
    """Return the outputs of the best actions, or of the stochastic policy if a generator is given.

    `advance` is called with the number of rows that were evaluated.
    """
    parts = []
    for rows, observation, mask in _chunks(columns):
        parts.append(_outputs(policy, observation, mask, features, generator))
        advance(len(rows))
    outputs = np.concatenate(parts, axis=0 if features.num_actions is not None else 1)
    return PolicyOutputs(outputs, _log_probs(policy, columns, features, outputs, stochastic=generator is not None))


def _chunks(columns: DatasetColumns) -> Iterator[tuple[np.ndarray, NumpyObservation, np.ndarray | None]]:
    """Return all rows in order, with their observations and action masks."""
    masks = columns.observation_infos.get(ACTION_MASK)
    total = len(columns) + len(columns.first)
    for start in range(0, total, ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, total))
        yield rows, observations_at(columns, rows), None if masks is None else np.asarray(masks[rows], dtype=bool)


def observations_at(columns: DatasetColumns, rows: np.ndarray) -> NumpyObservation:
    """Return the raw observations of some rows."""
    found: NumpyObservation = map_observation(lambda array: np.asarray(array[rows]), columns.observation)
    return found


def _outputs(
    policy: Policy,
    observation: NumpyObservation,
    mask: np.ndarray | None,
    features: ActionFeatures,
    generator: torch.Generator | None,
) -> np.ndarray:
    def sampled(count: int) -> np.ndarray:
        return np.stack([features(policy.actions(observation, mask, generator)) for _ in range(count)])

    if features.num_actions is None:
        return sampled(1 if generator is None else SAMPLES)
    if generator is not None:
        probabilities = _probabilities(policy, observation, mask, features.num_actions)
        if probabilities is not None:
            return probabilities
    choices = sampled(1 if generator is None else SAMPLES)  # [K, B]
    return np.eye(features.num_actions, dtype=np.float32)[choices].mean(axis=0)


def _probabilities(
    policy: Policy, observation: NumpyObservation, mask: np.ndarray | None, num_actions: int
) -> np.ndarray | None:
    """Return the probabilities [B, n] of all discrete actions, or None if the policy does not know them."""
    assert isinstance(policy.action_space, spaces.Discrete)
    first = next(iter(observation.values())) if isinstance(observation, dict) else observation
    columns = []
    for action in range(num_actions):
        taken = np.full(len(first), action + policy.action_space.start)
        log_prob = policy.log_probs(observation, taken, mask)
        if log_prob is None:
            return None
        columns.append(np.exp(log_prob))
    probabilities = np.stack(columns, axis=1)
    if mask is not None:
        probabilities = np.where(mask, probabilities, 0.0)
    return (probabilities / probabilities.sum(axis=1, keepdims=True)).astype(np.float32)


def _log_probs(
    policy: Policy, columns: DatasetColumns, features: ActionFeatures, outputs: np.ndarray, *, stochastic: bool
) -> np.ndarray | None:
    """Return the log-probabilities [N] of the dataset's actions in float64."""
    if not stochastic:
        return _deterministic_log_probs(columns, features, outputs)
    masks = columns.infos.get(ACTION_MASK)
    parts = []
    for start in range(0, len(columns), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        mask = None if masks is None else np.asarray(masks[rows], dtype=bool)
        found = policy.log_probs(observations_at(columns, columns.place[rows]), np.asarray(columns.action[rows]), mask)
        if found is None:
            return None
        parts.append(found.astype(np.float64))
    return np.concatenate(parts)


def _deterministic_log_probs(
    columns: DatasetColumns, features: ActionFeatures, outputs: np.ndarray
) -> np.ndarray | None:
    """Return 0 where the policy takes the dataset's action, else -inf; None for continuous actions."""
    if isinstance(features.space, spaces.Box):
        return None  # a single action has no density
    taken = features(np.asarray(columns.action))
    if features.num_actions is not None:
        same = outputs[columns.place, taken] > 0
    else:
        same = (outputs[0, columns.place] == taken).all(axis=1)
    return np.where(same, 0.0, -np.inf)
