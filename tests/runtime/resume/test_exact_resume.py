"""A run that is stopped or killed at any moment and resumed ends as one that never was: bit for bit."""

from __future__ import annotations

import json

import pytest
import torch

from harness import (
    TASKS,
    assert_same_run,
    assert_same_state,
    last_checkpoint,
    metric_rows,
    require,
    stopped_after,
    task_config,
    tiny_config,
    train_with_stops,
    weights,
)
from processes import Launcher, assert_survives_kills, kill_and_resume, uninterrupted
from rl_training.algorithms.ppo import PPO
from rl_training.experiment.checkpoints import verify_checkpoint
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.setup.threads import Threads
from rl_training.runtime.workflows import evaluate, resume, train


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    return Launcher(tmp_path_factory.mktemp("processes"))


SLOW_TASKS = {"atari", "ale_vector"}
STOPPED = [pytest.param(task, marks=pytest.mark.slow if task in SLOW_TASKS else ()) for task in TASKS]


@pytest.mark.parametrize("task", STOPPED)
def test_a_run_stopped_in_and_between_rollouts_ends_as_one_that_was_not(task, tmp_path):
    config = task_config(task, tmp_path / "straight")
    require(config.env_id)
    num_steps = config.algo_kwargs["num_steps"]
    stops = [3, num_steps - 3, 2 * num_steps, 1, num_steps + 4]  # in, exactly after, after, in, in a rollout
    stopped = train_with_stops(task_config(task, tmp_path / "stopped"), stops)
    assert_same_run(stopped, uninterrupted(config))


def test_a_stop_inside_a_rollout_saves_the_rollout_in_progress(tmp_path):
    with stopped_after(5):
        result = train(tiny_config(tmp_path))
    assert result.checkpoint_path is not None
    assert result.checkpoint_path.name == "step_10"  # 5 steps of 2 environments
    state = read_state(result.checkpoint_path)
    assert state["session"]["counters"]["step"] == 0
    assert state["collector"]["rollout"]["position"] == 5
    assert metric_rows(result.run_dir) == []


def test_a_checkpoint_between_rollouts_carries_no_spent_rollout(tmp_path):
    run_dir = uninterrupted(tiny_config(tmp_path))
    assert read_state(last_checkpoint(run_dir))["collector"]["rollout"] is None


def test_other_seeds_give_other_weights(tmp_path):
    """The comparison of states can fail."""
    one = weights(uninterrupted(tiny_config(tmp_path / "a", seed=1, total_timesteps=64)))
    other = weights(uninterrupted(tiny_config(tmp_path / "b", seed=2, total_timesteps=64)))
    with pytest.raises(AssertionError, match="/model/"):
        assert_same_state(one, other)


def test_a_checkpoint_remembers_the_number_of_threads(tmp_path, monkeypatch):
    """A machine with other cores would choose another number, and round differently."""
    used = []
    set_num_threads = torch.set_num_threads

    def noting(number):
        used.append(number)
        set_num_threads(1)

    monkeypatch.setattr(torch, "set_num_threads", noting)
    monkeypatch.setattr(
        "rl_training.runtime.setup.run_setup.choose_threads", lambda config, **network: Threads(3, "as said")
    )
    with stopped_after(20):
        result = train(tiny_config(tmp_path))
    assert verify_checkpoint(result.checkpoint_path).manifest["torch_threads"] == 3
    used.clear()
    monkeypatch.setattr(
        "rl_training.runtime.setup.run_setup.choose_threads", lambda config, **network: Threads(1, "as said")
    )
    resume(result.run_dir)
    assert used[0] == 3


# -- real processes and SIGKILL --------------------------------------------------------------------


def test_a_killed_process_resumes_exactly(launcher, tmp_path):
    """Checkpoints after every rollout, so that most of the time is spent saving."""
    changes = {"total_timesteps": 3200, "checkpoint_interval": 64, "keep_checkpoints": 2}
    reference = uninterrupted(task_config("cartpole_vector", tmp_path / "straight", **changes))
    config = task_config("cartpole_vector", tmp_path / "killed", **changes)
    killed = assert_survives_kills(launcher, config, reference, kills=5, seed=1)
    assert killed.kills >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("task", sorted(TASKS.keys() - SLOW_TASKS))
def test_a_process_killed_many_times_resumes_exactly(task, seed, launcher, tmp_path):
    changes = {"total_timesteps": 12800, "checkpoint_interval": 128, "keep_checkpoints": 1 + seed}
    config = task_config(task, tmp_path / "killed", **changes)
    require(config.env_id)
    reference = uninterrupted(task_config(task, tmp_path / "straight", **changes))
    killed = assert_survives_kills(launcher, config, reference, kills=15, seed=seed)
    assert killed.kills >= 8
    assert killed.kills_while_saving >= 2


# -- environments that cannot be saved -------------------------------------------------------------


def lander(output_dir, **changes):
    require("LunarLander-v3")
    env_kwargs = {"max_episode_steps": 60}
    return tiny_config(output_dir, env_id="LunarLander-v3", env_kwargs=env_kwargs, **changes)


def test_episode_boundary_mode_is_declared_everywhere(tmp_path, caplog):
    with stopped_after(20):
        result = train(lander(tmp_path))
    sentence = "LunarLander-v3 cannot be snapshotted, so the resume mode is episode-boundary"
    assert sentence in caplog.text
    metadata = read_metadata(result.run_dir)
    assert metadata["resume_mode"] == "episode-boundary"
    assert any(sentence in notice for notice in metadata["notices"])
    manifest = json.loads((last_checkpoint(result.run_dir) / "manifest.json").read_text())
    assert manifest["resume_mode"] == "episode-boundary"
    assert result.resume_mode == "episode-boundary"
    assert evaluate(result.run_dir, num_episodes=1).resume_mode == "episode-boundary"

    caplog.clear()
    resumed = resume(result.run_dir)
    assert resumed.status == "completed"
    assert sentence in caplog.text
    assert resumed.resume_mode == "episode-boundary"


def test_exact_mode_is_declared_too(tmp_path, caplog):
    result = train(tiny_config(tmp_path, total_timesteps=64))
    assert result.resume_mode == read_metadata(result.run_dir)["resume_mode"] == "exact"
    assert verify_checkpoint(result.checkpoint_path).manifest["resume_mode"] == "exact"
    assert "resume mode" not in caplog.text


def test_nothing_stored_crosses_the_boundary_of_a_resume(tmp_path, monkeypatch):
    """The last step before the stop becomes a truncation that bootstraps from the observation after it."""
    with stopped_after(5):
        result = train(lander(tmp_path))
    before = read_state(result.checkpoint_path)["collector"]
    assert not (before["rollout"]["terminated"] | before["rollout"]["truncated"]).any()
    update, learned = PPO.update, []

    def watched(algorithm, rollout, controls, generator):
        if not learned:
            values = algorithm.values(torch.as_tensor(before["observation"]))
            assert rollout.truncated[:6].tolist() == [[False, False]] * 4 + [[True, True]] + [[False, False]]
            torch.testing.assert_close(rollout.final_value[4], values)
            # What follows the boundary is the first observation of another episode.
            assert torch.equal(rollout.observation[:5], torch.as_tensor(before["rollout"]["observation"]))
            assert not torch.equal(rollout.observation[5], torch.as_tensor(before["observation"]))
            assert (rollout.observation[5][:, 1] > 1.38).all()  # every landing starts at the top
        learned.append(rollout.transitions)
        return update(algorithm, rollout, controls, generator)

    monkeypatch.setattr(PPO, "update", watched)
    assert resume(result.run_dir).status == "completed"
    assert sum(learned) == 320


def test_resumes_across_a_boundary_restart_by_derived_seeds_and_repeat(tmp_path):
    """Two equal runs that are stopped at the same step go on equally."""
    one, other = (train_with_stops(lander(tmp_path / name), [21, 30]) for name in "ab")
    assert_same_run(one, other)


@pytest.mark.slow
def test_a_killed_lander_completes(launcher, tmp_path):
    config = lander(tmp_path, total_timesteps=12800)
    killed = kill_and_resume(launcher, config, kills=10, seed=3)
    assert metric_rows(killed.run_dir)[-1]["global_step"] == 12800
