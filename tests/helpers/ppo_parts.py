"""PPO without environments: an algorithm, rollouts of its own actions, and what an update did."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPO
from rl_training.data.rollout import Rollout

CPU = torch.device("cpu")
OBSERVATION = spaces.Box(-np.inf, np.inf, (3,), np.float32)
CHOICE = spaces.Discrete(3)
TORQUE = spaces.Box(-1.0, 1.0, (2,), np.float32)
CONTROLS = {"learning_rate": 1e-2, "clip_coef": 0.2, "ent_coef": 0.01}
# What holds where a test says nothing else: one epoch over everything, nothing clipped.
PLAIN: dict[str, Any] = {"num_steps": 6, "update_epochs": 1, "minibatch_size": None, "max_grad_norm": None}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_ppo(action_space: Space[Any] = CHOICE, *, seed: int = 0, **params: Any) -> PPO:
    settings = PPOParams(**{"hidden_sizes": (8,), **PLAIN, **params})
    return PPO(settings, OBSERVATION, action_space, device=CPU, generator=seeded(seed))


def make_rollout(
    algorithm: PPO, *, seed: int = 1, num_envs: int = 2, mask: Tensor | None = None, numbered: bool = False
) -> Rollout:
    """Let the policy act on random observations that end now and then; `numbered` ones say which row they are."""
    rng, generator = np.random.default_rng(seed), seeded(seed)
    num_steps = algorithm.params.num_steps
    shape = (num_steps, num_envs)
    observation = torch.from_numpy(rng.normal(size=(*shape, 3)).astype(np.float32))
    if numbered:
        observation[..., 0] = torch.arange(num_steps * num_envs).view(shape)
    algorithm.start_rollout()
    return Rollout(
        observation=observation,
        action=torch.stack([algorithm.act(row, mask, CONTROLS, generator).clone() for row in observation]),
        mask=None if mask is None else mask.expand(num_steps, *mask.shape),
        reward=torch.from_numpy(rng.normal(size=shape).astype(np.float32)),
        terminated=torch.from_numpy(rng.random(shape) < 0.2),
        truncated=torch.from_numpy(rng.random(shape) < 0.2),
        final_value=torch.from_numpy(rng.normal(size=shape).astype(np.float32)),
        last_observation=torch.from_numpy(rng.normal(size=(num_envs, 3)).astype(np.float32)),
    )


def update(algorithm: PPO, rollout: Rollout, seed: int = 2, **controls: float) -> dict[str, Tensor]:
    return algorithm.update(rollout, {**CONTROLS, **controls}, seeded(seed))


def weights_of(algorithm: PPO) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in algorithm.model.parameters()])


def gradient_of(algorithm: PPO) -> Tensor:
    """Return the gradient that the last step used."""
    gradients = [parameter.grad for parameter in algorithm.model.parameters()]
    return torch.cat([gradient.flatten().clone() for gradient in gradients if gradient is not None])
