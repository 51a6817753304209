"""Helpers for tests of the planning family: tiny learners whose every weight counts, and batches at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.models.encoders import VectorEncoder
from rl_training.models.planning.planning_network import PlanningNetwork

CPU = torch.device("cpu")
OBSERVATION = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = 3
SMALL: dict[str, Any] = {"latent_size": 6, "hidden_size": 7, "support_size": 4, "unroll_steps": 3, "n_step": 2}
CONTROLS = {"learning_rate": 1e-2, "num_simulations": 8, "root_exploration_fraction": 0.25, "temperature": 1.0}


def generator(seed: int) -> torch.Generator:
    """Return a seeded generator."""
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def randomize(network: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter random numbers: heads begin with zeros, which hide mistakes."""
    numbers = generator(seed)
    for parameter in network.parameters():
        parameter.copy_(0.7 * torch.randn(parameter.shape, generator=numbers))


def make_network(seed: int = 0, *, prefix_horizon: int | None = None, projection: bool = False) -> PlanningNetwork:
    """Return a tiny network with random weights."""
    network = PlanningNetwork(
        VectorEncoder(OBSERVATION),
        ACTIONS,
        latent_size=6,
        hidden_size=7,
        support_size=4,
        projection_size=5 if projection else None,
        prefix_size=None if prefix_horizon is None else 4,
        prefix_horizon=prefix_horizon or 5,
        generator=generator(seed),
    )
    randomize(network, seed)
    return network


def make_algorithm(
    kind: type[MuZeroParams] = MuZeroParams,
    *,
    seed: int = 0,
    random: bool = True,
    observation_space: Space[Any] = OBSERVATION,
    **settings: Any,
) -> MuZero:
    """Return a tiny learner, by default with random weights, its target network included."""
    algorithm = MuZero(
        kind(**{**SMALL, **settings}),
        observation_space,
        spaces.Discrete(ACTIONS),
        device=CPU,
        generator=generator(seed),
    )
    if random:
        randomize(algorithm.network, seed)
        randomize(algorithm.target_network, seed + 1)
        algorithm.load_state_dict(algorithm.state_dict())  # the searches see the new weights
    return algorithm


def random_unroll(
    *, seed: int = 0, steps: int = 3, rows: int = 5, weighted: bool = True, successors: bool = False
) -> UnrollBatch:
    """Return windows of random numbers with random masks."""
    numbers = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.from_numpy((scale * numbers.normal(size=shape)).astype(np.float32))

    def mask(*shape: int) -> torch.Tensor:
        return torch.from_numpy((numbers.random(shape) < 0.7).astype(np.float32))

    policy = numbers.dirichlet(np.ones(ACTIONS), (steps + 1, rows)).astype(np.float32)
    return UnrollBatch(
        observation=normal(rows, 3),
        action=torch.from_numpy(numbers.integers(0, ACTIONS, (steps, rows))),
        value=normal(steps + 1, rows, scale=9.0),
        value_mask=mask(steps + 1, rows),
        reward=normal(steps, rows, scale=3.0),
        reward_mask=mask(steps, rows),
        policy=torch.from_numpy(policy),
        policy_mask=mask(steps + 1, rows),
        weight=torch.from_numpy(numbers.uniform(0.2, 1.0, rows).astype(np.float32)) if weighted else None,
        successor=normal(steps * rows, 3) if successors else None,
        successor_mask=mask(steps, rows),
    )
