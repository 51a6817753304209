"""Planning runs that are stopped or killed at any moment and resumed end as ones that never were: bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from harness import last_checkpoint, metric_rows, require, stopped_after, train_with_stops
from planning_runs import RESUMED_TASKS, planning_config
from processes import Launcher, assert_survives_kills, uninterrupted
from replays import assert_same_replay, assert_same_run_and_replay, replay_rows
from rl_training.algorithms.muzero import MuZero
from rl_training.data.samplers import PrioritizedSampler
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.workflows import resume, train


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of muzero that was never stopped."""
    return uninterrupted(planning_config("muzero", tmp_path_factory.mktemp("straight")))


@pytest.mark.parametrize("task", RESUMED_TASKS)
def test_a_stopped_run_ends_as_one_that_was_not(task: str, tmp_path: Path) -> None:
    # In the warm-up, learning, at once again, and after the replay wrapped around.
    stops = [3, 17, 1, 35] if task != "shifted_images" else [5, 20]
    stopped = train_with_stops(planning_config(task, tmp_path / "stopped"), stops)
    straight = uninterrupted(planning_config(task, tmp_path / "straight"))
    assert_same_run_and_replay(stopped, straight)
    assert max(row.get("update_count", 0) for row in metric_rows(straight)) >= 5


def test_a_checkpoint_holds_what_the_search_said(straight: Path) -> None:
    rows = replay_rows(last_checkpoint(straight))
    assert 80 < len(rows["transition/reward"]) <= 96  # what the ring holds
    policy = rows["transition/policy"]
    np.testing.assert_allclose(policy.sum(1), 1.0, rtol=1e-5)
    assert len(np.unique(policy[:, 0])) > 1
    assert (rows["transition/ended"] > 0).sum() > 2
    assert np.isfinite(rows["transition/value"]).all()


original_load = MuZero.load_state_dict
original_restore = TrajectoryReplay.restore_rows


def forget_target(algorithm: MuZero, state: dict[str, Any]) -> None:
    original_load(algorithm, {**state, "target_network": state["network"]})


def forget_count(algorithm: MuZero, state: dict[str, Any]) -> None:
    original_load(algorithm, {**state, "updates": 0})


def forget_policies(replay: TrajectoryReplay, ranges: Any, arrays: dict[str, np.ndarray]) -> None:
    policy = np.full_like(arrays["transition/policy"], 0.5)
    original_restore(replay, ranges, {**arrays, "transition/policy": policy})


def forget_priorities(sampler: PrioritizedSampler, state: dict[str, Any]) -> None:
    sampler.added(0, len(state["priorities"]))


@pytest.mark.parametrize(
    ("owner", "method", "broken"),
    [
        (MuZero, "load_state_dict", forget_target),
        (MuZero, "load_state_dict", forget_count),
        (TrajectoryReplay, "restore_rows", forget_policies),
        (PrioritizedSampler, "load_state_dict", forget_priorities),
    ],
)
def test_a_resume_that_loses_a_part_is_noticed(
    owner: Any, method: str, broken: Any, straight: Path, tmp_path: Path
) -> None:
    with mock.patch.object(owner, method, broken):
        stopped = train_with_stops(planning_config("muzero", tmp_path / "stopped"), [30])
    with pytest.raises(AssertionError):
        assert_same_run_and_replay(stopped, straight)


# -- real processes and SIGKILL --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["muzero", "gumbel_muzero", "efficientzero"])
def test_a_killed_process_resumes_exactly(algo: str, launcher: Launcher, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"total_timesteps": 1200, "checkpoint_interval": 40, "eval_interval": 600}
    changes["algo_kwargs"] = {"buffer_size": 400}
    reference = uninterrupted(planning_config(algo, tmp_path / "straight", **changes))
    config = planning_config(algo, tmp_path / "killed", **changes)
    killed = assert_survives_kills(launcher, config, reference, kills=2, seed=1)
    assert_same_replay(killed.run_dir, reference)
    assert killed.kills >= 1


# -- environments that cannot be saved -------------------------------------------------------------


def test_a_resume_with_an_environment_that_cannot_be_saved_breaks_the_windows_off(tmp_path: Path) -> None:
    require("LunarLander-v3")
    config = planning_config("muzero", tmp_path, env_id="LunarLander-v3", env_kwargs={"max_episode_steps": 60})
    with stopped_after(20):
        result = train(config)
    resumed = resume(result.run_dir)
    state = read_state(last_checkpoint(resumed.run_dir))["collector"]["replay"]
    assert state["breaks"] == [40]  # two environments, twenty steps
    assert metric_rows(resumed.run_dir)[-1]["global_step"] == 144
