"""Evaluation episodes in progress: of environments for one agent, and of worlds with several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.envs.checks import non_finite_row
from rl_training.envs.multi_agent.agent_vector import agent_return
from rl_training.envs.multi_agent.world import AgentStep, World
from rl_training.envs.slot import EnvSlot
from rl_training.errors import NonFiniteError
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.recording.env_metrics import EnvironmentMetrics


class Episode(Protocol):
    """An episode in progress."""

    index: int
    """Its place among all episodes of an evaluation."""
    seed: int

    @property
    def place(self) -> Any:
        """The environment or world that it is played in."""

    @property
    def length(self) -> int:
        """Steps so far."""

    @property
    def over(self) -> bool:
        """Whether the environment has ended it."""

    def finish(self) -> tuple[float, EnvironmentMetrics | None]:
        """Return its return and the contents of `info["metrics"]`."""


class SlotEpisode:
    """An episode of one agent."""

    def __init__(self, slot: EnvSlot, index: int, seed: int, memory_size: int) -> None:
        self.place, self.index, self.seed = slot, index, seed
        self.observation, self.mask = slot.reset(seed)
        self.memory = np.zeros(memory_size, np.float32)
        self.length, self.over = 0, False
        self._return = 0.0
        self._given: EnvironmentMetrics | None = None

    def take(self, action: Any, memory: np.ndarray | None) -> None:
        """Let the agent act; `memory` holds what it remembers after it."""
        step = self.place.step(action)
        if memory is not None:
            self.memory = memory
        self.observation, self.mask = step.obs, step.action_mask
        self._return += float(step.reward)
        self.length += 1
        if step.metrics is not None:
            self._given = self._given or EnvironmentMetrics()
            self._given.add(step.metrics)
        self.over = bool(step.terminated or step.truncated)

    def finish(self) -> tuple[float, EnvironmentMetrics | None]:
        """Return the return and what the environment has measured."""
        return self._return, self._given


class WorldEpisode:
    """An episode of several agents, which lasts until all have left; its return is the mean of theirs."""

    def __init__(self, world: World, index: int, seed: int, memory_size: int) -> None:
        self.place, self.index, self.seed = world, index, seed
        world.reset(seed)
        self.memory = np.zeros((len(world.agents), memory_size), np.float32)
        self._returns: list[float] = []  # of the agents that have left
        self._given = EnvironmentMetrics()

    @property
    def length(self) -> int:
        """Steps of the world."""
        return self.place.steps

    @property
    def over(self) -> bool:
        """Whether all agents have left."""
        return self.place.over

    def take(self, actions: dict[int, Any], memory: np.ndarray | None) -> None:
        """Let the agents act; `memory` holds what they remember after it, one row for each that acted."""
        steps = self.place.step(actions)
        for row, step in enumerate(steps):
            if memory is not None:
                self.memory[step.agent] = memory[row]
            if step.episode is not None:
                self.memory[step.agent] = 0.0
                self._leave(step)

    def finish(self) -> tuple[float, EnvironmentMetrics | None]:
        """Return the mean return of all agents, and the metrics with each one's own."""
        for number in np.flatnonzero(self.place.present):  # cut off by the step cap
            episode = self.place.so_far(int(number))
            self._leave(AgentStep(int(number), None, 0.0, terminated=False, truncated=True, mask=None, episode=episode))
        return float(np.mean(self._returns)), self._given

    def _leave(self, step: AgentStep) -> None:
        assert step.episode is not None
        self._returns.append(step.episode[0])
        self._given.add(agent_return(self.place.names, step))


def act_in_slots(policy: Policy, running: Sequence[SlotEpisode], generator: torch.Generator | None) -> None:
    """Let the agents of all environments act, with one call of the policy."""
    batch = _stack([episode.observation for episode in running])
    _check_finite(running, batch)
    masks = _stack_masks([episode.mask for episode in running])
    memory = np.stack([episode.memory for episode in running]) if policy.memory_size else None
    actions, after = policy.act(batch, masks, generator, memory)
    for row, (episode, action) in enumerate(zip(running, actions, strict=True)):
        episode.take(action, None if after is None else after[row])


def act_in_worlds(policy: Policy, running: Sequence[WorldEpisode], generator: torch.Generator | None) -> None:
    """Let all agents of all worlds act, with one call of the policy."""
    places = [(episode, int(number)) for episode in running for number in np.flatnonzero(episode.place.present)]
    batch = _stack([episode.place.observations[number] for episode, number in places])
    masks = _stack_masks([episode.place.masks[number] for episode, number in places])
    memory = None
    if policy.memory_size:
        memory = np.stack([episode.memory[number] for episode, number in places])
    actions, after = policy.act(batch, masks, generator, memory)
    start = 0
    for episode in running:
        numbers = [int(number) for number in np.flatnonzero(episode.place.present)]
        rows = range(start, start + len(numbers))
        start = rows.stop
        chosen = {number: actions[row] for number, row in zip(numbers, rows, strict=True)}
        episode.take(chosen, None if after is None else after[rows.start : rows.stop])


def _stack(observations: Sequence[Any]) -> NumpyObservation:
    return map_observation(lambda *arrays: np.stack(arrays), *observations)


def _stack_masks(masks: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return masks [B, actions], of ones where there is none, or None if nobody has one."""
    known = next((mask for mask in masks if mask is not None), None)
    if known is None:
        return None
    return np.stack([np.ones_like(known) if mask is None else mask for mask in masks])


def _check_finite(running: Sequence[SlotEpisode], batch: NumpyObservation) -> None:
    """Raise an error for NaN and infinity in the observations."""
    found = non_finite_row(batch)
    if found is not None:
        row, key = found
        place = None if running[row].length else "in reset"
        error = running[row].place.non_finite(f"observation{key}", place=place)
        raise NonFiniteError(f"in the evaluation, {error}; the last good checkpoint is kept")
