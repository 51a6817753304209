"""Packaged presets and example configs load, and say what their sources say."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from harness import require
from paths import ROOT
from rl_training.envs.make import check_environment, make_vector_env
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.config import algorithm_params, check_config
from rl_training.experiment.configuration.config_files import load_config, preset_names
from rl_training.experiment.configuration.env_params import MODES, env_params
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.tasks import is_suite, tasks_of
from rl_training.runtime.setup.replay_limits import ReplayDemand
from rl_training.runtime.workflows import train
from rl_training.zoo.catalogue import list_presets

OFFLINE = [name for name in preset_names() if get_algorithm_spec(name.split("-")[0]).loop == "offline"]
WITH_REPLAY = [
    name for name in preset_names() if get_algorithm_spec(name.split("-")[0]).loop in ("off_policy", "planning")
]
# The others are trained by the tests of learning.
WITH_AN_EXTRA = [preset.name for preset in list_presets() if preset.extra and preset.name in WITH_REPLAY]
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


def test_the_presets_are_the_top_level_files_only() -> None:
    assert set(preset_names()) >= {
        "a2c-cartpole",
        "dqn-pong",
        "ppo-breakout",
        "ppo-cartpole",
        "ppo-halfcheetah",
        "ppo-lunarlander",
        "ppo-mountaincar",
        "ppo-pendulum",
        "ppo-pong",
        "qr_dqn-pong",
        "rainbow-pong",
        "sac-halfcheetah",
        "sac-hopper",
        "sac-lunarlandercontinuous",
        "td3-halfcheetah",
        "td3-lunarlandercontinuous",
    }
    assert not any("atari" in name for name in preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_preset_is_a_complete_config_named_after_its_contents(name: str) -> None:
    config = load_config(preset=name)
    assert check_config(config) == config
    algo, environment = name.split("-")
    assert config.algo == algo
    full = re.sub(r"[-_](v\d+|suite)$", "", config.task_name).lower()
    assert re.sub("[^a-z0-9]", "", full).endswith(environment)
    assert config.eval_interval is not None
    # Evaluations tell ScaleZero which tasks are solved: it needs more of them.
    most = 20 if is_suite(config) else 10
    assert config.total_timesteps // most <= config.eval_interval <= config.total_timesteps // 5


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_config_loads(path: Any) -> None:
    config = load_config(path)
    assert check_config(config) == config


def test_examples_really_overlay_what_they_link() -> None:
    folder = EXAMPLES[0].parent
    full, quick = load_config(folder / "ppo-cartpole.yaml"), load_config(folder / "ppo-cartpole-quick.yaml")
    assert quick.total_timesteps < full.total_timesteps
    assert quick.algo_kwargs == full.algo_kwargs
    short, preset = load_config(folder / "ppo-pendulum-short.yaml"), load_config(preset="ppo-pendulum")
    assert short.total_timesteps < preset.total_timesteps
    assert short.algo_kwargs == preset.algo_kwargs


def test_cartpole_fades_learning_rate_and_clip_range_to_zero() -> None:
    kwargs = load_config(preset="ppo-cartpole").algo_kwargs
    assert (kwargs["learning_rate"], kwargs["learning_rate_schedule"]) == (0.001, "linear")
    assert (kwargs["clip_coef"], kwargs["clip_coef_schedule"]) == (0.2, "linear")
    assert (kwargs["num_steps"], kwargs["minibatch_size"], kwargs["update_epochs"]) == (32, 256, 20)


def test_pendulum_explores_by_state_dependent_noise() -> None:
    kwargs = load_config(preset="ppo-pendulum").algo_kwargs
    assert (kwargs["use_sde"], kwargs["sde_sample_freq"]) == (True, 4)


@pytest.mark.parametrize("name", ["ppo-mountaincar", "ppo-halfcheetah"])
def test_normalisation_applies_to_rewards_in_training_only(name: str) -> None:
    config = load_config(preset=name)
    training, evaluation = env_params(config, "training"), env_params(config, "evaluation")
    assert training.normalize_observation
    assert training.normalize_reward
    assert evaluation.normalize_observation
    assert not evaluation.normalize_reward


@pytest.mark.parametrize("name", ["ppo-pong", "ppo-breakout", "dqn-pong", "qr_dqn-pong", "rainbow-pong"])
def test_atari_presets_share_one_base_and_evaluate_real_games(name: str) -> None:
    config = load_config(preset=name)
    assert config.total_timesteps == 10_000_000
    if config.algo == "ppo":
        assert (config.num_envs, config.algo_kwargs["num_steps"]) == (8, 128)
    training, evaluation = env_params(config, "training"), env_params(config, "evaluation")
    for params in (training, evaluation):
        assert params.make_kwargs == {
            "repeat_action_probability": 0.0,
            "full_action_space": False,
        }
        assert (params.atari, params.frame_stack, params.frame_skip, params.fire_reset) == (True, 4, 4, True)
    assert (training.episodic_life, training.reward_sign) == (True, True)
    assert (evaluation.episodic_life, evaluation.reward_sign) == (False, False)


@pytest.mark.parametrize("algo", ["efficientzero", "gumbel_muzero", "muzero"])
def test_presets_on_minatar_end_the_episodes_that_the_games_would_not(algo: str) -> None:
    config = load_config(preset=f"{algo}-breakout")
    assert config.env_id == "MinAtar/Breakout-v1"
    for mode in MODES:
        assert env_params(config, mode).max_episode_steps == 2_500


def test_continuous_presets_warm_up_for_ten_thousand_steps() -> None:
    for name in ("sac-halfcheetah", "sac-hopper", "sac-lunarlandercontinuous", "td3-halfcheetah"):
        assert load_config(preset=name).algo_kwargs["learning_starts"] == 10_000
    assert load_config(preset="td3-lunarlandercontinuous").algo_kwargs["learning_starts"] == 10_000
    lander = load_config(preset="sac-lunarlandercontinuous").algo_kwargs
    assert (lander["learning_rate"], lander["learning_rate_schedule"], lander["tau"]) == (0.00073, "linear", 0.01)


@pytest.mark.parametrize("name", WITH_REPLAY)
def test_the_replay_of_a_preset_fits_a_machine_with_8_gigabytes(name: str) -> None:
    config = load_config(preset=name)
    params = algorithm_params(config)
    memory = disk = 0
    for task in tasks_of(config):
        require(task.env_id, task.env_kwargs)
        env = make_vector_env(
            task.env_id, task.env_kwargs, mode="training", num_envs=config.num_envs, backend="local_sync"
        )
        action_space = env.action_space
        discrete = isinstance(action_space, spaces.Discrete)
        action = np.zeros(1, np.int64) if discrete else np.zeros((1, *(action_space.shape or ())), np.float32)
        stack = env_params(task.env_kwargs, "training").frame_stack
        demand = ReplayDemand.of(config, params, env, action, stack=stack)
        env.close()
        memory += demand.memory(params.buffer_size)
        disk += demand.disk(params.buffer_size)
    assert memory < 1e9
    if config.task_name.startswith("ALE/"):
        assert 84 * 84 * params.buffer_size < memory  # a frame per transition, not a stack of four
    assert disk < 10e9


@pytest.mark.parametrize("name", WITH_AN_EXTRA)
def test_preset_with_a_replay_trains(name: str, tmp_path: Path) -> None:
    config = load_config(preset=name)
    require(config.task_name, config.env_kwargs)
    planning = "replay_ratio" in config.algo_kwargs
    smaller = {"batch_size": 16, "num_simulations": 4} if planning else {}
    warm_up = max(200, config.algo_kwargs["batch_size"])
    # Presets with many updates per step need fewer steps.
    horizon = warm_up + (40 if planning else max(2, 40 // config.algo_kwargs["gradient_steps"]))
    shortened = dataclasses.replace(
        config,
        output_dir=tmp_path,
        total_timesteps=horizon,
        eval_episodes=0,
        log_interval=horizon,
        checkpoint_interval=horizon,
        torch_threads=1,
        algo_kwargs={**config.algo_kwargs, "learning_starts": warm_up, **smaller},
        tracking={"tensorboard": False},
    )
    result = train(shortened)
    if planning:
        assert result.metrics["update_count"] == math.floor((horizon - warm_up) * config.algo_kwargs["replay_ratio"])
        return
    interval, gradient_steps = (config.algo_kwargs[key] for key in ("train_interval", "gradient_steps"))
    assert result.metrics["update_count"] == (horizon // interval - warm_up // interval) * gradient_steps


@pytest.mark.parametrize("name", OFFLINE)
def test_an_offline_preset_learns_from_a_dataset_that_the_documentation_makes(name: str) -> None:
    config, (listed,) = load_config(preset=name), [preset for preset in list_presets() if preset.name == name]
    assert listed.extra is not None
    assert "offline" in listed.extra.split(",")
    assert f"--name {config.dataset}" in (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown preset `ppo-cartpol`; did you mean `ppo-cartpole`"):
        load_config(preset="ppo-cartpol")


@pytest.mark.parametrize("name", ["base/atari-ppo", "../presets/ppo-cartpole", ""])
def test_a_preset_is_found_by_name_not_by_path(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown preset"):
        load_config(preset=name)


@pytest.mark.parametrize("name", preset_names())
def test_preset_trains_on_an_environment_that_can_be_made(name: str) -> None:
    config = load_config(preset=name)
    try:
        for task in tasks_of(config):
            check_environment(task.env_id, task.env_kwargs)
    except MissingExtraError as error:
        pytest.skip(str(error))
