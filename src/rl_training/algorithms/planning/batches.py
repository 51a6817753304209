"""From rows of a replay to a batch for the learner: returns, bootstraps, policies searched again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from rl_training.algorithms.planning.params import PlanningParams
from rl_training.algorithms.planning.targets import partial_returns, steps_by_age, unroll_targets
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.data.observations import NumpyObservation, Observation, to_tensor
from rl_training.data.trajectory_replay import TrajectoryReplay, Window
from rl_training.models.augmentation import shift_observation
from rl_training.models.encoders import DictEncoder, ImageEncoder, VectorEncoder
from rl_training.search.search import SearchResult


@dataclass(frozen=True)
class Draws:
    """The random streams that batches are made with."""

    replay: np.random.Generator
    search: np.random.Generator
    augmentation: torch.Generator


class Bootstrap(Protocol):
    """What batches need of a network."""

    @property
    def encoder(self) -> VectorEncoder | ImageEncoder | DictEncoder:
        """What reads observations."""

    def values(self, observation: Observation) -> torch.Tensor:
        """Return the values [B] of observations."""


@dataclass(frozen=True)
class BatchMaker:
    """Makes targets with the target network, which moves more slowly than the one that learns."""

    params: PlanningParams
    network: Bootstrap
    search: Callable[..., SearchResult]
    """Searches from observations with the target network: takes what `TreeSearch.run` takes after the model."""
    actions: int
    device: torch.device

    def make(
        self,
        replay: TrajectoryReplay,
        rows: np.ndarray,
        weight: np.ndarray | None,
        *,
        num_simulations: int,
        exploration: float,
        total_timesteps: int,
        draws: Draws,
    ) -> UnrollBatch:
        """Return the batch of windows that begin at rows [B] and count by weights [B]."""
        params = self.params
        steps = params.unroll_steps
        window = replay.windows(rows, steps + params.n_step)
        n_step: int | np.ndarray = params.n_step
        if params.shrink_n_step:
            n_step = steps_by_age(replay.count - replay.serials(rows), params.n_step, total_timesteps)
        returns = partial_returns(window, steps, n_step, params.discount)
        values = returns.total
        needed = returns.factor != 0
        if needed.any():
            values[needed] += returns.factor[needed] * self._values(replay.reached(returns.last[needed]))
        window = self._reanalyze(replay, window, draws, num_simulations=num_simulations, exploration=exploration)
        targets = unroll_targets(
            window, values, prefix_horizon=params.prefix_horizon, absorbing_ends=params.absorbing_ends
        )
        # Past the end any action will do; random ones teach that none of them matters.
        past = draws.replay.integers(0, self.actions, size=(steps, len(rows)))
        return UnrollBatch(
            observation=self._augmented(replay.observed(rows)[0], draws),
            action=self._tensor(np.where(window.real[:steps], window.action[:steps], past)),
            value=self._tensor(targets.value),
            value_mask=self._tensor(targets.value_mask),
            reward=self._tensor(targets.reward),
            reward_mask=self._tensor(targets.reward_mask),
            policy=self._tensor(targets.policy),
            policy_mask=self._tensor(targets.policy_mask),
            weight=None if weight is None else self._tensor(weight),
            successor=self._successors(replay, window, draws),
            successor_mask=self._tensor(targets.successor_mask),
        )

    @torch.inference_mode()
    def _values(self, observation: NumpyObservation) -> np.ndarray:
        return self.network.values(to_tensor(observation, self.device)).cpu().numpy()

    def _reanalyze(
        self, replay: TrajectoryReplay, window: Window, draws: Draws, *, num_simulations: int, exploration: float
    ) -> Window:
        """Replace the policies of a share of the trajectories by what a search finds now.

        It explores as acting does: without noise, whatever is tried first looks best and is learned for good.
        """
        count = round(self.params.reanalyze_ratio * window.real.shape[1])
        if count == 0:
            return window
        # Which rows a batch begins at is drawn by slices of priority: the first ones would always be the oldest.
        chosen = draws.replay.permutation(window.real.shape[1])[:count]
        again = np.zeros_like(window.real[: self.params.unroll_steps + 1])
        again[:, chosen] = True
        again &= window.real[: len(again)]
        observation, legal = replay.observed(window.rows[: len(again)][again])
        found = self.search(
            to_tensor(observation, self.device),
            num_simulations=num_simulations,
            exploration=exploration,
            generator=draws.search,
            legal=legal,
        )
        policy = window.policy.copy()
        policy[: len(again)][again] = found.weights
        return window._replace(policy=policy)

    def _successors(self, replay: TrajectoryReplay, window: Window, draws: Draws) -> Observation | None:
        """Return the observations [K * B, ...] after each step, where they are learned from."""
        if not self.params.with_successors:
            return None
        # After an episode's last step its last observation stands, also where nothing is learned of it.
        real = window.real[: self.params.unroll_steps]
        latest = np.maximum.accumulate(np.where(real, np.arange(len(real))[:, None], 0))
        return self._augmented(replay.reached(np.take_along_axis(window.rows, latest, 0).ravel()), draws)

    def _augmented(self, observation: NumpyObservation, draws: Draws) -> Observation:
        tensors = to_tensor(observation, self.device)
        if self.params.augmentation == "none":
            return tensors
        return shift_observation(self.network.encoder, tensors, draws.augmentation)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)
