"""Helpers for tests of ScaleZero as a whole: tiny learners over three unlike tasks, searches and gradient steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from planning_parts import CPU, generator
from rl_training.algorithms.planning.scalezero_params import ScaleZeroParams
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.models.planning.scalezero_network import TaskSpec
from rl_training.search.search import SearchResult
from scalezero_parts import SIZES, SPECS, observations, task_unroll

ALL = (0, 1, 2)
ROWS = (3, 2, 4)  # of each task in a search
CONTROLS = {"learning_rate": 1e-2, "num_simulations": 9}
SEARCHES = pytest.mark.parametrize("search", ["puct", "gumbel"])


def make_algorithm(
    seed: int = 0, *, tasks: Sequence[TaskSpec] = SPECS, adapters: bool = True, start: int = 0, **settings: Any
) -> ScaleZero:
    """Return a tiny learner whose every part says something; `adapters` says whether those do that are to come."""
    defaults = {**SIZES, "unroll_steps": 2, "gamma": 0.9, "target_update_interval": 3, "smallest_value_range": 0.1}
    algorithm = ScaleZero(
        ScaleZeroParams(**{**defaults, **settings}),
        spaces.Dict([(task.name, task.observation_space) for task in tasks]),
        spaces.Dict([(task.name, spaces.Discrete(task.actions, start=start)) for task in tasks]),
        device=CPU,
        generator=generator(seed),
    )
    enliven(algorithm, seed, adapters=adapters)
    return algorithm


@torch.no_grad()
def enliven(algorithm: ScaleZero, seed: int, *, adapters: bool) -> None:
    """Give latents, heads and experts something to tell apart, and adapters too if they are not to begin with 0."""
    numbers = generator(seed)
    for network in (algorithm.network, algorithm.target_network):
        for name, parameter in network.named_parameters():
            if any(part in name for part in ("value.weight", "reward.weight", "representation.second")):
                parameter.normal_(std=1.5, generator=numbers)
            elif "policy.weight" in name:
                parameter.normal_(std=0.4, generator=numbers)
            elif "router" in name:
                parameter.normal_(generator=numbers)
            elif ".up." in name and adapters:
                parameter.normal_(std=0.5, generator=numbers)


def shown(tasks: Sequence[int] = ALL) -> list[tuple[Any, np.ndarray | None]]:
    """Return what the environments of some tasks show, without masks."""
    return [(observations(task, ROWS[task], seed=task), None) for task in tasks]


def searched(algorithm: ScaleZero, tasks: Sequence[int], seen: Any = None) -> list[SearchResult]:
    """Return what a search without noise finds in some tasks."""
    return algorithm.search_tasks(
        tasks,
        shown(tasks) if seen is None else seen,
        num_simulations=12,
        exploration=0.0,
        generator=np.random.default_rng(0),
    )


def batches(tasks: Sequence[int] = ALL, seed: int = 0) -> dict[int, UnrollBatch]:
    """Return windows of some tasks to learn from."""
    return {task: task_unroll(task, seed=10 * seed + task, rows=6) for task in tasks}


def update(algorithm: ScaleZero, times: int = 1, *, first: int = 0) -> None:
    """Make gradient steps on the tasks that are trained."""
    for seed in range(first, first + times):
        algorithm.update(batches(algorithm.trained, seed), CONTROLS, generator(0))
        algorithm.steps_taken(algorithm.updates - 1, algorithm.updates)  # one step per update


def numbers(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's parameters by their names."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def moved(module: torch.nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Return the names of the parameters that differ from their copies in any bit."""
    return {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}


def assert_same_findings(ours: SearchResult, theirs: SearchResult) -> None:
    """Assert that two searches visited the same actions and found the same numbers."""
    np.testing.assert_array_equal(ours.action, theirs.action)
    np.testing.assert_array_equal(ours.visits, theirs.visits)
    for field in ("weights", "value", "q_values", "network_value"):
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), rtol=1e-5, atol=1e-5, err_msg=field)
