"""Exported policies for tests: tiny runs of every algorithm and space, and their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import off_policy_runs
import planning_runs
from harness import tiny_config
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.runtime.export.export import ExportResult, export_policy
from rl_training.runtime.workflows import train
from short_runs import SHORT, config_of

SMALL_PPO = {"num_steps": 16, "hidden_sizes": [8]}
TOYS = ["Discrete", "MultiDiscrete", "MultiBinary", "Box", "Image", "Dict", "DictWithImage", "LateMask"]
TOYS += ["MaskedDiscrete", "MaskedMultiDiscrete", "MaskedMultiBinary"]


def toy(output_dir: Path, name: str, **changes: Any) -> TrainConfig:
    """Return a short run of PPO with normalised observations in a toy environment."""
    settings: dict[str, Any] = {"env_kwargs": {"normalize_observation": True}, **SHORT, **changes}
    env_id = f"toy_envs:Toy/{name}-v0"
    return tiny_config(output_dir, algo="ppo", env_id=env_id, algo_kwargs=SMALL_PPO, **settings)


SPECIAL: dict[str, Callable[[Path], TrainConfig]] = {
    "doubles": lambda folder: toy(
        folder, "DriftBox", env_kwargs={"normalize_observation": True, "max_episode_steps": 20}
    ),
    "discrete_observation": lambda folder: tiny_config(
        folder, algo="ppo", env_id="FrozenLake-v1", algo_kwargs=SMALL_PPO, **SHORT
    ),
    "minatar": lambda folder: off_policy_runs.tiny_run(
        folder, "dqn", "MinAtar/Breakout-v1", env_kwargs={"max_episode_steps": 50}, **SHORT
    ),
    "planning_images": lambda folder: planning_runs.tiny_run(folder, "muzero", "toy_envs:Toy/Image-v0", **SHORT),
    "planning_masks": lambda folder: planning_runs.tiny_run(
        folder, "gumbel_muzero", "toy_envs:Toy/MaskedDiscrete-v0", **SHORT
    ),
    "goals": lambda folder: off_policy_runs.tiny_run(
        folder, "sac", "rl_training.envs.goal_tasks:PointReach-v0", **SHORT
    ),
}
ALGORITHMS = [spec.name for spec in list_algorithm_specs() if str(spec.loop) != "offline"]  # these need a dataset
CASES = [*ALGORITHMS, *(f"toy_{name}" for name in TOYS), *SPECIAL]


def case_config(case: str, output_dir: Path) -> TrainConfig:
    """Return the short run of a case."""
    if case in SPECIAL:
        return SPECIAL[case](output_dir)
    return toy(output_dir, case.removeprefix("toy_")) if case.startswith("toy_") else config_of(case, output_dir)


def export_case(case: str, output_dir: Path, **options: Any) -> ExportResult:
    """Train a case and export it."""
    run = train(case_config(case, output_dir)).run_dir
    task = "CartPole-v1" if case == "scalezero" else None
    return export_policy(run, episodes=2, task=task, **options)
