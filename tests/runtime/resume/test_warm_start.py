"""New runs that start with another run's weights and observation statistics, and with nothing else of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli_parts import CARTPOLE, Command, assert_refused
from harness import assert_same_run, last_checkpoint, only_run, tiny_config, train_with_stops
from offline_runs import write_datasets
from processes import uninterrupted
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.benchmarking import read_summary
from rl_training.experiment.checkpoints import CHECKPOINTS, verify_checkpoint
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.files import sha256_of
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.acting.policy import policies_from_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.workflows import train
from scalezero_runs import NEVER, tiny_suite
from short_runs import SHORT, config_of

START = f"{CHECKPOINTS}/step_0"


class StopAtOnce(Callback):
    """Ends a run when it has saved how it starts."""

    def on_train_start(self, event: Any) -> None:
        event.request_stop("the start was saved")


def started(config: TrainConfig) -> Path:
    """Return the first checkpoint of a run that ends before its first step."""
    return train(config, callbacks=[StopAtOnce()]).run_dir / START


def actions(checkpoint: Path) -> list[np.ndarray]:
    """Return what the policies of a checkpoint do when they see the same random observations."""
    found = []
    sound = verify_checkpoint(checkpoint)
    for policy in policies_from_checkpoint(sound, validate_config(sound.config), device="cpu").values():
        policy.observation_space.seed(5)
        batch = np.stack([policy.observation_space.sample() for _ in range(16)])
        batch = np.clip(batch, -3, 3).astype(policy.observation_space.dtype)
        found.append(policy.actions(batch, generator=torch.Generator().manual_seed(0)))
    return found


def tensors(tree: Mapping[str, Any], under: str) -> list[torch.Tensor]:
    """Return the tensors below every key that contains a text."""
    found = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found += tensors(value, "" if under in key else under)
        elif under in key and isinstance(value, torch.Tensor):
            found.append(value)
    return found


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_a_run_acts_at_its_start_as_the_run_it_comes_from_and_has_no_past(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ALGORITHMS[algo].loop == "offline":
        write_datasets(tmp_path / "datasets", monkeypatch)
    parent = last_checkpoint(train(config_of(algo, tmp_path / "parent")).run_dir)
    child = started(config_of(algo, tmp_path / "child", seed=9, init=str(parent)))
    for ours, theirs in zip(actions(child), actions(parent), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    state, past = read_state(child), read_state(parent)["algorithm"]
    assert all(not tensor.any() for tensor in tensors(state["algorithm"], "optimizer"))
    assert any(tensor.any() for tensor in tensors(past, "optimizer"))
    for name in ("model", "network", "actor", "critic", "target_model", "target_network", "target_critic"):
        for key, tensor in past.get(name, {}).items():
            assert torch.equal(state["algorithm"][name][key], tensor), (name, key)
    assert state["algorithm"].get("updates", 0) == 0
    assert state["session"]["counters"]["step"] == 0


def test_adapters_that_have_joined_are_within_the_weights_of_the_new_run(tmp_path: Path) -> None:
    stages = {"parameter_scaling": True, "stage_steps": 16}
    config = tiny_suite(
        tmp_path, NEVER, NEVER, total_timesteps=48, eval_interval=16, eval_episodes=1, algo_kwargs=stages
    )
    parent = last_checkpoint(train(config).run_dir)
    assert read_state(parent)["algorithm"]["stage"] > 0
    child = started(dataclasses.replace(config, init=parent))
    assert read_state(child)["algorithm"]["stage"] == 0
    for ours, theirs in zip(actions(child), actions(parent), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SAC run on normalised observations and rewards."""
    normalized = {"normalize_observation": True, "normalize_reward": True, "max_episode_steps": 20}
    return train(config_of("sac", tmp_path_factory.mktemp("parent"), env_kwargs=normalized)).run_dir


def test_observation_statistics_go_on_and_reward_statistics_begin_anew(pendulum: Path, tmp_path: Path) -> None:
    config = load_config(pendulum / "config.yaml", overrides={"output_dir": str(tmp_path), "init": str(pendulum)})
    child = read_state(started(config))["normalizers"]
    parent = read_state(last_checkpoint(pendulum))["normalizers"]
    before, after = (state["observation"]["observation"]["count"] for state in (parent, child))
    assert after == before + config.num_envs  # the first observation of each environment
    assert child["reward"]["moments"]["count"] == 0


def test_streams_and_environments_are_those_of_a_run_with_random_weights(pendulum: Path, tmp_path: Path) -> None:
    random = load_config(pendulum / "config.yaml", overrides={"output_dir": str(tmp_path), "seed": 9})
    states = [read_state(started(config)) for config in (random, dataclasses.replace(random, init=pendulum))]
    streams, environments = ([str(part) for part in parts] for parts in zip(*map(_chance, states), strict=True))
    assert streams[0] == streams[1]
    assert environments[0] == environments[1]


def _chance(state: Mapping[str, Any]) -> tuple[Any, Any]:
    return state["session"]["streams"], state["collector"]["env"]["env"]


def test_a_learned_temperature_goes_on_and_a_fixed_one_is_the_configurations(pendulum: Path, tmp_path: Path) -> None:
    config = load_config(pendulum / "config.yaml", overrides={"output_dir": str(tmp_path), "init": str(pendulum)})
    learned = read_state(last_checkpoint(pendulum))["algorithm"]["temperature"]["log"]
    assert torch.equal(read_state(started(config))["algorithm"]["temperature"]["log"], learned)
    fixed = dataclasses.replace(config, algo_kwargs={**config.algo_kwargs, "temperature": 1.0})
    assert float(read_state(started(fixed))["algorithm"]["temperature"]["log"]) == 0.0


def test_the_lineage_names_the_checkpoint_and_the_config_repeats_the_run(pendulum: Path, tmp_path: Path) -> None:
    config = load_config(pendulum / "config.yaml", overrides={"output_dir": str(tmp_path / "a"), "init": str(pendulum)})
    run = train(config).run_dir
    source = last_checkpoint(pendulum)
    assert read_metadata(run)["parent"] == {
        "kind": "init",
        "run_dir": str(pendulum),
        "checkpoint": source.name,
        "step": 32,
        "sha256": sha256_of(source / "manifest.json"),
    }
    again = load_config(run / "config.yaml", overrides={"output_dir": str(tmp_path / "b")})
    assert again.init == source
    assert_same_run(train(again).run_dir, run)


@pytest.mark.parametrize("algo", ["ppo", "sac", "muzero"])
def test_a_run_with_anothers_weights_resumes_exactly_also_without_them(algo: str, tmp_path: Path) -> None:
    parent = train(config_of(algo, tmp_path / "parent")).run_dir
    moved = tmp_path / "moved"
    changes: dict[str, Any] = {"init": parent, "seed": 9, "total_timesteps": 64, "checkpoint_interval": 16}
    config = dataclasses.replace(config_of(algo, tmp_path / "a", num_envs=1), **changes)
    straight = uninterrupted(config)

    class Hide(Callback):
        def on_train_start(self, event: Any) -> None:
            if parent.exists():
                shutil.move(parent, moved)

    stopped = train_with_stops(
        dataclasses.replace(config, output_dir=tmp_path / "b"), [11, 7], callbacks=lambda: [Hide()]
    )
    assert moved.exists()
    assert_same_run(stopped, straight)


# -- what does not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algo": "a2c"}, "holds weights of ppo, and this run trains a2c"),
        ({"env_id": "Acrobot-v1"}, "the observation space of {init} is Box([4], float32), and that of Acrobot-v1 is"),
        ({"algo_kwargs": {"hidden_sizes": [9]}}, "algo_kwargs.hidden_sizes ([8] there, [9] here); use the same"),
        ({"algo_kwargs": {"activation": "relu"}}, "algo_kwargs.activation (tanh there, relu here)"),
        ({"env_kwargs": {"normalize_observation": True}}, "was trained with env_kwargs.normalize_observation false"),
        ({"init": "nowhere"}, "init: no checkpoint at nowhere: give a run directory"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_a_run_exists(
    changes: dict[str, Any], sentence: str, small_ppo: Path, tmp_path: Path
) -> None:
    if changes.get("algo") == "a2c":
        changes = {**changes, "algo_kwargs": {"num_steps": 8, "hidden_sizes": [8]}}
    with pytest.raises(ConfigError) as caught:
        train(tiny_config(tmp_path / "runs", **{"init": str(small_ppo), **changes}))
    assert sentence.format(init=last_checkpoint(small_ppo)) in str(caught.value)
    assert len(caught.value.problems) == 1
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def small_ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("ppo"), **SHORT)).run_dir


def test_a_damaged_checkpoint_is_refused(small_ppo: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_ppo, copy, symlinks=True)
    (last_checkpoint(copy) / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"init: checkpoint .* is damaged"):
        train(tiny_config(tmp_path / "runs", init=str(copy)))


@pytest.mark.parametrize(
    "changes",
    [
        {"spaces": "?"},
        {"spaces": {"observation": {"type": "Box"}, "action": {}}},
        {"spaces": {"observation": {"type": "Dict", "spaces": 3}, "action": None}},
        {"algo": 3},
        {"algo": None},
        {"config": {"algo": "ppo"}},
        {"config": {"algo": "ppo", "env_id": "x", "algo_kwargs": 4}},
    ],
)
def test_a_manifest_that_somebody_changed_is_refused_in_one_sentence(
    changes: dict[str, Any], small_ppo: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_ppo, copy, symlinks=True)
    manifest = last_checkpoint(copy) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changes}))
    with pytest.raises(AxiomError) as caught:
        train(tiny_config(tmp_path / "runs", init=str(copy)))
    assert str(last_checkpoint(copy)) in str(caught.value)
    assert "\n" not in str(caught.value)


# -- sweeps and the command line -------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_seed_of_a_sweep_starts_with_the_same_weights(jobs: int, axiomrl: Command, finished_run: Path) -> None:
    source = finished_run / CHECKPOINTS / "best"
    arguments = ["--init", source, "--seeds", "1-2", "--jobs", jobs, "--name", "warm", "--tag", "x", "--tag", "y"]
    answer = axiomrl("train", *CARTPOLE, *arguments, "--total-timesteps", "64", "--set", "keep_checkpoints=null")
    assert answer.status == 0, answer.err
    summary = Path(answer.values()["benchmark_summary_path"])
    runs = [record.run_dir for record in read_summary(summary).runs]
    assert len(runs) == 2
    for run in runs:
        assert run is not None
        np.testing.assert_array_equal(actions(run / START)[0], actions(source.resolve())[0])
        config = load_config(run / "config.yaml")
        assert (config.init, config.name, config.tags) == (source.resolve(), "warm", ("x", "y"))
        assert read_metadata(run)["name"] == "warm"
    again = axiomrl("train", "--continue", summary)
    assert again.status == 0, again.err


def test_a_mistake_in_init_is_one_sentence_for_a_sweep(axiomrl: Command, finished_run: Path) -> None:
    answer = axiomrl(
        "train", *CARTPOLE, "--init", finished_run, "--seeds", "1-2", "--set", "algo_kwargs.hidden_sizes=[9]"
    )
    assert_refused(answer, "algo_kwargs.hidden_sizes ([8] there, [9] here)")


def test_init_takes_a_relative_path_and_keeps_an_absolute_one(axiomrl: Command, own_run: Path) -> None:
    relative = own_run.relative_to(Path.cwd())
    answer = axiomrl("train", *CARTPOLE, "--init", relative, "--total-timesteps", "64")
    assert answer.status == 0, answer.err
    assert load_config(only_run(Path("runs")) / "config.yaml").init == last_checkpoint(own_run)
