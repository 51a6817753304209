"""Helpers for tests of algorithms with a replay: batches made by hand or at random, and comparisons of learners."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.data.replay import ReplayBatch

CPU = torch.device("cpu")
OBSERVATION = spaces.Box(-np.inf, np.inf, (3,), np.float32)
CHOICE = spaces.Discrete(4)
TORQUE = spaces.Box(-1.0, 1.0, (2,), np.float32)
CONTROLS = {"learning_rate": 1e-2, "epsilon": 0.1, "per_beta": 0.4}


def generator(seed: int) -> torch.Generator:
    """Return a seeded generator."""
    return torch.Generator().manual_seed(seed)


def batch_of(
    reward: Sequence[float],
    discount: Sequence[float],
    *,
    action: Sequence[Any] | None = None,
    weight: Sequence[float] | None = None,
) -> ReplayBatch:
    """Return transitions from state 0 to state 1; what is observed is the number of the state."""
    rows = len(reward)
    return ReplayBatch(
        observation=torch.zeros(rows, 1),
        action=torch.tensor(action if action is not None else [0] * rows),
        reward=torch.tensor(reward),
        discount=torch.tensor(discount),
        next_observation=torch.ones(rows, 1),
        weight=None if weight is None else torch.tensor(weight),
    )


def random_batch(
    action_space: Space[Any], *, seed: int = 1, rows: int = 16, weighted: bool = False, discount: float = 0.9
) -> ReplayBatch:
    """Return transitions of `OBSERVATION`, a quarter of them terminated."""
    rng = np.random.default_rng(seed)
    if isinstance(action_space, spaces.Discrete):
        action = rng.integers(action_space.n, size=rows)
    else:
        assert action_space.shape is not None
        action = rng.uniform(-1, 1, size=(rows, *action_space.shape)).astype(np.float32)
    return ReplayBatch(
        observation=torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32)),
        action=torch.from_numpy(action),
        reward=torch.from_numpy(rng.normal(size=rows).astype(np.float32)),
        discount=torch.from_numpy(np.where(rng.random(rows) < 0.25, 0.0, discount).astype(np.float32)),
        next_observation=torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32)),
        weight=torch.from_numpy(rng.uniform(0.2, 1.0, size=rows).astype(np.float32)) if weighted else None,
    )


def parameters_of(module: torch.nn.Module) -> Tensor:
    """Return a copy of all parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def assert_equal_states(one: Any, other: Any, path: str = "") -> None:
    """Assert that two trees of state are equal bit for bit."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal_states(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, Tensor):
        assert torch.equal(one, other), path
    else:
        assert one == other, path


def assert_goes_on_alike(trained: Any, fresh: Any, action_space: Space[Any], *, updates: int = 3) -> None:
    """Assert that a learner which takes over another's state acts and learns like it from there on."""
    weighted = bool(getattr(trained.params, "prioritized", False))
    batches = [random_batch(action_space, seed=seed, weighted=weighted) for seed in range(2 * updates)]

    def go_on(learner: Any, batch: ReplayBatch, seed: int) -> Tensor:
        learner.update(batch, CONTROLS, generator(seed))
        action: Tensor = learner.act(batch.observation, None, CONTROLS, generator(100 + seed))
        return action.clone()

    for seed in range(updates):
        go_on(trained, batches[seed], seed)
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()))
    assert_equal_states(trained.state_dict(), fresh.state_dict())
    for seed in range(updates, 2 * updates):
        assert torch.equal(go_on(trained, batches[seed], seed), go_on(fresh, batches[seed], seed))
    assert_equal_states(trained.state_dict(), fresh.state_dict())


class Untouched:
    """Asserts that a block of code leaves the global generators alone."""

    def __enter__(self) -> None:
        self._torch = torch.get_rng_state()
        self._numpy = copy.deepcopy(np.random.get_state())  # noqa: NPY002 - the global generator is what is watched

    def __exit__(self, *failure: object) -> None:
        assert torch.equal(torch.get_rng_state(), self._torch)
        current = np.random.get_state()  # noqa: NPY002
        assert str(current) == str(self._numpy)


def large_arrays(part: Any, capacity: int) -> int:
    """Return the bytes of every array below an object that grows with the capacity."""
    if isinstance(part, np.ndarray):
        return part.nbytes if part.ndim and len(part) >= capacity else 0
    parts = part.values() if isinstance(part, dict) else vars(part).values() if hasattr(part, "__dict__") else ()
    return sum(large_arrays(inner, capacity) for inner in parts)
