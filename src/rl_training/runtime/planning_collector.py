"""Collecting by planning: a search before every step, whose findings are kept with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch

from rl_training.data.observations import Observation, to_tensor
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.envs.step import StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.runtime.collector import ReplayDriver
from rl_training.search.search import SearchResult


class PlanningActor(Protocol):
    """What collecting needs of a planning algorithm."""

    def plan(
        self,
        observation: Observation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: np.random.Generator,
    ) -> SearchResult:
        """Search with exploration from the observations of all environments."""

    def env_action(self, action: torch.Tensor) -> np.ndarray:
        """Return actions in the form the environment takes."""


class PlanningCollector(ReplayDriver[TrajectoryReplay]):
    """Acts as the search says, and keeps its policies and values."""

    def __init__(
        self,
        env: VectorEnv,
        actor: PlanningActor,
        make_replay: Callable[[np.ndarray, np.ndarray | None], TrajectoryReplay],
        *,
        seed: int,
        device: torch.device,
        generator: np.random.Generator,
    ) -> None:
        """`make_replay` gets an example of one step's actions and, if there are any, action masks."""
        example = np.zeros(env.num_envs, np.int64)
        super().__init__(env, lambda mask: make_replay(example, mask), seed=seed, device=device)
        self.actor = actor
        self.generator = generator

    def step(self, controls: Mapping[str, float]) -> StepBatch:
        """Take one step in every environment."""
        observation = to_tensor(self._observation, self.device)
        found = self.actor.plan(observation, self._mask, controls, self.generator)
        step = self._take(found.action, self.actor.env_action(torch.from_numpy(found.action)))
        self.replay.note_search(found.weights, found.value, step.terminated, step.truncated)
        return step
