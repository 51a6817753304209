"""d3rlpy with the settings of one of our offline configurations, and on the same dataset.

d3rlpy's requirements do not fit ours, so it lives in an environment of its own, whose interpreter is named by the
variable D3RLPY_PYTHON (or is build/d3rlpy/bin/python):

    python -m venv build/d3rlpy
    build/d3rlpy/bin/pip install -c constraints.txt torch d3rlpy==2.8.0 gymnasium mujoco

It gets arrays, because its own reader of Minari's files joins T + 1 observations with T actions.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from peers.same_settings import refuse
from peers.side_process import ONE_THREAD
from records import PEERS
from rl_training.algorithms.params.offline_params import OfflineValueParams
from rl_training.data.datasets.columns import DatasetColumns, load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.data.datasets.offline_replay import best_transitions, return_range_scale
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.schedules import as_schedule

_NAME = "d3rlpy"
_SIDE = Path(__file__).with_name("d3rlpy_side.py")


def interpreter() -> Path:
    """Return the interpreter of the environment with d3rlpy."""
    return Path(os.environ.get("D3RLPY_PYTHON", PEERS / "d3rlpy" / "bin" / "python"))


def why_missing() -> str | None:
    """Return why d3rlpy cannot learn here, or None where it can."""
    if interpreter().exists():
        return None
    return "d3rlpy is not installed in build/d3rlpy: see benchmarks/peers/d3rlpy_models.py for how to install it"


def train_peer(config: TrainConfig, seeds: list[int]) -> dict[str, Any]:
    """Train it, evaluate the final policy on one complete episode per seed, and return what is stored of it."""
    assert config.dataset is not None
    dataset = open_dataset(config.dataset)
    settings = {
        **peer_settings(config, dataset.action_space),
        "updates": config.total_timesteps,
        "seed": config.seed,
        "env_id": config.task_name,
        "env_kwargs": env_params(config, "evaluation").make_kwargs,
        "evaluation_seeds": seeds,
    }
    with tempfile.TemporaryDirectory() as folder:
        data, given, output = (Path(folder) / name for name in ("data.npz", "settings.json", "result.json"))
        np.savez(data, **arrays(load_columns(dataset), algorithm_params(config)))  # type: ignore[arg-type]
        given.write_text(json.dumps(settings), encoding="utf-8")
        words = [interpreter(), _SIDE, "--data", data, "--settings", given, "--output", output]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ONE_THREAD
        done = subprocess.run(
            [str(word) for word in words], cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"d3rlpy failed:\n{done.stderr}")
        row: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return row


def arrays(columns: DatasetColumns, params: Any) -> dict[str, np.ndarray]:
    """Return the transitions as d3rlpy takes them, with scaled rewards, of the episodes that ours learns from."""
    rows = np.arange(len(columns)) if params.top_episodes == 1 else best_transitions(columns, params.top_episodes)
    rewards = columns.reward[rows]
    if isinstance(params, OfflineValueParams):
        scale = return_range_scale(columns) if params.normalize_reward == "return_range" else None
        rewards = rewards * params.reward_scale * (scale or 1.0) + params.reward_shift
    observation = np.asarray(columns.observation, dtype=np.float32)
    return {
        "observations": observation[columns.place[rows]],
        "next_observations": observation[columns.place[rows] + 1],
        "actions": columns.action[rows].reshape(len(rows), -1).astype(np.float32),
        "rewards": rewards.astype(np.float32)[:, None],
        "terminals": columns.terminated[rows].astype(np.float32)[:, None],
    }


def peer_settings(config: TrainConfig, action_space: Any) -> dict[str, Any]:
    """Return the settings of d3rlpy's algorithm, which has no options but these."""
    params = algorithm_params(config)
    discrete = isinstance(action_space, spaces.Discrete)
    refuse(_NAME, params, max_grad_norm=None, optimizer_eps=1e-8, learning_rate_schedule=None)
    build = {"bc": _bc, "td3_bc": _td3_bc, "iql": _iql, "cql": _cql, "discrete_cql": _discrete_cql}[config.algo]
    name, parts, arguments = build(params, discrete)
    bounds = None if discrete else [action_space.low.tolist(), action_space.high.tolist()]
    return {
        "config": name,
        "encoders": {part: list(params.hidden_sizes) for part in parts},
        "activation": params.activation,
        "arguments": {"batch_size": params.batch_size, **arguments},
        "normalize_observation": params.normalize_observation,
        "action_bounds": bounds,
        "action_size": int(action_space.n if discrete else action_space.shape[0]),
        "cosine": ["actor_"] if _has_cosine(params) else [],
    }


def _has_cosine(params: Any) -> bool:
    """Return whether the actor's rate falls by a cosine to zero at the end, the one schedule that is compared."""
    given = getattr(params, "actor_learning_rate_schedule", None)
    if given is None:
        return False
    schedule = as_schedule(given)
    if (schedule.type, schedule.start, schedule.end or 0.0, schedule.duration) != ("cosine", None, 0.0, None):
        raise ValueError(f"{_NAME} is not given the schedule {schedule}")
    return True


def _rates(params: Any) -> dict[str, float]:
    actor = getattr(params, "actor_learning_rate", params.learning_rate)
    return {"actor_learning_rate": actor, "critic_learning_rate": params.learning_rate}


def _bc(params: Any, discrete: bool) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    arguments: dict[str, Any] = {"learning_rate": params.learning_rate}
    if discrete:
        return "DiscreteBCConfig", ("",), {**arguments, "beta": params.logit_penalty}
    return "BCConfig", ("",), {**arguments, "policy_type": params.policy}


def _td3_bc(params: Any, discrete: bool) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    refuse(_NAME, params, actor_bc_coef=1.0, critic_bc_coef=0.0, bc_distance="mean", actor_value="first")
    refuse(_NAME, params, critic_layer_norm=False)
    arguments = {
        **_rates(params),
        "gamma": params.gamma,
        "tau": params.tau,
        "n_critics": params.num_critics,
        "target_smoothing_sigma": params.target_noise,
        "target_smoothing_clip": params.target_noise_clip,
        "alpha": params.alpha,
        "update_actor_interval": params.policy_delay,
    }
    return "TD3PlusBCConfig", ("actor_", "critic_"), arguments


def _iql(params: Any, discrete: bool) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    if discrete:
        raise ValueError(f"{_NAME} has no implicit Q-learning for discrete actions")
    arguments = {
        **_rates(params),
        "gamma": params.gamma,
        "tau": params.tau,
        "n_critics": params.num_critics,
        "expectile": params.expectile,
        "weight_temp": params.beta,
        "max_weight": params.max_weight,
    }
    return "IQLConfig", ("actor_", "critic_", "value_"), arguments


def _cql(params: Any, discrete: bool) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    refuse(_NAME, params, lagrange_threshold=None, temperature="auto", target_entropy="auto", critic_hidden_sizes=None)
    arguments = {
        **_rates(params),
        "temp_learning_rate": params.actor_learning_rate,
        "alpha_learning_rate": 0.0,  # its multiplier stays 1
        "initial_temperature": params.temperature_init,
        "conservative_weight": params.conservative_weight,
        "n_action_samples": params.action_samples,
        "soft_q_backup": params.soft_target,
        "gamma": params.gamma,
        "tau": params.tau,
        "n_critics": params.num_critics,
    }
    return "CQLConfig", ("actor_", "critic_"), arguments


def _discrete_cql(params: Any, discrete: bool) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    refuse(_NAME, params, double=True, dueling=False, distribution="none", loss="huber", tau=1.0)
    arguments = {
        "learning_rate": params.learning_rate,
        "gamma": params.gamma,
        "target_update_interval": params.target_update_interval,
        "alpha": params.conservative_weight,
    }
    return "DiscreteCQLConfig", ("",), arguments
