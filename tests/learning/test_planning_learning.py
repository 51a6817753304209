"""Planning learns what a broken target cannot reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from corridor_envs import FAR, NEAR, Fork
from rl_training.experiment.config import validate_config
from rl_training.kernels.checks import KernelMismatch
from rl_training.models.planning.planning_network import PlanningNetwork
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import train

# One reward per return and one imagined step: the walk's end is known by bootstrapped values alone.
SETTINGS: dict[str, Any] = {
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "batch_size": 32,
    "buffer_size": 2000,
    "learning_starts": 300,
    "latent_size": 16,
    "hidden_size": 32,
    "support_size": 4,
    "num_simulations": 2,
    "unroll_steps": 1,
    "n_step": 1,
    "replay_ratio": 1.0,
    "reanalyze_ratio": 1.0,
    "target_update_interval": 20,
}


def _walk(output_dir: Path, acceleration: str = "auto") -> TrainResult:
    return train(
        validate_config(
            {
                "algo": "gumbel_muzero",
                "env_id": "corridor_envs:Corridor/Fork-v0",
                "seed": 0,
                "total_timesteps": 700,
                "output_dir": str(output_dir),
                "device": "cpu",
                "num_envs": 4,
                "eval_episodes": 4,
                "checkpoint_interval": 1_000_000,
                "torch_threads": 1,
                "tracking": {"tensorboard": False},
                "algo_kwargs": SETTINGS,
                "acceleration": acceleration,
            }
        )
    )


def _patience(run_dir: Path) -> float:
    """Return how likely the policy network takes the walk."""
    start = np.zeros((1000, 2 * Fork.WALK + 1), np.float32)
    start[:, 0] = 1
    return float(load_policy(run_dir).predict(start, deterministic=False, seed=0).mean())


def test_the_far_reward_is_learned_by_search_and_by_the_policy_network(tmp_path: Path) -> None:
    result = _walk(tmp_path)
    assert result.metrics["eval_return_mean"] == FAR
    assert _patience(result.run_dir) > 0.9


def test_with_bootstraps_of_the_wrong_sign_only_the_near_reward_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = PlanningNetwork.values

    def wrong(self: PlanningNetwork, observation: Any) -> Tensor:
        return -right(self, observation)

    monkeypatch.setattr(PlanningNetwork, "values", wrong)
    with pytest.raises(KernelMismatch, match="first returns"):  # although the heads of a fresh network are zero
        _walk(tmp_path)
    result = _walk(tmp_path, acceleration="off")
    assert result.metrics["eval_return_mean"] == NEAR
    assert _patience(result.run_dir) < 0.2
