"""Collection with planning: a search precedes every step, and its results are stored with the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.data.observations import Observation, to_tensor
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.envs.step import StepBatch
from rl_training.envs.vector import VectorEnv
from rl_training.runtime.collector import ReplayDriver, StepCount
from rl_training.search.search import SearchResult


class ActionConverter(Protocol):
    """Converts actions to those of an environment."""

    def env_action(self, action: torch.Tensor) -> np.ndarray:
        """Return actions in the format of the environment's action space."""


class PlanningCollector(ReplayDriver[TrajectoryReplay]):
    """Takes the actions of searches, and stores their policies and values."""

    def __init__(
        self,
        env: VectorEnv,
        actor: ActionConverter,
        make_replay: Callable[[np.ndarray, np.ndarray | None], TrajectoryReplay],
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        """`make_replay` gets an example of one step's actions and, if there are any, action masks."""
        example = np.zeros(env.num_envs, np.int64)
        super().__init__(env, lambda mask: make_replay(example, mask), seed=seed, device=device)
        self.actor = actor

    def shown(self) -> tuple[Observation, np.ndarray | None]:
        """Return the current observations and legal actions."""
        return to_tensor(self._scaled_observation(), self.device), self._mask

    def follow(self, found: SearchResult) -> StepBatch:
        """Take the actions of a search in all environments."""
        step = self._take(found.action, self.actor.env_action(torch.from_numpy(found.action)))
        self.replay.add_search(found.weights, found.value, step.terminated, step.truncated)
        return step


class SuiteCollector:
    """The collectors of several tasks, each with its own replay, saved together."""

    steps_in_progress = 0  # steps are counted immediately

    def __init__(self, tasks: Mapping[str, PlanningCollector]) -> None:
        self.tasks = dict(tasks)
        taken = StepCount()
        for task in self.tasks.values():
            task.taken = taken

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of collection; `env` is None if some environment cannot be saved."""
        states = {name: task.state_dict() for name, task in self.tasks.items()}
        saved = all(state["env"] is not None for state in states.values())
        return {"env": True if saved else None, "tasks": states}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a saved state; environments that could not be saved restart with seeds derived from `step`."""
        for name, task in self.tasks.items():
            task.load_state_dict(state["tasks"][name], step=step)
