"""Helpers for tests of whole runs: tiny configurations, and what a run left behind."""

from __future__ import annotations

import contextlib
import copy
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from rl_training.envs.make import check_environment
from rl_training.envs.step import StepBatch
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.checkpoints import LATEST, list_checkpoints, pointed
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.runs import EVALUATIONS, METRICS
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.recording.metrics import WALL_CLOCK_FIELDS
from rl_training.runtime.session import TrainingSession
from rl_training.runtime.workflows import resume, train

SAMPLER_METRICS = ("policy_lag", "bytes_moved")
"""Metrics that only a run with samplers records, and the clock does not decide."""
SMALL_PPO = {"num_steps": 16, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [8]}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole_sync": {"execution_backend": "local_sync"},
    "cartpole_async": {"execution_backend": "local_async", "env_kwargs": {"num_workers": 2}},
    "cartpole_vector": {"execution_backend": "vector", "num_envs": 4},
    "pendulum": {
        "env_id": "Pendulum-v1",
        "num_envs": 1,
        "algo_kwargs": {"use_sde": True, "sde_sample_freq": 4, "learning_rate_schedule": "linear"},
        "env_kwargs": {"normalize_observation": True, "normalize_reward": True, "max_episode_steps": 40},
    },
    "halfcheetah": {
        "env_id": "HalfCheetah-v5",
        "env_kwargs": {"normalize_observation": True, "max_episode_steps": 30},
    },
    "taxi": {"env_id": "Taxi-v4", "env_kwargs": {"max_episode_steps": 30}},
    "atari": {
        "env_id": "ALE/Pong-v5",
        "total_timesteps": 96,
        "algo_kwargs": {"num_steps": 8},
        "env_kwargs": {
            "atari": True,
            "frame_stack": 2,
            "episodic_life": True,
            "max_episode_steps": 60,
            "repeat_action_probability": 0.0,
        },
    },
    "ale_vector": {  # with sticky actions
        "env_id": "ALE/Pong-v5",
        "execution_backend": "auto",
        "total_timesteps": 96,
        "algo_kwargs": {"num_steps": 8},
        "env_kwargs": {"atari": True, "frame_stack": 2, "max_episode_steps": 30},
    },
    "a2c": {"algo": "a2c", "algo_kwargs": {"num_steps": 8, "hidden_sizes": [8]}},
    "pqn": {"algo": "pqn", "algo_kwargs": {"num_steps": 8, "minibatch_size": 8, "hidden_sizes": [8]}},
    "pqn_masked": {  # truncated episodes are worth the best legal action
        "algo": "pqn",
        "env_id": "toy_envs:Toy/MaskedDiscrete-v0",
        "algo_kwargs": {"num_steps": 12, "minibatch_size": 8, "hidden_sizes": [8], "optimizer": "adam"},
        "env_kwargs": {"normalize_observation": True, "normalize_reward": True},
    },
    "lstm": {"algo_kwargs": {"recurrent": {"size": 8, "sequence_length": 6}}},
    "gru": {  # with final observations to be valued, and memories of their time
        "env_id": "Pendulum-v1",
        "algo_kwargs": {
            "use_sde": True,
            "recurrent": {"type": "gru", "size": 8, "layers": 2, "separate_critic": False},
        },
        "env_kwargs": {"normalize_observation": True, "max_episode_steps": 25},
    },
    "minigrid": {
        "env_id": "MiniGrid-MemoryS7-v0",
        "total_timesteps": 192,
        "algo_kwargs": {"recurrent": {"size": 8, "sequence_length": 6}},
        "env_kwargs": {"wrappers": ["rl_training.envs.families.minigrid:CellPlanes"], "max_episode_steps": 20},
    },
    "popgym": {"env_id": "popgym-RepeatPreviousEasy-v0", "algo_kwargs": {"recurrent": {"type": "gru", "size": 8}}},
    "agents": {
        "env_id": "pettingzoo:mpe2.simple_spread_v3",
        "num_envs": 6,
        "total_timesteps": 576,
        "env_kwargs": {"normalize_observation": True, "max_episode_steps": 11},
    },
    "dmc": {
        "env_id": "dm_control/reacher-easy-v0",  # it moves a target in the model
        "total_timesteps": 192,
        "env_kwargs": {"flatten_observation": True, "max_episode_steps": 20},
    },
}


def tiny_config(output_dir: Path, **changes: Any) -> TrainConfig:
    """Return a configuration that trains in about a second; blocks of `changes` are merged one level deep."""
    raw: dict[str, Any] = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 7,
        "total_timesteps": 320,
        "output_dir": str(output_dir),
        "device": "cpu",
        "num_envs": 2,
        "execution_backend": "local_sync",
        "eval_episodes": 2,
        "eval_interval": 128,
        "log_interval": 32,
        "checkpoint_interval": 64,
        "env_kwargs": {},
        "tracking": {"tensorboard": False},
    }
    if changes.get("algo", "ppo") == "ppo":
        raw["algo_kwargs"] = dict(SMALL_PPO)
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value} if isinstance(value, Mapping) else value
    return validate_config(raw)


def task_config(name: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """Return the tiny configuration of one of `TASKS`."""
    merged = copy.deepcopy(TASKS[name])
    for key, value in changes.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
    return tiny_config(output_dir, **merged)


def require(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
    """Skip the test where the environment's packages are not installed."""
    try:
        check_environment(env_id, env_kwargs or {})
    except MissingExtraError as error:
        pytest.skip(str(error))
    except ConfigError as error:
        if "does not start with the packages that are installed" not in str(error):
            raise
        pytest.skip(str(error))


# -- what a run left behind ----------------------------------------------------------------------


def json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl` without what the clock decides."""
    return [_without_clock(row) for row in json_rows(run_dir / METRICS)]


def rows_without_samplers(run_dir: Path) -> list[dict[str, Any]]:
    """Return `metric_rows` without what only a run with samplers records."""
    return [{key: row[key] for key in row if key not in SAMPLER_METRICS} for row in metric_rows(run_dir)]


def evaluation_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return every evaluation episode."""
    return json_rows(run_dir / EVALUATIONS)


def final_state(run_dir: Path) -> dict[str, Any]:
    """Return the last checkpoint as {path in the tree: tensor or plain value}, without what the clock decides."""
    state = read_state(last_checkpoint(run_dir))
    counters = state["session"]["counters"]
    del counters["times"], state["session"]["file_lengths"]
    counters["latest"] = _without_clock(counters["latest"])
    return dict(_leaves(state, ""))


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the learner in the last checkpoint."""
    leaves = _leaves(read_state(last_checkpoint(run_dir))["algorithm"], "")
    return {path: value for path, value in leaves if isinstance(value, torch.Tensor)}


def last_checkpoint(run_dir: Path) -> Path:
    """Return what `latest` points to, which has to be the newest checkpoint."""
    latest = pointed(run_dir, LATEST)
    assert latest is not None
    assert latest == list_checkpoints(run_dir)[0]
    return latest


def only_run(output_dir: Path) -> Path:
    """Return the one run directory below an output directory."""
    (run_dir,) = (path for path in output_dir.iterdir() if path.is_dir())
    return run_dir


def assert_same_state(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Assert that two states are equal bit for bit."""
    assert one.keys() == other.keys()
    different = [path for path in one if not _identical(one[path], other[path])]
    assert not different, f"these parts of the state differ: {different}"


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that two runs ended with the same state, the same metric rows and the same evaluations."""
    assert_same_state(final_state(one), final_state(other))
    assert metric_rows(one) == metric_rows(other)
    assert evaluation_rows(one) == evaluation_rows(other)


def _without_clock(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in WALL_CLOCK_FIELDS}


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from _leaves(item, f"{path}/{key}")
    elif isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from _leaves(item, f"{path}/{index}")
    else:
        yield path, tree


def _identical(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        one, other = one.numpy(), other.numpy()
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and one == other


# -- runs that are stopped and resumed in this process ---------------------------------------------


@contextlib.contextmanager
def stopped_after(steps: int | None) -> Iterator[None]:
    """Send this process SIGTERM during the given step of the environments; None never does."""
    original = TrainingSession.count_episodes
    count = 0

    def counting(session: TrainingSession, step: StepBatch, task: str | None = None) -> None:
        nonlocal count
        original(session, step, task)
        count += 1
        if count == steps:
            signal.raise_signal(signal.SIGTERM)

    with mock.patch.object(TrainingSession, "count_episodes", counting):
        yield


def train_with_stops(
    config: TrainConfig, stops: Sequence[int], *, callbacks: Callable[[], Sequence[Callback]] = lambda: ()
) -> Path:
    """Train, stopping after each of `stops` more steps of the environments and resuming; returns the run directory."""
    with stopped_after(stops[0]):
        result = train(config, callbacks=callbacks())
    for stop in [*stops[1:], None]:
        assert (result.status, result.signal) == ("interrupted", signal.SIGTERM)
        with stopped_after(stop):
            result = resume(result.run_dir, callbacks=callbacks())
    assert result.status == "completed"
    return result.run_dir
