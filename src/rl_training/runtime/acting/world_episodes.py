"""Evaluation episodes of worlds in which several agents act by one policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rl_training.data.observations import map_observation
from rl_training.envs.multi_agent.agent_vector import agent_return
from rl_training.envs.multi_agent.world import AgentStep, World
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.recording.env_metrics import EnvironmentMetrics


class WorldEpisode:
    """An episode in progress: it lasts until all agents have left."""

    def __init__(self, world: World, index: int, seed: int, memory_size: int) -> None:
        self.world, self.index, self.seed = world, index, seed
        world.reset(seed)
        self.memory = np.zeros((len(world.agents), memory_size), np.float32)
        self._returns: list[float] = []  # of the agents that have left
        self._given = EnvironmentMetrics()

    def take(self, actions: dict[int, Any], memory: np.ndarray | None) -> None:
        """Let the agents act; `memory` holds what they remember after it, one row for each that acted."""
        steps = self.world.step(actions)
        for row, step in enumerate(steps):
            if memory is not None:
                self.memory[step.agent] = memory[row]
            if step.episode is not None:
                self.memory[step.agent] = 0.0
                self._leave(step)

    def finish(self) -> tuple[float, EnvironmentMetrics]:
        """Return the mean return of all agents, and the metrics with each one's own."""
        for number in np.flatnonzero(self.world.present):  # cut off by the step cap
            episode = self.world.so_far(int(number))
            self._leave(AgentStep(int(number), None, 0.0, terminated=False, truncated=True, mask=None, episode=episode))
        return float(np.mean(self._returns)), self._given

    def _leave(self, step: AgentStep) -> None:
        assert step.episode is not None
        self._returns.append(step.episode[0])
        self._given.add(agent_return(self.world.names, step))


def act_together(policy: Policy, running: Sequence[WorldEpisode], generator: torch.Generator | None) -> None:
    """Let all agents of all worlds act, with one call of the policy."""
    places = [(episode, int(number)) for episode in running for number in np.flatnonzero(episode.world.present)]
    shown = [episode.world.observations[number] for episode, number in places]
    batch = map_observation(lambda *arrays: np.stack(arrays), *shown)
    legal = [episode.world.masks[number] for episode, number in places]
    known = next((mask for mask in legal if mask is not None), None)
    masks = None
    if known is not None:
        masks = np.stack([np.ones_like(known) if mask is None else mask for mask in legal])
    memory = None
    if policy.memory_size:
        memory = np.stack([episode.memory[number] for episode, number in places])
    actions, after = policy.act(batch, masks, generator, memory)
    start = 0
    for episode in running:
        numbers = [int(number) for number in np.flatnonzero(episode.world.present)]
        rows = range(start, start + len(numbers))
        start = rows.stop
        chosen = {number: actions[row] for number, row in zip(numbers, rows, strict=True)}
        episode.take(chosen, None if after is None else after[rows.start : rows.stop])
