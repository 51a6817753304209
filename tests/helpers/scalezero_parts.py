"""Helpers for tests of ScaleZero: tiny networks over three unlike tasks, and a model that remembers nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from planning_parts import generator, randomize
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork, TaskSpec
from rl_training.search.model import ModelOutput

SPECS = (
    TaskSpec("pole", spaces.Box(-np.inf, np.inf, (3,), np.float32), 2),
    TaskSpec("table", spaces.Discrete(7), 4),
    TaskSpec("grid", spaces.Box(0.0, 1.0, (2, 2, 2), np.float32), 3),
)
SIZES: dict[str, Any] = {
    "width": 16,
    "layers": 2,
    "heads": 2,
    "context_steps": 3,
    "expert_size": 6,
    "experts": 3,
    "top_k": 1,
    "adapters": 2,
    "adapter_rank": 2,
    "hidden_size": 7,
    "support_size": 4,
}
DISCOUNT = 0.9


def make_scalezero(seed: int = 0, *, tasks: tuple[TaskSpec, ...] = SPECS, **sizes: Any) -> ScaleZeroNetwork:
    """Return a tiny network with random weights."""
    network = ScaleZeroNetwork(tasks, **{**SIZES, **sizes}, generator=generator(seed))
    randomize(network, seed)
    return network


def observations(task: int, rows: int, seed: int = 0) -> Tensor:
    """Return random observations [rows, ...] of a task."""
    if isinstance(SPECS[task].observation_space, spaces.Discrete):
        return torch.randint(7, (rows,), generator=generator(seed))
    return torch.randn(rows, *(SPECS[task].observation_space.shape or ()), generator=generator(seed))


def task_unroll(task: int, *, seed: int = 0, steps: int = 2, rows: int = 4, weighted: bool = True) -> UnrollBatch:
    """Return windows of a task with random targets and masks."""
    numbers = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.from_numpy((scale * numbers.normal(size=shape)).astype(np.float32))

    def mask(*shape: int) -> Tensor:
        return torch.from_numpy((numbers.random(shape) < 0.7).astype(np.float32))

    actions = SPECS[task].actions
    policy = numbers.dirichlet(np.ones(actions), (steps + 1, rows)).astype(np.float32)
    return UnrollBatch(
        observation=observations(task, rows, seed),
        action=torch.from_numpy(numbers.integers(0, actions, (steps, rows))),
        value=normal(steps + 1, rows, scale=9.0),
        value_mask=mask(steps + 1, rows),
        reward=normal(steps, rows, scale=3.0),
        reward_mask=mask(steps, rows),
        policy=torch.from_numpy(policy),
        policy_mask=mask(steps + 1, rows),
        weight=torch.from_numpy(numbers.uniform(0.2, 1.0, rows).astype(np.float32)) if weighted else None,
        successor=observations(task, steps * rows, seed + 1),
        successor_mask=mask(steps, rows),
    )


class ForgetfulModel:
    """A task's model for the search that reads the whole path from the root again for every state.

    An embedding holds the tokens of the path, at most `LONGEST`, and their number.
    """

    LONGEST = 41

    def __init__(self, network: ScaleZeroNetwork, task: int) -> None:
        self.network = network
        self.task = task

    def initial(self, observation: Tensor) -> ModelOutput:
        """Encode the roots' observations."""
        latent = self.network.encode(self.task, observation)
        tokens = latent.new_zeros(len(latent), self.LONGEST, self.network.width)
        tokens[:, 0] = latent
        return self._arrive(tokens, torch.ones(len(latent)), torch.zeros(len(latent)))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Imagine one action [B] in each state."""
        parts, rows = self.network.parts(self.task), torch.arange(len(embedding))
        tokens = embedding[:, :-1].unflatten(1, (self.LONGEST, -1)).clone()
        count = embedding[:, -1].long()
        tokens[rows, count] = parts.embed(action)
        latent, reward = parts.imagine(self.network.transformer(tokens)[0][rows, count])
        tokens[rows, count + 1] = latent
        return self._arrive(tokens, count + 2.0, expected_scalar(reward))

    def _arrive(self, tokens: Tensor, count: Tensor, reward: Tensor) -> ModelOutput:
        # Tokens after a path's last are zeros, which no token before them sees.
        outputs, _ = self.network.transformer(tokens)
        policy, value = self.network.parts(self.task).predict(outputs[torch.arange(len(tokens)), count.long() - 1])
        number = expected_scalar(value)
        embedding = torch.cat((tokens.flatten(1), count.unsqueeze(1)), 1)
        return ModelOutput(policy, number, reward, torch.full_like(number, DISCOUNT), embedding)
