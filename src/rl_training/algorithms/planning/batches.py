"""Training batches from the rows of a replay: returns, bootstraps, reanalysed policies."""

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
    """The random generators used to make batches."""

    replay: np.random.Generator
    search: np.random.Generator
    augmentation: torch.Generator


class Bootstrap(Protocol):
    """The methods that batches need from a network."""

    @property
    def encoder(self) -> VectorEncoder | ImageEncoder | DictEncoder:
        """The observation encoder."""

    def values(self, observation: Observation) -> torch.Tensor:
        """Return the values [B] of observations."""


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches whose targets come from the target network."""

    params: PlanningParams
    network: Bootstrap
    search: Callable[..., SearchResult]
    """Searches from observations with the target network; takes the arguments of `TreeSearch.run` after the model."""
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
        """Return a batch of windows that begin at rows [B], with importance weights [B]."""
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
        # After the end of an episode the action has no effect; random actions teach the model this.
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
        """Replace the policies of a fraction of the trajectories by those of a new search.

        The search uses exploration noise, as acting does: without noise, the action tried first would look best
        and would be learned permanently.
        """
        count = round(self.params.reanalyze_ratio * window.real.shape[1])
        if count == 0:
            return window
        # Prioritised sampling returns rows in the order of the replay: the first ones would always be the oldest.
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
        """Return the observations [K * B, ...] after each step if the loss needs them, else None."""
        if not self.params.with_successors:
            return None
        # Past an episode's last step, repeat its last observation; the loss masks it.
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
