"""Helpers for tests of whole planning runs: tiny configurations and what every such run must leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import tiny_config
from off_policy_runs import train_checked
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.session import TrainResult

STEPS = 48
COMMON_METRICS = {
    "global_step",
    "train_return_mean",
    "train_length_mean",
    "steps_per_second",
    "update_count",
    "time_collect",
    "time_update",
    "time_eval",
    "learning_rate",
    "num_simulations",
    "per_beta",
    "loss_policy",
    "loss_value",
    "loss_reward",
    "clipped_targets",
    "gradient_norm",
}
EXPLORATION = {"temperature", "root_exploration_fraction"}
SMALL: dict[str, Any] = {
    "batch_size": 8,
    "buffer_size": 64,
    "learning_starts": 16,
    "latent_size": 8,
    "hidden_size": 8,
    "support_size": 5,
    "num_simulations": 3,
    "unroll_steps": 3,
    "value_prefix_horizon": 3,
    "n_step": 3,
    "target_update_interval": 20,
}


def tiny_run(output_dir: Path, algo: str, env_id: str, **changes: Any) -> TrainConfig:
    """Return 48 steps in two environments, learning from the 16th on."""
    settings = {**SMALL, **changes.pop("algo_kwargs", {})}
    defaults: dict[str, Any] = {"total_timesteps": STEPS, "eval_interval": None, "checkpoint_interval": STEPS}
    defaults["torch_threads"] = 1  # threads that wait for a busy core make tests slow
    return tiny_config(output_dir, algo=algo, env_id=env_id, algo_kwargs=settings, **{**defaults, **changes})


def train_tiny(output_dir: Path, algo: str, env_id: str, **changes: Any) -> TrainResult:
    """Train it and check that it finished with finite weights."""
    return train_checked(tiny_run(output_dir, algo, env_id, **changes))


_RESUMED: dict[str, Any] = {**SMALL, "buffer_size": 96, "learning_starts": 24}
RESUMED_TASKS: dict[str, dict[str, Any]] = {
    "muzero": {"algo": "muzero", "algo_kwargs": {**_RESUMED, "reanalyze_ratio": 0.25}},
    "gumbel_muzero": {
        "algo": "gumbel_muzero",
        "algo_kwargs": {
            **_RESUMED,
            "reanalyze_ratio": 0.5,
            "num_simulations_schedule": {"type": "linear", "end": 6},
            "memory_map": True,
        },
    },
    "efficientzero": {
        "algo": "efficientzero",
        "algo_kwargs": dict(_RESUMED),
        "env_kwargs": {"normalize_observation": True, "normalize_reward": True},
    },
    "masked": {"algo": "gumbel_muzero", "env_id": "toy_envs:Toy/MaskedDiscrete-v0", "algo_kwargs": dict(_RESUMED)},
    "shifted_images": {
        "algo": "efficientzero",
        "env_id": "toy_envs:Toy/Image-v0",
        "total_timesteps": 64,
        "algo_kwargs": {**_RESUMED, "buffer_size": 40},
        "env_kwargs": {"frame_stack": 2},
    },
}


def planning_config(name: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """Return the tiny configuration of one of `RESUMED_TASKS`; its replay wraps around."""
    merged: dict[str, Any] = {"total_timesteps": 144, "eval_interval": 64, "torch_threads": 1, **RESUMED_TASKS[name]}
    for key, value in changes.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return tiny_config(output_dir, **merged)
