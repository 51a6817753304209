"""Helpers for tests of whole offline runs: datasets of random content, and tiny configurations."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
from torch import Tensor

from offline_parts import SMALL, write_dataset
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.runtime.session import TrainingSession
from rl_training.runtime.workflows import resume, train

PENDULUM, CARTPOLE = "pendulum/random-v0", "cartpole/random-v0"
TASKS: dict[str, dict[str, Any]] = {
    "bc": {"dataset": PENDULUM},
    "bc_discrete": {"algo": "bc", "dataset": CARTPOLE, "algo_kwargs": {"top_fraction": 0.5}},
    "td3_bc": {"dataset": PENDULUM},
    "rebrac": {"dataset": PENDULUM},
    "iql": {"dataset": PENDULUM},
    "iql_discrete": {"algo": "iql", "dataset": CARTPOLE},
    "cql": {"dataset": PENDULUM, "algo_kwargs": {"lagrange_threshold": 1.0}},
    "discrete_cql": {"dataset": CARTPOLE},
}
"""Every offline algorithm on every kind of action that it takes in a classic task."""


def write_datasets(root: Path, monkeypatch: Any) -> None:
    """Write a dataset of Pendulum and one of CartPole, and have both found."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    for name, env_id in ((PENDULUM, "Pendulum-v1"), (CARTPOLE, "CartPole-v1")):
        env = gym.make(env_id)
        write_dataset(name, env.observation_space, env.action_space, env=env_id)


def offline_config(task: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """Return the tiny configuration of one of `TASKS`: 90 gradient steps, with marks that do not coincide."""
    chosen = TASKS[task]
    algo = chosen.get("algo", task)
    raw: dict[str, Any] = {
        "algo": algo,
        "seed": 7,
        "total_timesteps": 90,
        "output_dir": str(output_dir),
        "device": "cpu",
        "torch_threads": 1,
        "eval_episodes": 2,
        "eval_interval": 40,
        "log_interval": 9,
        "checkpoint_interval": 25,
        "env_kwargs": {"max_episode_steps": 10},
        "tracking": {"tensorboard": False},
        **chosen,
    }
    raw["algo_kwargs"] = {"hidden_sizes": [8], "batch_size": 8, **SMALL[algo], **chosen.get("algo_kwargs", {})}
    for key, value in changes.items():
        raw[key] = {**raw.get(key, {}), **value} if isinstance(value, Mapping) else value
    return validate_config(raw)


@contextlib.contextmanager
def stopped_after_updates(updates: int | None) -> Iterator[None]:
    """Send this process SIGTERM during the given gradient step; None never does."""
    original = TrainingSession.collected
    count = 0

    def counting(session: TrainingSession) -> None:
        nonlocal count
        original(session)
        count += 1
        if count == updates:
            signal.raise_signal(signal.SIGTERM)

    with mock.patch.object(TrainingSession, "collected", counting):
        yield


def train_with_stops(config: TrainConfig, stops: Sequence[int]) -> Path:
    """Train, stopping after each of `stops` more gradient steps and resuming; returns the run directory."""
    with stopped_after_updates(stops[0]):
        result = train(config)
    for stop in [*stops[1:], None]:
        assert (result.status, result.signal) == ("interrupted", signal.SIGTERM)
        with stopped_after_updates(stop):
            result = resume(result.run_dir)
    assert result.status == "completed"
    return result.run_dir


def finite(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether all floating-point tensors are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point())
