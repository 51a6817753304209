"""Helpers for tests of offline algorithms: learners of every kind, and small datasets to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from dataset_parts import random_episode, write_with_minari
from replay_parts import CHOICE, CPU, OBSERVATION, TORQUE, generator
from rl_training.algorithms.base import OfflineAlgorithm
from rl_training.data.datasets.episode import Episode
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.encoders import VectorEncoder

RATES = {"learning_rate": 1e-2, "actor_learning_rate": 5e-3}
SMALL: dict[str, dict[str, Any]] = {
    "bc": {},
    "td3_bc": {},
    "rebrac": {"hidden_sizes": (8, 8)},
    "iql": {},
    "cql": {"action_samples": 3},
    "discrete_cql": {"target_update_interval": 4},
}
"""Every offline algorithm, with settings that make it small."""
CASES = [
    ("bc", TORQUE),
    ("bc", CHOICE),
    ("bc", spaces.MultiDiscrete([3, 4])),
    ("bc", spaces.MultiBinary(5)),
    ("td3_bc", TORQUE),
    ("rebrac", TORQUE),
    ("iql", TORQUE),
    ("iql", CHOICE),
    ("cql", TORQUE),
    ("discrete_cql", CHOICE),
]
"""Every offline algorithm with every kind of action that it takes."""


class TanhEncoder(VectorEncoder):
    """An encoder such as a user may write, with weights of its own."""

    def __init__(self, space: Space[Any], width: int = 6) -> None:
        super().__init__(space)
        self.layer = torch.nn.Linear(self.width, width)
        self.width = width

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return features [B, width]."""
        return torch.tanh(self.layer(super().forward(observation)))


def make_offline(
    algo: str,
    action_space: Space[Any],
    *,
    seed: int = 0,
    observation_space: Space[Any] = OBSERVATION,
    encoder: Any = None,
    **params: Any,
) -> Any:
    """Return a small learner."""
    spec = get_algorithm_spec(algo)
    settings = spec.load_params()(**{"hidden_sizes": (8,), **SMALL[algo], **params})
    named = {} if encoder is None else {"encoder": encoder}
    learner = spec.load_algorithm()(
        settings, observation_space, action_space, device=CPU, generator=generator(seed), **named
    )
    assert isinstance(learner, OfflineAlgorithm)
    return learner


def offline_batch(learner: Any, action_space: Space[Any], *, seed: int = 1, rows: int = 16) -> Any:
    """Return random transitions as a learner gets them, a quarter of them terminated."""
    from rl_training.data.batches import ReplayBatch

    rng = np.random.default_rng(seed)
    episode = random_episode(rng, OBSERVATION, action_space, 2 * rows)
    action = torch.from_numpy(learner.stored_action(episode.actions))
    discount = np.where(rng.random(rows) < 0.25, 0.0, 0.9).astype(np.float32)
    next_action = None
    if learner.params.with_next_action:
        next_action = action[rows:].clone()
        next_action[::5] = torch.nan
    observation = torch.from_numpy(np.asarray(episode.observations))
    return ReplayBatch(
        observation=observation[:rows],
        action=action[:rows],
        reward=torch.from_numpy(episode.rewards[:rows].astype(np.float32)),
        discount=torch.from_numpy(discount),
        next_observation=observation[rows : 2 * rows],
        weight=None,
        next_action=next_action,
    )


def write_dataset(
    name: str,
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    lengths: Sequence[int] = (12, 7, 20, 9),
    env: str | None = None,
    seed: int = 3,
    infos: Sequence[str] = (),
) -> list[Episode]:
    """Write random episodes, every second one truncated, below MINARI_DATASETS_PATH and return them."""
    rng = np.random.default_rng(seed)
    episodes = [
        random_episode(
            rng, observation_space, action_space, steps, seed=number, terminated=number % 2 == 0, infos=infos
        )
        for number, steps in enumerate(lengths)
    ]
    write_with_minari(name, episodes, observation_space, action_space, env=env)
    return episodes
