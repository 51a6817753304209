"""A short run of any algorithm, for tests of what all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import off_policy_runs
import offline_runs
import planning_runs
from harness import tiny_config
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS
from scalezero_runs import NEVER, tiny_suite

SHORT: dict[str, Any] = {"total_timesteps": 32, "eval_episodes": 0}
PENDULUM_ALGORITHMS = ("sac", "tqc", "crossq", "redq", "droq", "td3", "ddpg")


def config_of(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """Return 32 steps of an algorithm, with some learning in them and without evaluations."""
    if ALGORITHMS[algo].loop == "offline":  # learns from a dataset that `offline_runs.write_datasets` has written
        return offline_runs.offline_config(algo, output_dir, **SHORT, **changes)
    if algo == "scalezero":
        return tiny_suite(output_dir, NEVER, NEVER, algo_kwargs={"parameter_scaling": False}, **SHORT, **changes)
    if ALGORITHMS[algo].loop == "on_policy":
        settings: dict[str, Any] = {"num_steps": 16, "hidden_sizes": [8]}
        if algo in ("appo", "pqn"):
            settings["minibatch_size"] = 16
        return tiny_config(output_dir, algo=algo, algo_kwargs=settings, **SHORT, **changes)
    if "zero" in algo:
        return planning_runs.tiny_run(output_dir, algo, "CartPole-v1", **SHORT, **changes)
    env_id = "Pendulum-v1" if algo in PENDULUM_ALGORITHMS else "CartPole-v1"
    return off_policy_runs.tiny_run(output_dir, algo, env_id, **SHORT, **changes)


_REPLAY: dict[str, Any] = {"batch_size": 8, "buffer_size": 96, "learning_starts": 16, "hidden_sizes": [8]}
_RANKS: dict[str, dict[str, Any]] = {
    "ppo": {
        "env_id": "Pendulum-v1",
        "total_timesteps": 576,
        "algo_kwargs": {"num_steps": 48, "use_sde": True, "sde_sample_freq": 4, "target_kl": 0.01},
        "env_kwargs": {"normalize_observation": True, "normalize_reward": True, "max_episode_steps": 23},
    },
    "sac": {
        "env_id": "Pendulum-v1",
        "algo_kwargs": {**_REPLAY, "use_sde": True, "sde_sample_freq": 4},
        "env_kwargs": {"normalize_observation": True, "normalize_reward": True, "max_episode_steps": 23},
    },
    "dqn": {
        "algo_kwargs": {
            **_REPLAY,
            "prioritized": True,
            "n_step": 3,
            "target_update_interval": 50,
            "repeat_exponent": 2.0,
        }
    },
}


def rank_config(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """Return a short run of two ranks with two environments each."""
    return tiny_config(output_dir, algo=algo, **{"devices": 2, "num_envs": 4, **_RANKS[algo], **changes})
