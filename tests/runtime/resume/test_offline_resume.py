"""Offline runs that are stopped or killed at any moment and resumed end as ones that never were: bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness import assert_same_run, json_rows, last_checkpoint, weights
from offline_parts import write_dataset
from offline_runs import PENDULUM, TASKS, offline_config, train_with_stops, write_datasets
from processes import Launcher, assert_survives_kills, uninterrupted
from rl_training.data.datasets.dataset import open_dataset
from rl_training.errors import AxiomError, CheckpointError, ConfigError
from rl_training.experiment.runs import read_metadata
from rl_training.runtime import offline
from rl_training.runtime.workflows import resume, train

STOPS = [3, 22, 1, 30]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("processes"))


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_datasets(tmp_path / "datasets", monkeypatch)
    return tmp_path / "datasets"


@pytest.mark.parametrize("task", TASKS)
def test_a_stopped_run_ends_as_one_that_was_not(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "BATCHES_PER_DRAW", 16)  # so that stops lie inside of draws and between them
    stopped = train_with_stops(offline_config(task, tmp_path / "stopped"), STOPS)
    straight = uninterrupted(offline_config(task, tmp_path / "straight"))
    assert_same_run(stopped, straight)


def test_a_killed_process_resumes_exactly(launcher: Launcher, tmp_path: Path) -> None:
    changes = {"total_timesteps": 500, "checkpoint_interval": 25, "eval_interval": 300, "keep_checkpoints": 2}
    reference = uninterrupted(offline_config("iql", tmp_path / "straight", **changes))
    config = offline_config("iql", tmp_path / "killed", **changes)
    killed = assert_survives_kills(launcher, config, reference, kills=3, seed=1)
    assert killed.kills >= 1


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_process_killed_many_times_resumes_exactly(task: str, launcher: Launcher, tmp_path: Path) -> None:
    changes = {"total_timesteps": 2400, "checkpoint_interval": 60, "eval_interval": 900, "log_interval": 30}
    reference = uninterrupted(offline_config(task, tmp_path / "straight", **changes))
    config = offline_config(task, tmp_path / "killed", **changes)
    killed = assert_survives_kills(launcher, config, reference, kills=8, seed=2)
    assert killed.kills >= 4


def test_a_longer_horizon_continues_with_the_draws_of_a_longer_run(tmp_path: Path) -> None:
    constant = {"actor_learning_rate_schedule": None}
    run = train(offline_config("iql", tmp_path / "extended", algo_kwargs=constant)).run_dir
    resume(run, total_timesteps=130)
    straight = train(offline_config("iql", tmp_path / "straight", algo_kwargs=constant, total_timesteps=130)).run_dir
    one, other = weights(run), weights(straight)
    assert all(one[name].equal(other[name]) for name in other)


def test_a_fork_goes_on_with_other_settings_on_the_same_dataset(tmp_path: Path) -> None:
    run = train(offline_config("td3_bc", tmp_path / "runs")).run_dir
    fork = resume(
        run, fork=True, total_timesteps=120, set_values=["algo_kwargs.alpha=1.0", "algo_kwargs.batch_size=16"]
    ).run_dir
    assert read_metadata(fork)["dataset"] == read_metadata(run)["dataset"]
    assert json_rows(fork / "metrics.jsonl")[-1]["global_step"] == 120
    with pytest.raises(ConfigError, match="dataset: must stay"):
        resume(run, fork=True, total_timesteps=150, set_values=["dataset=cartpole/random-v0"])


def test_a_changed_dataset_stops_a_resume_with_a_sentence(tmp_path: Path, datasets: Path) -> None:
    run = train(offline_config("bc", tmp_path / "runs")).run_dir
    before = sorted(path.name for path in run.rglob("*"))
    dataset = open_dataset(PENDULUM)
    shutil.rmtree(datasets / PENDULUM)
    write_dataset(PENDULUM, dataset.observation_space, dataset.action_space, env="Pendulum-v1", seed=5)
    with pytest.raises(CheckpointError, match=r"the dataset pendulum/random-v0 in .* has changed since"):
        resume(run, total_timesteps=120)
    assert sorted(path.name for path in run.rglob("*")) == before


def test_a_missing_dataset_stops_a_resume_with_a_sentence(tmp_path: Path, datasets: Path) -> None:
    run = train(offline_config("bc", tmp_path / "runs")).run_dir
    shutil.rmtree(datasets / PENDULUM)
    with pytest.raises(AxiomError, match="there is no dataset `pendulum/random-v0`"):
        resume(run, total_timesteps=120)
    assert read_metadata(run)["status"] == "completed"


def test_other_metadata_of_the_dataset_may_change(tmp_path: Path) -> None:
    run = train(offline_config("bc", tmp_path / "runs")).run_dir
    place = open_dataset(PENDULUM).path / "data" / "metadata.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "description": "a new one"}))
    assert resume(run, total_timesteps=120).status == "completed"


def test_weights_and_statistics_start_another_run(tmp_path: Path) -> None:
    first = train(offline_config("td3_bc", tmp_path / "first"))
    second = train(offline_config("td3_bc", tmp_path / "second", init=str(first.run_dir), total_timesteps=1))
    one, other = weights(first.run_dir), weights(second.run_dir)
    moved = one["/critic/networks.weight_0"] - other["/critic/networks.weight_0"]
    assert moved.abs().max() < 1e-3  # one step of Adam from there
    assert (last_checkpoint(second.run_dir) / "state.json").exists()
