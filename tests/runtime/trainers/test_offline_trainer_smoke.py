"""Offline algorithms are wired up, leave what they promise, repeat themselves exactly and need no environment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import assert_same_run, json_rows, last_checkpoint, metric_rows, tiny_config, weights
from offline_parts import write_dataset
from offline_runs import PENDULUM, TASKS, finite, offline_config, write_datasets
from rl_training.data.datasets.columns import load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.envs.vector import SyncVectorEnv
from rl_training.errors import AxiomError
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.datasets.recording import RecordRequest, record
from rl_training.runtime.workflows import evaluate, train

ROW = {"global_step", "update_count", "steps_per_second", "time_collect", "time_update", "time_eval", "learning_rate"}
METRICS = {
    "bc": {"loss_actor"},
    "td3_bc": {"loss_critic", "loss_actor", "bc_distance", "q_mean"},
    "rebrac": {"loss_critic", "loss_actor", "bc_distance", "q_mean"},
    "iql": {"loss_critic", "loss_value", "loss_actor", "q_mean", "v_mean", "advantage_mean", "actor_learning_rate"},
    "cql": {"loss_critic", "loss_conservative", "loss_actor", "entropy", "multiplier", "actor_learning_rate"},
    "discrete_cql": {"loss_q", "loss_conservative", "q_mean"},
}


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_datasets(tmp_path / "datasets", monkeypatch)
    return tmp_path / "datasets"


@pytest.mark.parametrize("task", TASKS)
def test_every_algorithm_trains_and_hands_over_its_policy(task: str, tmp_path: Path) -> None:
    config = offline_config(task, tmp_path / "runs")
    result = train(config)
    assert (result.status, result.resume_mode) == ("completed", "exact")
    assert result.metrics["global_step"] == result.metrics["update_count"] == 90
    assert np.isfinite(result.metrics["eval_return_mean"])
    assert finite(weights(result.run_dir))
    rows = json_rows(result.run_dir / "metrics.jsonl")
    trained = [row for row in rows if row["event"] == "train"]
    assert [row["global_step"] for row in trained] == list(range(9, 91, 9))
    assert [row["global_step"] for row in rows if row["event"] == "eval"] == [40, 80, 90]
    assert trained[-1].keys() >= ROW | METRICS[config.algo]
    policy = load_policy(result.run_dir)
    observation = policy.observation_space.sample()
    assert policy.action_space.contains(policy.predict(observation))
    assert policy.action_space.contains(policy.predict(observation, deterministic=False, seed=1))


def test_two_runs_of_a_configuration_are_equal_and_other_seeds_differ(tmp_path: Path) -> None:
    one, again, other = (
        train(offline_config("td3_bc", tmp_path / name, seed=seed)).run_dir
        for name, seed in (("one", 1), ("again", 1), ("other", 2))
    )
    assert_same_run(one, again)
    assert metric_rows(one) != metric_rows(other)


def test_no_environment_is_stepped_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("an environment was stepped")

    monkeypatch.setattr(SyncVectorEnv, "step", never)
    monkeypatch.setattr(SyncVectorEnv, "reset", never)
    assert train(offline_config("iql", tmp_path / "runs")).status == "completed"


def test_the_environment_is_the_datasets_unless_another_is_named(tmp_path: Path) -> None:
    result = train(offline_config("bc", tmp_path / "runs"))
    assert read_metadata(result.run_dir)["env_id"] == "Pendulum-v1"
    assert "Pendulum-v1" in result.run_dir.name
    named = train(offline_config("bc", tmp_path / "named", env_id="Pendulum-v1"))
    assert_same_run(result.run_dir, named.run_dir)


def test_the_dataset_is_recorded_with_the_run_and_its_checkpoints(tmp_path: Path) -> None:
    result = train(offline_config("bc", tmp_path / "runs"))
    dataset = open_dataset(PENDULUM)
    record = {"name": PENDULUM, "fingerprint": dataset.fingerprint, "total_episodes": 4, "total_steps": 48}
    assert read_metadata(result.run_dir)["dataset"] == record
    assert json.loads((last_checkpoint(result.run_dir) / "manifest.json").read_text())["dataset"] == record


def test_the_statistics_of_the_dataset_are_frozen_into_the_policy(tmp_path: Path) -> None:
    result = train(offline_config("iql", tmp_path / "runs"))
    every = load_columns(open_dataset(PENDULUM)).observation
    assert isinstance(every, np.ndarray)
    state = read_state(last_checkpoint(result.run_dir))["normalizers"]["observation"]["observation"]
    np.testing.assert_allclose(state["mean"], every.mean(0, dtype=np.float64), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state["var"], every.var(0, dtype=np.float64), rtol=1e-9)
    policy = load_policy(result.run_dir)
    assert policy.normalizer is not None
    np.testing.assert_allclose(np.asarray(policy.normalizer(every)).mean(axis=0), 0.0, atol=1e-5)
    plain = train(offline_config("iql", tmp_path / "plain", algo_kwargs={"normalize_observation": False}))
    assert load_policy(plain.run_dir).normalizer is None


def test_evaluation_repeats_that_of_training_and_needs_no_dataset(
    tmp_path: Path, datasets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(offline_config("td3_bc", tmp_path / "runs"))
    before = evaluate(result.run_dir, num_episodes=3, seed=1)
    shutil.rmtree(datasets / PENDULUM)
    caplog.clear()
    after = evaluate(result.run_dir, num_episodes=3, seed=1)
    assert [episode.episode_return for episode in after.episodes] == [
        episode.episode_return for episode in before.episodes
    ]
    assert "cannot be read" in caplog.text
    assert PENDULUM in caplog.text
    load_policy(result.run_dir)


def test_evaluation_says_that_the_dataset_has_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = train(offline_config("bc", tmp_path / "runs"))
    caplog.clear()
    evaluate(result.run_dir, num_episodes=1)
    assert "changed" not in caplog.text
    _overwrite(seed=11)
    evaluate(result.run_dir, num_episodes=1)
    assert f"the dataset {PENDULUM} has changed" in caplog.text


def _overwrite(**options: Any) -> None:
    dataset = open_dataset(PENDULUM)
    shutil.rmtree(dataset.path)
    write_dataset(PENDULUM, dataset.observation_space, dataset.action_space, env="Pendulum-v1", **options)


# -- without an environment ------------------------------------------------------------------------


def test_a_dataset_without_an_environment_trains_without_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spaces = open_dataset(PENDULUM)
    write_dataset("tests/alone-v0", spaces.observation_space, spaces.action_space)
    result = train(offline_config("bc", tmp_path / "runs", dataset="tests/alone-v0", env_kwargs={}))
    sentence = "there is no evaluation: the dataset tests/alone-v0 names no environment"
    assert caplog.text.count(sentence) == 1
    assert sentence in read_metadata(result.run_dir)["notices"][0]
    assert "eval_return_mean" not in result.metrics
    assert read_metadata(result.run_dir)["env_id"] == "tests/alone-v0"
    assert "alone-v0" in result.run_dir.name
    assert load_policy(result.run_dir).predict(spaces.observation_space.sample()).shape == (1,)
    with pytest.raises(AxiomError, match=r"without an environment.*name one when you train"):
        evaluate(result.run_dir)


def test_an_environment_that_only_the_dataset_names_is_never_imported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = open_dataset(PENDULUM).path / "data" / "metadata.json"
    metadata = json.loads(place.read_text())
    for env_id, reason in (("antigravity:Fly-v0", "is not a registered one"), ("Nowhere-v3", "cannot be made")):
        spec = {**json.loads(metadata["env_spec"]), "id": env_id}
        place.write_text(json.dumps({**metadata, "env_spec": json.dumps(spec)}))
        result = train(offline_config("bc", tmp_path / "runs", total_timesteps=5))
        assert result.status == "completed"
        assert reason in caplog.text
        assert "eval_return_mean" not in result.metrics


def test_a_dataset_that_was_recorded_here_brings_its_wrappers(tmp_path: Path) -> None:
    env_kwargs = {"frame_stack": 2, "max_episode_steps": 12, "normalize_observation": True, "g": 9.0}
    behaviour = train(
        tiny_config(
            tmp_path / "behaviour", env_id="Pendulum-v1", env_kwargs=env_kwargs, total_timesteps=32, eval_episodes=0
        )
    )
    record(RecordRequest(behaviour.run_dir, episodes=4, name="pendulum/stacked-v0"), quiet=True)
    config = offline_config("bc", tmp_path / "runs", dataset="pendulum/stacked-v0", env_kwargs={"max_episode_steps": 5})
    result = train(config)
    assert read_metadata(result.run_dir)["env_id"] == "Pendulum-v1"
    written = json.loads((last_checkpoint(result.run_dir) / "manifest.json").read_text())["config"]["env_kwargs"]
    assert written == {"frame_stack": 2, "max_episode_steps": 5, "g": 9.0}
    assert result.metrics["eval_length_mean"] == 5
    assert evaluate(result.run_dir, num_episodes=1).metrics["eval_length_mean"] == 5


def test_a_path_names_a_dataset_too(tmp_path: Path, datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_id = train(offline_config("bc", tmp_path / "id")).run_dir
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(datasets)
    by_path = train(offline_config("bc", tmp_path / "path", dataset=PENDULUM)).run_dir
    assert_same_run(by_id, by_path)
    monkeypatch.chdir(tmp_path)
    config = json.loads((last_checkpoint(by_path) / "manifest.json").read_text())["config"]
    assert config["dataset"] == str((datasets / PENDULUM).resolve())


# -- what the parameters do ------------------------------------------------------------------------


def test_equal_returns_cannot_be_normalised_which_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _overwrite(lengths=(9,))
    assert train(offline_config("iql", tmp_path / "runs")).status == "completed"
    assert "normalize_reward has no effect" in caplog.text


def test_the_policy_of_the_best_episodes_is_another(tmp_path: Path) -> None:
    every, best = (
        weights(train(offline_config("bc", tmp_path / str(top), algo_kwargs={"top_fraction": top})).run_dir)
        for top in (1.0, 0.25)
    )
    assert any(not every[name].equal(best[name]) for name in every)


def test_acceleration_is_none_and_says_why(tmp_path: Path) -> None:
    for mode in ("auto", "off"):
        result = train(offline_config("td3_bc", tmp_path / mode, acceleration=mode))
        assert read_metadata(result.run_dir)["acceleration"]["kernel"] is None
        assert read_metadata(result.run_dir)["acceleration"]["reason"]
