"""Helpers for tests of whole ScaleZero runs: tiny suites that are solved, or not, by their targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import tiny_config
from rl_training.experiment.config import TrainConfig

GRID = "rl_training.envs.grid_tasks:KeyDoor-v0"
NEVER = 1e6  # a target that no policy reaches
AT_ONCE = "at once"  # stands for one that every policy reaches
SMALL: dict[str, Any] = {
    "batch_size": 8,
    "buffer_size": 64,
    "learning_starts": 24,
    "width": 16,
    "layers": 1,
    "heads": 2,
    "experts": 2,
    "expert_size": 8,
    "hidden_size": 8,
    "adapter_rank": 2,
    "support_size": 5,
    "num_simulations": 3,
    "unroll_steps": 3,
    "context_steps": 4,
    "n_step": 3,
    "target_update_interval": 4,
}


def tasks(*targets: float | str | None) -> list[dict[str, Any]]:
    """Return a pole, a grid and a double pendulum with these targets, or the first of them."""
    entries: list[dict[str, Any]] = [
        {"env_id": "CartPole-v1", "random_return": 0.0},
        {"env_id": GRID, "name": "KeyDoor", "size": 3, "random_return": -1.0},
        {"env_id": "Acrobot-v1", "random_return": -500.0, "max_episode_steps": 20},
    ]
    for entry, target in zip(entries, targets, strict=False):
        entry["target_return"] = entry["random_return"] + 0.1 if target == AT_ONCE else target
    return entries[: len(targets)]


def tiny_suite(output_dir: Path, *targets: float | str | None, **changes: Any) -> TrainConfig:
    """Return 96 steps of a suite of as many tasks as there are targets, learning from the 24th on."""
    settings = {**SMALL, **changes.pop("algo_kwargs", {})}
    defaults: dict[str, Any] = {"total_timesteps": 96, "eval_interval": 32, "log_interval": 16, "torch_threads": 1}
    suite = {"tasks": tasks(*targets)}
    return tiny_config(
        output_dir,
        algo="scalezero",
        env_id="tiny-suite",
        env_kwargs=suite,
        algo_kwargs=settings,
        **{**defaults, **changes},
    )
