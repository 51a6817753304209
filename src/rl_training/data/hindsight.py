"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv 1707.01495): learn from goals that were reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.batches import BatchMemory
from rl_training.data.observations import NumpyObservation
from rl_training.data.replay import Replay
from rl_training.data.samplers import Sampler
from rl_training.errors import ConfigError

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


@dataclass(frozen=True)
class GoalTask:
    """Reward and termination of goals; the functions map arrays [n, ...] of achieved and desired goals to [n]."""

    reward: Callable[[np.ndarray, np.ndarray], np.ndarray]
    terminated: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


def of_every_goal(function: Callable[..., Any], achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Return an environment's function of one pair of goals, [n] for n pairs.

    Many environments compute all pairs at once. Others give a single answer for an array of them, as the mazes of
    Gymnasium-Robotics do for the end of an episode, and are asked for each pair.
    """
    answers = np.asarray(function(achieved, desired, {}))
    if answers.shape == (len(achieved),):
        return answers
    return np.array([function(one, other, {}) for one, other in zip(achieved, desired, strict=True)])


class HindsightReplay(Replay):
    """A replay of single steps that replaces some goals when batches are sampled."""

    def __init__(
        self,
        observation_space: Space[Any],
        action: np.ndarray,
        sampler: Sampler,
        *,
        task: GoalTask,
        strategy: str,
        ratio: float,
        gamma: float,
        num_envs: int,
        **settings: Any,
    ) -> None:
        """`strategy`: a goal reached later (`future`), at the end (`final`) or anywhere in the episode (`episode`)."""
        check_goal_space(observation_space)
        super().__init__(observation_space, action, sampler, gamma=gamma, num_envs=num_envs, n_step=1, **settings)
        self.task = task
        self.strategy = strategy
        self.ratio = ratio
        self.gamma = gamma
        # Single steps are stored in the order of the environments: serial numbers within an episode are num_envs apart.
        self.columns["ended"] = np.zeros(self.capacity, np.bool_)
        self._breaks: list[int] = []  # transition counts at which all episodes were cut off
        self._first = np.zeros(self.capacity, np.int64)  # serial number of the episode's first transition
        self._last = np.full(self.capacity, -1)  # and of its last one, once the episode has ended
        self._running = np.arange(num_envs)  # first serial numbers of the episodes in progress

    def begin(self, observation: NumpyObservation, mask: np.ndarray | None = None) -> None:
        """Begin new episodes in all environments; those in progress end here."""
        super().begin(observation, mask)
        if self.count:
            self._breaks.append(self.count)
            self._close(np.arange(self.num_envs))

    def add(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final_observation: NumpyObservation,
        observation: NumpyObservation,
        final_mask: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> None:
        """Add one step of every environment, and close the episodes that it ended."""
        super().add(action, reward, terminated, truncated, final_observation, observation, final_mask, mask)
        rows = np.arange(self.count - self.num_envs, self.count) % self.capacity
        ended = terminated | truncated
        self.columns["ended"][rows] = ended
        self._first[rows], self._last[rows] = self._running, -1
        self._close(np.flatnonzero(ended))

    def _close(self, envs: np.ndarray) -> None:
        """Record the last transition of the episodes that just ended."""
        for env in envs:
            last = self.count - self.num_envs + int(env)
            oldest = max(int(self._running[env]), last - (self.capacity // self.num_envs - 1) * self.num_envs)
            self._last[np.arange(oldest, last + 1, self.num_envs) % self.capacity] = last
            self._running[env] = self.count + int(env)

    def gather(
        self, rows: np.ndarray, generator: np.random.Generator, memory: BatchMemory | None = None
    ) -> dict[str, Any]:
        """Return transitions, a fraction of them with a goal that their episode reached."""
        gathered = super().gather(rows, generator, memory)
        last = self._last[rows]
        replaced = (last >= 0) & (generator.random(rows.shape) < self.ratio)
        goals = self._reached(rows[replaced], last[replaced], generator)
        desired = gathered["observation"]["desired_goal"].copy()
        desired[replaced] = goals
        for name in ("observation", "next_observation"):
            gathered[name] = {**gathered[name], "desired_goal": desired}
        achieved = gathered["next_observation"]["achieved_goal"][replaced]
        gathered["reward"][replaced] = self.task.reward(achieved, goals)
        if self.task.terminated is not None:
            ended = self.task.terminated(achieved, goals)
            gathered["discount"][replaced] = np.where(ended, 0.0, self.gamma)
        return gathered

    def _reached(self, rows: np.ndarray, last: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return goals [n, ...] that the episodes of these rows reached, chosen by the strategy."""
        newest = self.count - 1
        serial = newest - (newest - rows) % self.capacity
        if self.strategy == "final":
            chosen = last
        else:
            # An episode's beginning may have been overwritten: start at its oldest transition that can be sampled.
            first = self._first[rows]
            first = first + np.maximum(0, -((first - self.oldest) // self.num_envs)) * self.num_envs
            start = serial if self.strategy == "future" else first
            chosen = start + generator.integers(0, (last - start) // self.num_envs + 1) * self.num_envs
        successors = self.columns["successor"][chosen % self.capacity]
        reached = self.observations.get(successors)
        assert isinstance(reached, dict)
        return reached["achieved_goal"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the rows; beginnings and ends of episodes follow from the rows."""
        return {**super().state_dict(), "breaks": self._breaks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; the rows must have been restored before."""
        super().load_state_dict(state)
        self._breaks = list(state["breaks"])
        start = max(0, self.count - self.capacity // self.num_envs * self.num_envs)
        serials = np.arange(start, self.count).reshape(-1, self.num_envs)  # [steps, num_envs]
        rows = serials % self.capacity
        ended = self.columns["ended"][rows]
        for count in self._breaks:
            ended[(serials >= count - self.num_envs) & (serials < count)] = True
        begins = np.vstack((np.ones((1, self.num_envs), bool), ended))  # one row more, for the next step
        steps = np.vstack((serials, serials[-1:] + self.num_envs)) if len(serials) else np.arange(self.num_envs)[None]
        first = np.maximum.accumulate(np.where(begins, steps, 0))
        self._first[rows], self._running = first[:-1], first[-1].copy()
        never = np.iinfo(np.int64).max
        last = np.minimum.accumulate(np.where(ended, serials, never)[::-1])[::-1]
        self._last[rows] = np.where(last == never, -1, last)


def check_goal_space(space: Space[Any]) -> None:
    """Raise an error if observations have no goals."""
    if not isinstance(space, spaces.Dict) or not all(key in space.spaces for key in GOAL_KEYS):
        raise ConfigError(
            "algo_kwargs.hindsight: needs Dict observations with the keys observation, achieved_goal and desired_goal; "
            "set hindsight to none or choose a goal-conditioned environment"
        )
