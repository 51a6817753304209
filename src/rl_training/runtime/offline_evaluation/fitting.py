"""Trains fitted Q evaluation on the columns of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.evaluation.action_features import ActionFeatures
from rl_training.algorithms.evaluation.fitted_q import (
    FittedQ,
    FittedQBatch,
    FittedQParams,
    ValueScale,
    possible_values,
)
from rl_training.algorithms.evaluation.importance_sampling import pad_episodes, resample_counts
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.data.observations import Observation, to_tensor
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.errors import NonFiniteError
from rl_training.models.encoders import make_encoder
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.offline_evaluation.policy_outputs import ROWS_AT_ONCE, PolicyOutputs, observations_at
from rl_training.runtime.setup.streams import Streams

CLIP = 10.0
"""Normalised observations are limited to so many standard deviations, as in training."""
UPDATES_BETWEEN_REPORTS = 50
"""After so many updates progress is reported and the loss checked, which waits for the device."""


@dataclass(frozen=True)
class FittedValues:
    """Values of the fitted members."""

    initial: np.ndarray  # [M, E] of the policy in the first observation of each episode
    residual: float
    """Mean TD error of the dataset over 1 - gamma: about as far as the values are from their fixed point."""
    taken: np.ndarray | None = None  # [N] mean of the members' Q(s, a) of the dataset's actions
    following: np.ndarray | None = None  # [N] mean of the members' V(s') of the policy in the next observation


class QFitting:
    """The dataset as batches for fitted Q evaluation, and the networks that learn from them."""

    def __init__(
        self,
        policy: Policy,
        columns: DatasetColumns,
        features: ActionFeatures,
        outputs: PolicyOutputs,
        *,
        gamma: float,
        streams: Streams,
        params: FittedQParams | None = None,
    ) -> None:
        self.columns, self.features, self.outputs = columns, features, outputs
        self.gamma = gamma
        self.params = params or FittedQParams()
        self.device = streams.device
        self.normalizer = _dataset_normalizer(policy, columns)
        self.scale = value_scale(columns, gamma)
        self._draws = streams.numpy("batches")
        self._counts = resample_counts(len(columns.first), self.params.members, streams.numpy("members"))
        generator = streams.initial()
        self.model = FittedQ(
            self.params,
            make_encoder(self.normalizer.normalized_space, orthogonal=False, generator=generator),
            num_actions=features.num_actions,
            action_size=features.size,
            bounds=self.scale.bounds,
            device=self.device,
            generator=generator,
        )

    def fit(self, updates: int, advance: Callable[[int], None] = lambda updates: None) -> None:
        """Make the updates; `advance` is called with how many were made."""
        reported = 0
        for update in range(1, updates + 1):
            loss = self.model.update(self._batch(), progress=(update - 1) / updates)
            if update == updates or update % UPDATES_BETWEEN_REPORTS == 0:
                if not bool(torch.isfinite(loss)):
                    raise NonFiniteError(
                        f"the loss of fitted Q evaluation became NaN or infinite by update {update:,}; look for "
                        "extreme rewards or observations with `axiomrl dataset show`"
                    )
                advance(update - reported)
                reported = update

    def _batch(self) -> FittedQBatch:
        columns, device = self.columns, self.device
        chosen = self._draws.integers(len(columns), size=self.params.batch_size)
        place = columns.place[chosen]
        # NumPy's scalars would make single precision of what must not become double on some devices.
        discount = torch.as_tensor(
            np.where(columns.terminated[chosen], np.float32(0.0), np.float32(self.gamma)), device=device
        )
        reward = torch.as_tensor(np.asarray(columns.reward[chosen]), device=device)
        return FittedQBatch(
            observation=self._observation(place),
            action=self._action(chosen),
            reward=self.scale.reward(reward, discount),
            discount=discount,
            next_observation=self._observation(place + 1),
            next_policy=torch.as_tensor(self.outputs.sample_at(place + 1, self._draws), device=device),
            weight=torch.as_tensor(
                self._counts[:, columns.episode[chosen]].astype(np.float32), device=device
            ),  # [M, B]
        )

    def _observation(self, rows: np.ndarray) -> Observation:
        return to_tensor(self.normalizer(observations_at(self.columns, rows)), self.device)

    def _action(self, chosen: np.ndarray) -> Tensor:
        return torch.as_tensor(self.features(np.asarray(self.columns.action[chosen])), device=self.device)

    @torch.no_grad()
    def policy_values(self, rows: np.ndarray) -> np.ndarray:
        """Return the policy's values [M, len(rows)] in some rows of the observations."""
        parts = []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            policy = torch.as_tensor(self.outputs.at(some), device=self.device)
            value = self.model.followed(self.model.target_critic, self._observation(some), policy)
            parts.append(self.scale.value(value).cpu().numpy())
        return np.concatenate(parts, axis=1).astype(np.float64)

    @torch.no_grad()
    def taken_values(self, chosen: np.ndarray) -> np.ndarray:
        """Return the values [M, len(chosen)] of the dataset's actions in some transitions."""
        parts = []
        for start in range(0, len(chosen), ROWS_AT_ONCE):
            some = chosen[start : start + ROWS_AT_ONCE]
            value = self.model.taken(
                self.model.target_critic, self._observation(self.columns.place[some]), self._action(some)
            )
            parts.append(self.scale.value(value).cpu().numpy())
        return np.concatenate(parts, axis=1).astype(np.float64)

    def initial_values(self) -> np.ndarray:
        """Return the policy's values [M, E] in the first observation of each episode."""
        return self.policy_values(np.asarray(self.columns.first))

    def values(self, *, everywhere: bool) -> FittedValues:
        """Return the values of initial states, and with `everywhere` those of all transitions."""
        columns = self.columns
        total = len(columns)
        few = min(total, 8 * ROWS_AT_ONCE)
        chosen = np.arange(total) if everywhere else np.sort(self._draws.choice(total, few, replace=False))
        taken = self.taken_values(chosen).mean(axis=0)
        following = self.policy_values(columns.place[chosen] + 1).mean(axis=0)
        goes_on = self.gamma * ~columns.terminated[chosen]
        error = (columns.reward[chosen] + goes_on * following - taken).mean()
        return FittedValues(
            initial=self.initial_values(),
            residual=float(error / (1.0 - self.gamma)),
            taken=taken if everywhere else None,
            following=following if everywhere else None,
        )


def _dataset_normalizer(policy: Policy, columns: DatasetColumns) -> ObservationNormalizer:
    """Return the normaliser of the dataset's own statistics."""
    normalizer = ObservationNormalizer(policy.observation_space, CLIP)
    total = len(columns) + len(columns.first)
    for start in range(0, total, ROWS_AT_ONCE):
        normalizer.update(observations_at(columns, np.arange(start, min(start + ROWS_AT_ONCE, total))))
    return normalizer


def value_scale(columns: DatasetColumns, gamma: float) -> ValueScale:
    """Return the scale of the dataset's returns: of what followed each of its transitions."""
    returns = returns_to_go(columns, gamma)
    deviation = float(returns.std())
    low, high = possible_values(
        float(columns.reward.min()),
        float(columns.reward.max()),
        terminates=bool(columns.terminated.any()),
        gamma=gamma,
    )
    return ValueScale(float(returns.mean()), deviation or 1.0, low, high)


def returns_to_go(columns: DatasetColumns, gamma: float) -> np.ndarray:
    """Return the discounted rewards [N] from each transition to the end of its episode.

    An episode that did not terminate goes on for ever with the mean reward of its last quarter, which stands for what
    its truncation left out.
    """
    lengths = np.bincount(columns.episode)
    reward = pad_episodes(columns.reward.astype(np.float64), lengths)  # [E, T]
    step = np.arange(reward.shape[1])
    late = (step >= lengths[:, None] - np.maximum(lengths // 4, 1)[:, None]) & (step < lengths[:, None])
    after = (reward * late).sum(axis=1) / late.sum(axis=1) / (1.0 - gamma)
    terminated = columns.terminated[np.cumsum(lengths) - 1]
    reward[np.arange(len(lengths)), lengths - 1] += gamma * np.where(terminated, 0.0, after)
    for before in range(reward.shape[1] - 2, -1, -1):
        reward[:, before] += gamma * reward[:, before + 1]
    return reward[step < lengths[:, None]]
