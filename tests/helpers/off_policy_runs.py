"""Helpers for tests of whole off-policy runs: tiny configurations and what every such run must leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness import json_rows, tiny_config, weights
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import train

STEPS = 64
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
    "q_mean",
    "gradient_norm",
}
SMALL: dict[str, Any] = {"batch_size": 8, "buffer_size": 48, "learning_starts": 16, "hidden_sizes": [8]}
SMALL_BY_ALGORITHM: dict[str, dict[str, Any]] = {
    "c51": {"num_atoms": 5},
    "rainbow": {"num_atoms": 5},
    "qr_dqn": {"num_quantiles": 5},
    "tqc": {"num_quantiles": 5},
    "crossq": {"critic_hidden_sizes": [8]},
    "redq": {"gradient_steps": 3, "policy_delay": 3},
    "droq": {"gradient_steps": 3, "policy_delay": 3, "critic_dropout": 0.2},
}


def tiny_run(output_dir: Path, algo: str, env_id: str, **changes: Any) -> TrainConfig:
    """Return 64 steps in two environments, learning from the 16th on; the replay wraps around."""
    settings = {**SMALL, **SMALL_BY_ALGORITHM.get(algo, {}), **changes.pop("algo_kwargs", {})}
    defaults: dict[str, Any] = {"total_timesteps": STEPS, "eval_interval": None, "checkpoint_interval": STEPS}
    defaults["torch_threads"] = 1  # threads that wait for a busy core make tests slow
    return tiny_config(output_dir, algo=algo, env_id=env_id, algo_kwargs=settings, **{**defaults, **changes})


def train_tiny(output_dir: Path, algo: str, env_id: str, **changes: Any) -> TrainResult:
    """Train it and check that it finished with finite weights."""
    return train_checked(tiny_run(output_dir, algo, env_id, **changes))


def train_checked(config: TrainConfig) -> TrainResult:
    """Train and check that the run went to its end with finite weights."""
    result = train(config)
    assert result.status == "completed"
    assert result.metrics["global_step"] == -(-config.total_timesteps // config.num_envs) * config.num_envs
    assert np.isfinite(result.metrics["eval_return_mean"])
    assert all(tensor.isfinite().all() for tensor in weights(result.run_dir).values() if tensor.is_floating_point())
    return result


def train_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the training rows of a run."""
    return [row for row in json_rows(run_dir / "metrics.jsonl") if row["event"] == "train"]


def last_row(run_dir: Path) -> Mapping[str, Any]:
    """Return the last training row."""
    return train_rows(run_dir)[-1]
