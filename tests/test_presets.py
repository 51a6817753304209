"""Packaged presets and example configs load, and say what their sources say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rl_training.envs.make import check_environment
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.config import check_config
from rl_training.experiment.config_files import load_config, preset_names
from rl_training.experiment.env_params import env_params

EXAMPLES = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


def test_the_presets_are_the_top_level_files_only() -> None:
    assert set(preset_names()) >= {
        "a2c-cartpole",
        "ppo-breakout",
        "ppo-cartpole",
        "ppo-halfcheetah",
        "ppo-lunarlander",
        "ppo-mountaincar",
        "ppo-pendulum",
        "ppo-pong",
    }
    assert not any("atari" in name for name in preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_preset_is_a_complete_config_named_after_its_contents(name: str) -> None:
    config = load_config(preset=name)
    assert check_config(config) == config
    algo, environment = name.split("-")
    assert config.algo == algo
    assert re.split("[/:]", config.env_id)[-1].split("-")[0].lower() == environment
    assert config.eval_interval is not None
    assert config.total_timesteps // 10 <= config.eval_interval <= config.total_timesteps // 5


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


@pytest.mark.parametrize("name", ["ppo-pong", "ppo-breakout"])
def test_atari_presets_share_one_base_and_evaluate_real_games(name: str) -> None:
    config = load_config(preset=name)
    assert config.algo_kwargs["num_steps"] == 128
    training, evaluation = env_params(config, "training"), env_params(config, "evaluation")
    for params in (training, evaluation):
        assert params.make_kwargs == {
            "repeat_action_probability": 0.0,
            "full_action_space": False,
        }
        assert (params.atari, params.frame_stack, params.frame_skip, params.fire_reset) == (True, 4, 4, True)
    assert (training.episodic_life, training.reward_sign) == (True, True)
    assert (evaluation.episodic_life, evaluation.reward_sign) == (False, False)


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
        check_environment(config.env_id, config.env_kwargs)
    except MissingExtraError as error:
        pytest.skip(str(error))
