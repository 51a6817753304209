"""Advantage estimates in compiled code."""

from __future__ import annotations

import numpy as np

from rl_training.search.compilation import compiled


@compiled
def advantages(
    reward: np.ndarray,
    value: np.ndarray,
    final_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    last_value: np.ndarray,
    gamma: float,
    gae_lambda: float,
    out: np.ndarray,
) -> None:
    """Write what `algorithms.advantages.generalized_advantage` returns; all arrays are [T, N], `last_value` is [N]."""
    steps, envs = reward.shape
    discount, decay = np.float32(gamma), np.float32(gamma * gae_lambda)
    for step in range(steps - 1, -1, -1):
        for env in range(envs):
            following = last_value[env] if step == steps - 1 else value[step + 1, env]
            if truncated[step, env]:
                following = final_value[step, env]
            if terminated[step, env]:
                following = np.float32(0.0)
            out[step, env] = reward[step, env] + discount * following - value[step, env]
            if step < steps - 1 and not (terminated[step, env] or truncated[step, env]):
                out[step, env] += decay * out[step + 1, env]
