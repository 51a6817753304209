"""Runs with a replay that are stopped or killed at any moment and resumed end as ones that never were: bit for bit."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from harness import final_state, last_checkpoint, metric_rows, require, stopped_after, tiny_config, train_with_stops
from processes import Launcher, assert_survives_kills, uninterrupted
from replays import (
    OFF_POLICY_TASKS,
    assert_same_replay,
    assert_same_run_and_replay,
    off_policy_config,
    replay_rows,
    segment_entries,
)
from rl_training.data.accumulator import NStepAccumulator
from rl_training.data.samplers import PrioritizedSampler
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.recording.replay_archive import ReplayArchive
from rl_training.runtime.workflows import resume, train


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    return Launcher(tmp_path_factory.mktemp("processes"))


STOPS = [3, 14, 1, 30, 21]  # in the warm-up, learning, at once again, and after the replay wrapped around


@pytest.mark.parametrize("task", OFF_POLICY_TASKS)
def test_a_stopped_run_ends_as_one_that_was_not(task, tmp_path):
    stops = STOPS if task != "dqn_stacked_images" else [5, 20]
    stopped = train_with_stops(off_policy_config(task, tmp_path / "stopped"), stops)
    straight = uninterrupted(off_policy_config(task, tmp_path / "straight"))
    assert_same_run_and_replay(stopped, straight)
    assert max(row.get("update_count", 0) for row in metric_rows(straight)) >= 5


def test_prioritised_runs_carry_their_priorities(tmp_path):
    run_dir = uninterrupted(off_policy_config("rainbow", tmp_path))
    sampler = read_state(last_checkpoint(run_dir))["collector"]["replay"]["sampler"]
    assert len(sampler["priorities"]) == 120
    assert len(np.unique(sampler["priorities"])) > 20
    assert "/collector/replay/sampler/priorities" in final_state(run_dir)


def test_a_checkpoint_holds_the_transitions_of_the_run(tmp_path):
    """Nothing wraps around here: every step but those still held back for their return is there."""
    run_dir = uninterrupted(off_policy_config("rainbow", tmp_path, algo_kwargs={"buffer_size": 1000}))
    rows = replay_rows(last_checkpoint(run_dir))
    state = read_state(last_checkpoint(run_dir))["collector"]["replay"]
    pending = int((state["accumulator"]["age"] >= 0).sum())
    assert len(rows["transition/reward"]) + pending == 240
    assert len(segment_entries(last_checkpoint(run_dir))) > 3


def test_other_seeds_give_another_replay(tmp_path):
    """The comparison of replays can fail."""
    one, other = (
        uninterrupted(off_policy_config("sac", tmp_path / str(seed), seed=seed, total_timesteps=48)) for seed in (1, 2)
    )
    with pytest.raises(AssertionError):
        assert_same_replay(one, other)


def forget_pending(accumulator, state):
    """A resume that loses the steps held back for their returns."""


def forget_priorities(sampler, state):
    sampler.added(0, len(state["priorities"]))


def forget_rows(archive, run_dir, entries, *, fork):
    original(archive, run_dir, entries[:-1], fork=fork)


original = ReplayArchive.restore


@pytest.mark.parametrize(
    ("owner", "method", "broken"),
    [
        (NStepAccumulator, "load_state_dict", forget_pending),
        (PrioritizedSampler, "load_state_dict", forget_priorities),
        (ReplayArchive, "restore", forget_rows),
    ],
)
def test_a_resume_that_loses_a_part_of_the_replay_is_noticed(owner, method, broken, tmp_path):
    straight = uninterrupted(off_policy_config("rainbow", tmp_path / "straight"))
    with mock.patch.object(owner, method, broken):
        stopped = train_with_stops(off_policy_config("rainbow", tmp_path / "stopped"), [50])
    with pytest.raises(AssertionError):
        assert_same_run_and_replay(stopped, straight)


# -- real processes and SIGKILL --------------------------------------------------------------------


def assert_killed_run_is_the_same(launcher, task, tmp_path, *, kills, seed, **changes):
    reference = uninterrupted(off_policy_config(task, tmp_path / "straight", **changes))
    config = off_policy_config(task, tmp_path / "killed", **changes)
    killed = assert_survives_kills(launcher, config, reference, kills=kills, seed=seed)
    assert_same_replay(killed.run_dir, reference)
    return killed


def test_a_killed_process_with_a_replay_resumes_exactly(launcher, tmp_path):
    changes = {"total_timesteps": 800, "checkpoint_interval": 40, "eval_interval": 600, "keep_checkpoints": 2}
    algo_kwargs = {"buffer_size": 400, "train_interval": 4}
    killed = assert_killed_run_is_the_same(
        launcher, "rainbow", tmp_path, kills=3, seed=1, algo_kwargs=algo_kwargs, **changes
    )
    assert killed.kills >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("task", OFF_POLICY_TASKS)
def test_a_process_with_a_replay_killed_many_times_resumes_exactly(task, seed, launcher, tmp_path):
    images = task == "dqn_stacked_images"
    changes = {"total_timesteps": 1600 if images else 6400, "checkpoint_interval": 80, "eval_interval": 1600}
    killed = assert_killed_run_is_the_same(
        launcher,
        task,
        tmp_path,
        kills=12,
        seed=seed,
        keep_checkpoints=None if seed else 2,
        algo_kwargs={"buffer_size": 700},
        **changes,
    )
    assert killed.kills >= 5


# -- environments that cannot be saved -------------------------------------------------------------


def lander(output_dir):
    require("LunarLander-v3")
    algo_kwargs = {**OFF_POLICY_TASKS["dqn"]["algo_kwargs"], "n_step": 3, "buffer_size": 1000}
    return tiny_config(
        output_dir, algo="dqn", env_id="LunarLander-v3", env_kwargs={"max_episode_steps": 60}, algo_kwargs=algo_kwargs
    )


def test_a_resume_across_an_episode_boundary_truncates_what_was_pending(tmp_path):
    with stopped_after(31):
        result = train(lander(tmp_path))
    before = read_state(last_checkpoint(result.run_dir))["collector"]["replay"]
    pending = before["accumulator"]["age"]
    assert (pending > 0).sum() == 4  # two environments, two steps each
    resumed = resume(result.run_dir)
    rows = replay_rows(last_checkpoint(resumed.run_dir))
    flushed = slice(before["count"], before["count"] + 4)
    np.testing.assert_allclose(np.sort(rows["transition/discount"][flushed]), [0.99**2] * 2 + [0.99] * 2, rtol=1e-6)
    assert set(rows["transition/successor"][flushed]) == set(before["stacks"].tolist())  # before the restart
    assert metric_rows(resumed.run_dir)[-1]["global_step"] == 320


def test_resumes_across_a_boundary_repeat(tmp_path):
    one, other = (train_with_stops(lander(tmp_path / name), [21, 30]) for name in "ab")
    assert_same_run_and_replay(one, other)
