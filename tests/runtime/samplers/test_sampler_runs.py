"""Runs with samplers: the same bits however the environments are split, also after a stop and a resume."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import (
    SMALL_PPO,
    assert_same_run,
    evaluation_rows,
    final_state,
    metric_rows,
    rows_without_samplers,
    task_config,
    tiny_config,
    weights,
)
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.samplers.pool import SamplerPool
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import resume, train


def _train(config: TrainConfig) -> Path:
    result = train(config)
    assert result.status == "completed"
    return result.run_dir


def _stopped_in_wait(number: int) -> Any:
    """Send this process SIGTERM when it begins to wait for samplers for the given time."""
    original, count = SamplerPool.wait, 0

    def counting(pool: SamplerPool, interrupted: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            signal.raise_signal(signal.SIGTERM)
        return original(pool, interrupted)

    return mock.patch.object(SamplerPool, "wait", counting)


def _train_with_stops(config: TrainConfig, *stops: int) -> Path:
    """Train, stopping when samplers are waited for, and resume until the run is complete."""
    result: TrainResult | None = None
    for stop in (*stops, 0):
        with _stopped_in_wait(stop):
            result = train(config) if result is None else resume(result.run_dir)
        assert result.status == ("interrupted" if stop else "completed")
    assert result is not None
    return result.run_dir


# What is not normalised has the same statistics however it is split, so that a run without samplers is the same too.
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"algo_kwargs": {"recurrent": {"size": 8, "sequence_length": 6}}}, id="memory"),
        pytest.param({"env_id": "toy_envs:Toy/LateMask-v0"}, id="masks"),
        pytest.param(
            {
                "algo": "pqn",
                "env_id": "toy_envs:Toy/MaskedDiscrete-v0",
                "algo_kwargs": {"num_steps": 16, "minibatch_size": 16, "hidden_sizes": [8]},
                "env_kwargs": {"max_episode_steps": 5},
            },
            id="q-values",
        ),
        pytest.param(
            {
                "env_id": "Pendulum-v1",
                "algo_kwargs": {"use_sde": True, "sde_sample_freq": 4},
                "env_kwargs": {"max_episode_steps": 23},
            },
            id="truncation",
        ),
    ],
)
def test_a_run_with_samplers_is_the_run_without(tmp_path: Path, changes: dict[str, Any]) -> None:
    alone = _train(tiny_config(tmp_path / "alone", num_envs=3, **changes))
    split = _train(tiny_config(tmp_path / "split", num_envs=3, samplers=2, **changes))
    assert rows_without_samplers(split) == metric_rows(alone)
    assert evaluation_rows(split) == evaluation_rows(alone)
    ours, theirs = final_state(split), final_state(alone)
    different = [key for key in theirs if key.startswith("/algorithm") and str(ours[key]) != str(theirs[key])]
    assert not different
    assert str(ours["/collector/observation"]) == str(theirs["/collector/observation"])


def test_the_number_of_samplers_changes_no_bit_of_a_normalised_run(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "num_envs": 4,
        "env_kwargs": {"normalize_observation": True, "normalize_reward": True, "max_episode_steps": 23},
    }
    runs = [_train(task_config("gru", tmp_path / str(n), samplers=n, **changes)) for n in (1, 3)]
    assert metric_rows(runs[0]) == metric_rows(runs[1])
    for one, other in zip(*(weights(run).values() for run in runs), strict=True):
        assert one.equal(other)
    states = [final_state(run) for run in runs]
    assert states[0].keys() == states[1].keys()
    assert all(str(states[0][key]) == str(states[1][key]) for key in states[0])


@pytest.mark.parametrize(("algo", "lag"), [("ppo", 0), ("appo", 1)])
def test_a_stopped_run_with_samplers_continues_bit_for_bit(tmp_path: Path, algo: str, lag: int) -> None:
    config: dict[str, Any] = {
        "algo": algo,
        "algo_kwargs": SMALL_PPO,
        "samplers": 2,
        "policy_lag": lag,
        "env_kwargs": {"normalize_observation": True},
    }
    whole = _train(tiny_config(tmp_path / "whole", **config))
    stopped = _train_with_stops(tiny_config(tmp_path / "stopped", **config), 1, 4, 2)
    assert_same_run(whole, stopped)


def test_a_fork_may_change_the_number_of_samplers(tmp_path: Path) -> None:
    alone = train(tiny_config(tmp_path / "alone"))
    checkpoint = alone.run_dir / "checkpoints" / "step_192"
    here = resume(checkpoint, fork=True, overrides={"output_dir": str(tmp_path / "here")})
    split = resume(checkpoint, fork=True, overrides={"output_dir": str(tmp_path / "split"), "samplers": 2})
    for one, other in zip(*(weights(run.run_dir).values() for run in (here, split)), strict=True):
        assert one.equal(other)


def test_rows_say_what_samplers_cost(tmp_path: Path) -> None:
    result = train(tiny_config(tmp_path, samplers=1, policy_lag=1))
    assert result.metrics["policy_lag"] == 1
    assert result.metrics["bytes_moved"] > 32 * (4 * 4 + 8 + 4 + 2)  # a rollout's observations, actions, rewards, ends
    assert result.metrics["wait_collect"] > 0
    assert result.metrics["wait_update"] > 0
