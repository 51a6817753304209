"""Runs of two learners: one run directory, the same weights, and the same bits after a stop and a resume."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from harness import assert_same_run, metric_rows
from ppo_parts import make_ppo
from rl_training.errors import RunFailure
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.state_files import read_state
from rl_training.experiment.workers.device_checks import LOOPS
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.collector import EnvironmentDriver
from rl_training.runtime.ranks import session as rank_session
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import resume, train
from short_runs import config_of, rank_config


def _train_with_stops(config: TrainConfig, *stops: int) -> Path:
    """Train, stop in the given steps of rank 0's environments, and resume until the run is complete."""
    original, result = EnvironmentDriver._step_env, None
    for stop in (*stops, None):
        steps = 0

        def counting(driver: Any, action: Any, stop: int | None = stop) -> Any:
            nonlocal steps
            steps += 1
            if steps == stop:
                signal.raise_signal(signal.SIGTERM)
            return original(driver, action)

        with mock.patch.object(EnvironmentDriver, "_step_env", counting):
            result = train(config) if result is None else resume(result.run_dir)
        assert result.status == ("completed" if stop is None else "interrupted")
    assert isinstance(result, TrainResult)
    return result.run_dir


def test_two_ranks_train_one_run(tmp_path: Path) -> None:
    result = train(rank_config("ppo", tmp_path, total_timesteps=384, eval_interval=None))
    assert result.status == "completed"
    assert [path.name for path in tmp_path.iterdir()] == [result.run_dir.name]
    acceleration = read_metadata(result.run_dir)["acceleration"]
    assert acceleration["kernel"] is None
    assert "several learners" in acceleration["reason"]
    rows = metric_rows(result.run_dir)
    assert [row["global_step"] for row in rows] == [192, 384, 384]
    assert rows[1]["train_episodes"] == 16  # of 23 steps each, in four environments of 96 steps
    assert result.checkpoint_path is not None
    state = read_state(result.checkpoint_path)
    first, second = state["ranks"]
    assert state["collector"]["observation"].shape == second["collector"]["observation"].shape == (2, 3)
    assert not torch.equal(state["session"]["streams"]["torch"]["policy"], second["streams"]["torch"]["policy"])
    assert first["moments"][0]["count"] == 4 * (1 + 96)  # of both ranks: first observations, and those of steps


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "stops"), [("ppo", (40, 60)), ("sac", (9, 40)), ("dqn", (9, 40))])
def test_a_stopped_run_of_two_ranks_continues_bit_for_bit(tmp_path: Path, algo: str, stops: tuple[int, ...]) -> None:
    whole = train(rank_config(algo, tmp_path / "whole"))
    assert whole.status == "completed"
    stopped = _train_with_stops(rank_config(algo, tmp_path / "stopped"), *stops)
    assert_same_run(whole.run_dir, stopped)


@pytest.mark.slow
@pytest.mark.parametrize("algo", [name for name, spec in ALGORITHMS.items() if spec.loop in LOOPS and name != "crossq"])
def test_every_algorithm_of_both_loops_learns_in_three_ranks(tmp_path: Path, algo: str) -> None:
    shared = {"minibatch_size": 24} if algo in ("ppo", "appo", "pqn") else {}
    config = config_of(algo, tmp_path, num_envs=6)
    if "batch_size" in config.algo_kwargs:
        shared["batch_size"] = 9
    config = replace(config, devices=3, total_timesteps=192, algo_kwargs={**config.algo_kwargs, **shared})
    result = train(config)
    assert result.status == "completed"
    assert result.metrics["update_count"] > 0


@pytest.mark.slow
def test_weights_that_differ_between_ranks_end_the_run(tmp_path: Path) -> None:
    with (
        mock.patch.object(rank_session, "_fingerprint", return_value=b"other"),  # in this process, of rank 0
        pytest.raises(RunFailure, match="the weights of rank 1 are no longer those of rank 0"),
    ):
        train(rank_config("ppo", tmp_path))


def test_a_fingerprint_is_that_of_the_weights() -> None:
    one, same, other = make_ppo(), make_ppo(), make_ppo(seed=1)
    assert rank_session._fingerprint(one) == rank_session._fingerprint(same)
    assert rank_session._fingerprint(one) != rank_session._fingerprint(other)


class _StopAtCheckpoint(Callback):
    """Ends the run at the given step, before learning has begun."""

    def on_checkpoint(self, event: TrainingEvent) -> None:
        if event.step >= 8:
            event.request_stop("far enough")


@pytest.mark.slow
def test_rank_0_ends_the_run_for_all(tmp_path: Path) -> None:
    settings = {"checkpoint_interval": 8, "log_interval": 300, "algo_kwargs": {"learning_starts": 200}}
    stopped = train(rank_config("sac", tmp_path / "callback", **settings), callbacks=[_StopAtCheckpoint()])
    assert stopped.status == "completed"
    assert stopped.stop_reason == "far enough"
    assert stopped.metrics["global_step"] == 8
    early = {"metric": "train_episodes", "target": 10}
    stopped = train(rank_config("ppo", tmp_path / "early", early_stopping=early))
    assert stopped.stop_reason == "train_episodes reached 16, its target is 10"
    assert stopped.metrics["global_step"] == 384
