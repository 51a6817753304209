"""ScaleZero's runs, stopped or killed anywhere, also around a stage switch, end bit for bit as if they were not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from harness import last_checkpoint, stopped_after, train_with_stops
from off_policy_runs import train_rows
from processes import Launcher, assert_survives_kills, uninterrupted
from replays import assert_same_replay, assert_same_run_and_replay
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.parameter_scaling import ParameterScaling
from rl_training.runtime.workflows import resume, train
from scalezero_runs import AT_ONCE, NEVER, tiny_suite


def staged(output_dir: Path, **changes: Any) -> TrainConfig:
    """Return a run whose first task is solved at step 32, which begins stage 1; stage 2 begins by its maximum."""
    settings = {"stage_steps": 48, "reanalyze_ratio": 0.25, "per_alpha": 0.6, **changes.pop("algo_kwargs", {})}
    defaults: dict[str, Any] = {"total_timesteps": 128, "checkpoint_interval": 24}
    return tiny_suite(output_dir, AT_ONCE, NEVER, algo_kwargs=settings, **{**defaults, **changes})


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    run_dir = uninterrupted(staged(tmp_path_factory.mktemp("straight")))
    assert [row["stage"] for row in train_rows(run_dir)] == [0, 0, 1, 1, 1, 1, 2, 2]
    return run_dir


@pytest.mark.parametrize("stops", [[4, 3, 9], [8, 1], [20, 12]])
def test_a_stopped_run_ends_as_one_that_was_not(stops: list[int], straight: Path, tmp_path: Path) -> None:
    assert_same_run_and_replay(train_with_stops(staged(tmp_path), stops), straight)


def test_a_fork_goes_on_with_all_replays_in_a_run_of_its_own(straight: Path, tmp_path: Path) -> None:
    with stopped_after(24):
        parent = train(staged(tmp_path))
    fork = resume(parent.run_dir, fork=True)
    assert fork.run_dir != parent.run_dir
    assert_same_replay(fork.run_dir, straight)
    assert train_rows(fork.run_dir)[-1]["stage"] == 2


def test_a_run_that_was_solved_and_is_told_to_go_on_is_not_stopped_again(tmp_path: Path) -> None:
    outcome = train(tiny_suite(tmp_path, AT_ONCE, AT_ONCE))
    assert outcome.metrics["global_step"] == 32
    assert resume(outcome.run_dir, total_timesteps=112).metrics["global_step"] == 112  # over two more evaluations


def test_tasks_of_one_environment_do_not_draw_in_step(tmp_path: Path) -> None:
    poles = [{"env_id": "CartPole-v1"}, {"env_id": "CartPole-v1", "name": "short", "max_episode_steps": 20}]
    config = staged(tmp_path, total_timesteps=32)
    outcome = train(dataclasses.replace(config, env_kwargs={"tasks": poles}))
    states = read_state(last_checkpoint(outcome.run_dir))["collector"]["tasks"]
    assert not np.array_equal(states["CartPole-v1"]["observation"], states["short"]["observation"])


original_load = ScaleZero.load_state_dict
original_pool = ParameterScaling.load_state_dict


def forget_stage(algorithm: ScaleZero, state: dict[str, Any]) -> None:
    original_load(algorithm, {**state, "stage": 0})


def forget_who_is_trained(algorithm: ScaleZero, state: dict[str, Any]) -> None:
    original_load(algorithm, {**state, "trained": [0, 1]})


def forget_when_the_stage_began(scaling: ParameterScaling, state: dict[str, Any]) -> None:
    original_pool(scaling, {**state, "began": 0})


@pytest.mark.parametrize(
    ("owner", "broken"),
    [
        (ScaleZero, forget_stage),
        (ScaleZero, forget_who_is_trained),
        (ParameterScaling, forget_when_the_stage_began),
    ],
)
def test_a_resume_that_loses_a_part_is_noticed(owner: Any, broken: Any, straight: Path, tmp_path: Path) -> None:
    with mock.patch.object(owner, "load_state_dict", broken):
        stopped = train_with_stops(staged(tmp_path), [24])
    with pytest.raises(AssertionError):
        assert_same_run_and_replay(stopped, straight)


@pytest.mark.slow
def test_a_killed_process_resumes_exactly_across_a_stage_switch(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"total_timesteps": 1200, "checkpoint_interval": 40, "eval_interval": 300}
    changes["algo_kwargs"] = {"buffer_size": 400, "stage_steps": 600}
    reference = uninterrupted(staged(tmp_path / "straight", **changes))
    assert {row["stage"] for row in train_rows(reference)} == {0, 1, 2}
    config = staged(tmp_path / "killed", **changes)
    killed = assert_survives_kills(Launcher(tmp_path / "processes"), config, reference, kills=4, seed=1)
    assert_same_replay(killed.run_dir, reference)
    assert killed.kills >= 2
