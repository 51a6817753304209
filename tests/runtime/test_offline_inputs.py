"""Mistakes about datasets and offline algorithms end in a sentence with the repair, and leave nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cli_parts import Command
from cli_parts import axiomrl as axiomrl
from harness import only_run, tiny_config
from offline_parts import write_dataset
from offline_runs import CARTPOLE, PENDULUM, offline_config, write_datasets
from rl_training.data.datasets.dataset import open_dataset
from rl_training.errors import ConfigError
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.workflows import train

SMALL = ["--total-timesteps", "20", "--eval-episodes", "1", "--set", "algo_kwargs.hidden_sizes=[8]"]
SMALL += ["--set", "tracking.tensorboard=false", "--set", "algo_kwargs.batch_size=4"]


@pytest.fixture(autouse=True)
def datasets(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    write_datasets(root, monkeypatch)
    return root


def _refused(axiomrl: Command, *arguments: object) -> str:
    answer = axiomrl("train", *SMALL, "--output-dir", "runs", *arguments)
    assert answer.status == 2
    assert not Path("runs").exists()
    assert "Traceback" not in answer.err
    return answer.err


def test_the_command_line_trains_without_an_environment(axiomrl: Command) -> None:
    answer = axiomrl("train", "--algo", "iql", "--set", f"dataset={PENDULUM}", *SMALL, "--output-dir", "runs")
    assert answer.status == 0
    run = only_run(Path("runs"))
    assert read_metadata(run)["env_id"] == "Pendulum-v1"
    assert axiomrl("eval", "--checkpoint", run, "--num-episodes", "1").status == 0
    assert axiomrl("resume", "--checkpoint", run, "--total-timesteps", "30").values()["global_step"] == "30"
    assert "iql" in axiomrl("report", "runs").out
    assert "iql" in axiomrl("leaderboard", "runs").out


def test_seeds_make_a_sweep(axiomrl: Command) -> None:
    answer = axiomrl(
        "train", "--algo", "bc", "--set", f"dataset={CARTPOLE}", *SMALL, "--seeds", "1,2", "--jobs", "1",
        "--output-dir", "runs",
    )  # fmt: skip
    assert answer.status == 0
    assert answer.values()["benchmark_run_count"] == "2"
    assert "CartPole-v1" in answer.values()["benchmark_summary_path"]


def test_an_offline_algorithm_needs_a_dataset(axiomrl: Command) -> None:
    error = _refused(axiomrl, "--algo", "iql")
    assert "dataset: is required, because iql learns from one" in error
    assert "--set dataset=ID" in error


def test_an_unknown_dataset_is_named_with_the_nearest_ones(axiomrl: Command) -> None:
    error = _refused(axiomrl, "--algo", "iql", "--set", "dataset=pendulum/randon-v0")
    assert "dataset: there is no dataset `pendulum/randon-v0`" in error
    assert PENDULUM in error


def test_an_empty_dataset_is_refused(axiomrl: Command, datasets: Path) -> None:
    place = open_dataset(PENDULUM).path / "data" / "metadata.json"
    place.write_text(place.read_text().replace('"total_episodes": 4', '"total_episodes": 0'))
    assert "has no episodes" in _refused(axiomrl, "--algo", "bc", "--set", f"dataset={PENDULUM}")


def test_a_damaged_dataset_is_refused(axiomrl: Command, datasets: Path) -> None:
    file = open_dataset(PENDULUM).data_file
    file.write_bytes(file.read_bytes()[:2000])
    assert str(file) in _refused(axiomrl, "--algo", "bc", "--set", f"dataset={PENDULUM}")


def test_actions_that_the_algorithm_does_not_take_are_refused(axiomrl: Command) -> None:
    error = _refused(axiomrl, "--algo", "td3_bc", "--set", f"dataset={CARTPOLE}")
    assert f"td3_bc does not support the Discrete actions of the dataset {CARTPOLE}" in error
    assert "discrete_cql" in error
    assert "rainbow" not in error  # which learns in an environment
    assert "choose another dataset" in error


def test_a_dataset_of_another_environment_is_refused(axiomrl: Command) -> None:
    error = _refused(axiomrl, "--algo", "bc", "--env", "CartPole-v1", "--set", f"dataset={PENDULUM}")
    assert f"the observation space of {PENDULUM} is" in error
    assert "recorded in" in error


def test_other_bounds_of_actions_are_refused(tmp_path: Path) -> None:
    shown = open_dataset(PENDULUM).observation_space
    write_dataset("tests/wide-v0", shown, spaces.Box(-3.0, 3.0, (1,), np.float32))
    with pytest.raises(ConfigError, match="the action space of tests/wide-v0 is"):
        train(offline_config("bc", tmp_path / "runs", dataset="tests/wide-v0", env_id="Pendulum-v1"))
    assert not (tmp_path / "runs").exists()


def test_unbounded_actions_are_refused_where_they_are_scaled(tmp_path: Path) -> None:
    shown = open_dataset(PENDULUM).observation_space
    write_dataset("tests/unbounded-v0", shown, spaces.Box(-np.inf, np.inf, (1,), np.float32))
    with pytest.raises(ConfigError, match="have no bounds"):
        train(offline_config("td3_bc", tmp_path / "runs", dataset="tests/unbounded-v0"))
    assert not (tmp_path / "runs").exists()


def test_an_online_algorithm_refuses_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset: ppo learns in an environment; leave it out, or .*iql"):
        tiny_config(tmp_path, dataset=PENDULUM)


def test_an_online_algorithm_needs_an_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env_id: is required"):
        tiny_config(tmp_path, env_id=None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_envs": 4}, "num_envs: bc steps no environment in training"),
        ({"execution_backend": "local_async"}, "execution_backend: bc steps no environment"),
        ({"env_kwargs": {"normalize_observation": True}}, "set algo_kwargs.normalize_observation instead"),
        ({"env_kwargs": {"normalize_reward": True}}, "set algo_kwargs.normalize_reward instead"),
    ],
)
def test_settings_of_training_environments_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        offline_config("bc", tmp_path, **changes)


@pytest.mark.parametrize(
    ("task", "key", "value"),
    [
        ("bc", "batch_size", 10**12),
        ("cql", "action_samples", 10**11),
        ("td3_bc", "hidden_sizes", [10**6, 10**6]),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, task: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"algo_kwargs.{key}: .* need at least .* of memory"):
        train(offline_config(task, tmp_path / "runs", algo_kwargs={key: value}))
    assert not (tmp_path / "runs").exists()


def test_a_dataset_that_vanishes_before_the_run_leaves_nothing(tmp_path: Path, datasets: Path) -> None:
    config = offline_config("bc", tmp_path / "runs")
    shutil.rmtree(datasets / PENDULUM)
    with pytest.raises(ConfigError, match="there is no dataset"):
        train(config)
    assert not (tmp_path / "runs").exists()


def test_masks_of_another_width_are_refused(tmp_path: Path) -> None:
    shown = open_dataset(CARTPOLE).observation_space
    write_dataset("tests/masked-v0", shown, spaces.Discrete(2), infos=["action_mask"])  # of four choices
    with pytest.raises(ConfigError, match=r"the action masks of tests/masked-v0 have the shape \(4,\)"):
        train(offline_config("discrete_cql", tmp_path / "runs", dataset="tests/masked-v0"))
    assert not (tmp_path / "runs").exists()
