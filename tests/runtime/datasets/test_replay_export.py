"""The replay of a run as a dataset: the episodes that the run played, as far as they are still there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from harness import tiny_config
from off_policy_runs import train_tiny
from planning_runs import train_tiny as train_planning
from rl_training.data.datasets.columns import load_columns
from rl_training.data.datasets.dataset import Dataset, open_dataset
from rl_training.data.datasets.inspection import check
from rl_training.errors import AxiomError, CheckpointError
from rl_training.runtime.datasets import replay_export
from rl_training.runtime.datasets.replay_export import episodes_in, export_replay
from rl_training.runtime.workflows import train


def _export(run: Path, name: str | None = "tests/some-v0") -> Dataset:
    dataset = open_dataset(export_replay(run, name, quiet=True).path)
    findings = check(dataset)
    assert findings.faults == findings.oddities == []
    return dataset


def test_transitions_are_joined_where_one_begins_with_what_the_last_led_to() -> None:
    # Environments 0 and 1 in turn. Environment 0: a termination after 2 steps, then a truncation (a gap in the serial
    # numbers) after 1, then 1 step so far. Environment 1: one episode in progress.
    columns = {
        "env": np.array([0, 1, 0, 1, 0, 1, 0, 1]),
        "observation": np.array([0, 1, 2, 3, 6, 5, 9, 8]),
        "successor": np.array([2, 3, 4, 5, 7, 8, 10, 11]),
        "discount": np.array([0.9, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9, 0.9]),
    }
    assert [rows.tolist() for rows in episodes_in(columns)] == [[0, 2], [1, 3, 5, 7], [4], [6]]


def test_a_termination_ends_an_episode_even_without_a_reset() -> None:
    columns = {
        "env": np.zeros(3, int),
        "observation": np.array([[0, 0], [0, 1], [1, 2]]),
        "successor": np.array([[0, 1], [1, 2], [2, 3]]),
        "discount": np.array([0.9, 0.0, 0.9]),
    }
    assert [rows.tolist() for rows in episodes_in(columns)] == [[0, 1], [2]]


def test_the_episodes_of_a_replay_are_those_that_were_played(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "dqn", "env_samples:Sample/Diary-v0").run_dir
    dataset = _export(run)
    assert dataset.total_steps == 48, "the replay wrapped around"
    incomplete = 0
    for episode in dataset.episodes():
        assert isinstance(episode.observations, np.ndarray)
        numbers, steps, _ = episode.observations.T
        assert (numbers == numbers[0]).all(), "an episode crosses no reset"
        np.testing.assert_array_equal(np.diff(steps), 1)
        np.testing.assert_array_equal(episode.rewards, steps[1:] * 10 + episode.actions)
        incomplete += steps[0] != 0
    assert incomplete <= 2, "only the oldest episode of an environment may lack its beginning"
    assert dataset.origin["kind"] == "replay"
    assert dataset.origin["run"] == run.name


def test_actions_are_in_the_environments_format(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "sac", "Pendulum-v1", env_kwargs={"max_episode_steps": 10}).run_dir
    for episode in _export(run).episodes():
        assert isinstance(episode.observations, np.ndarray)
        cosine, sine, speed = episode.observations[:-1].T
        angle = np.arctan2(sine, cosine)
        reward = -(angle**2 + 0.1 * speed**2 + 0.001 * episode.actions[:, 0] ** 2)
        np.testing.assert_allclose(episode.rewards, reward, atol=1e-4)
        assert np.abs(episode.actions).max() > 1.0


def test_actions_are_numbered_as_in_the_environment(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "dqn", "toy_envs:Toy/MaskedDiscrete-v0").run_dir
    for episode in _export(run).episodes():
        assert episode.actions.min() >= 1
        masks = episode.infos["action_mask"]
        assert masks.shape == (episode.steps + 1, 4)
        assert masks[np.arange(episode.steps), episode.actions - 1].all()


def test_stacked_frames_are_put_together_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env_kwargs": {"frame_stack": 3}, "algo_kwargs": {"hidden_sizes": [8]}}
    run = train_tiny(tmp_path, "dqn", "toy_envs:Toy/Image-v0", **settings).run_dir
    dataset = _export(run)
    assert dataset.observation_space.shape is not None
    for episode in dataset.episodes():
        assert isinstance(episode.observations, np.ndarray)
        frames = episode.observations.reshape(episode.steps + 1, 3, -1)
        np.testing.assert_array_equal(frames[1:, :-1], frames[:-1, 1:])
    assert dataset.env_id == "Toy/Image-v0" or dataset.env_id is None


def test_goals_that_were_not_reached_stay_as_they_were(tmp_path: Path) -> None:
    run = train_tiny(
        tmp_path, "sac", "rl_training.envs.goal_tasks:PointReach-v0", algo_kwargs={"hindsight": "future"}
    ).run_dir
    for episode in _export(run).episodes():
        assert isinstance(episode.observations, dict)
        goals = episode.observations["desired_goal"]
        np.testing.assert_array_equal(goals, np.broadcast_to(goals[0], goals.shape))


def test_raw_observations_and_rewards_are_written_where_the_run_normalises(tmp_path: Path) -> None:
    normalised = {"normalize_observation": True, "normalize_reward": True}
    run = train_tiny(tmp_path, "sac", "toy_envs:Toy/DriftBox-v0", env_kwargs=normalised).run_dir
    columns = load_columns(_export(run))
    assert isinstance(columns.observation, np.ndarray)
    assert columns.observation.min() > 9e6
    assert np.abs(columns.reward).max() > 10


def test_the_replay_of_a_planning_run_is_written(tmp_path: Path) -> None:
    run = train_planning(tmp_path, "muzero", "CartPole-v1", acceleration="off").run_dir
    assert _export(run).total_steps > 0


def test_a_replay_larger_than_memory_is_read_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train_tiny(tmp_path, "dqn", "env_samples:Sample/Diary-v0").run_dir
    small = _export(run)
    monkeypatch.setattr(replay_export, "_IN_MEMORY", 0)
    large = _export(run, "tests/large-v0")
    assert small.data_file.read_bytes() == large.data_file.read_bytes()


def test_a_run_without_a_replay_is_refused_with_the_command_that_works(tmp_path: Path) -> None:
    run = train(tiny_config(tmp_path, env_id="CartPole-v1")).run_dir
    with pytest.raises(AxiomError, match="ppo forgets its rollouts; `axiomrl dataset record --checkpoint"):
        export_replay(run, None)


def test_sums_of_rewards_are_refused(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "dqn", "CartPole-v1", algo_kwargs={"n_step": 3}).run_dir
    with pytest.raises(AxiomError, match="sums of 3 rewards"):
        export_replay(run, None)


def test_a_damaged_segment_is_refused_and_leaves_nothing(tmp_path: Path, root: Path) -> None:
    run = train_tiny(tmp_path, "dqn", "CartPole-v1").run_dir
    segment = next((run / "segments").iterdir())
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="damaged"):
        export_replay(run, None)
    assert not root.exists()


def test_minari_opens_it_and_default_names_are_free_versions(tmp_path: Path) -> None:
    import minari

    run = train_tiny(tmp_path, "dqn", "CartPole-v1").run_dir
    names = [_export(run, None).name for _ in range(2)]
    assert names == ["CartPole-v1/dqn-replay-v0", "CartPole-v1/dqn-replay-v1"]
    theirs = minari.load_dataset(names[1])
    assert theirs.recover_environment().observation_space == gym.make("CartPole-v1").observation_space
