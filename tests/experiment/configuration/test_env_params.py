"""`env_kwargs`: wrapper keys are checked, modes override, evaluation stays honest."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.experiment.configuration.env_params import EnvParams, env_params


def raw(env_kwargs: dict[str, Any]) -> dict[str, Any]:
    required = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 5, "output_dir": "runs"}
    return {**required, "env_kwargs": env_kwargs}


def test_unknown_environment_keys_are_left_to_the_environment() -> None:
    config = validate_config(raw({"gravity": -9.8, "training": {"hardcore": True}}))
    assert env_params(config, "training").make_kwargs == {"gravity": -9.8, "hardcore": True}
    assert env_params(config, "evaluation").make_kwargs == {"gravity": -9.8}


def test_mode_blocks_override_shared_keys() -> None:
    kwargs = {"frame_stack": 4, "max_episode_steps": 100, "evaluation": {"max_episode_steps": 500}}
    assert env_params(kwargs, "training") == EnvParams(frame_stack=4, max_episode_steps=100)
    assert env_params(kwargs, "evaluation") == EnvParams(frame_stack=4, max_episode_steps=500)


def test_evaluation_never_shapes_rewards_or_cuts_games() -> None:
    shaped = {"atari": True, "normalize_reward": True, "reward_sign": True, "episodic_life": True}
    for kwargs in (shaped, {"atari": True, "evaluation": shaped}):
        params = env_params(kwargs, "evaluation")
        assert (params.normalize_reward, params.reward_sign, params.episodic_life) == (False, False, False)


@pytest.mark.parametrize(
    ("env_kwargs", "message"),
    [
        ({"frame_stack": True}, "env_kwargs.frame_stack: must be an integer >= 1, got True"),
        ({"evaluation": {"noop_max": -1}}, "env_kwargs.evaluation.noop_max: must be an integer >= 0, got -1"),
        ({"training": [1]}, "env_kwargs.training: must be a mapping"),
        (
            {"training": {"evaluation": {}}},
            "env_kwargs.training.evaluation: does not belong inside `training:`",
        ),
        (
            {"make_kwargs": {"g": 1}},
            "env_kwargs.make_kwargs: unknown key; write arguments of gymnasium.make directly",
        ),
        ({"fire_reset": True}, "env_kwargs.fire_reset: is part of Atari preprocessing; set atari: true"),
        ({"training": {"episodic_life": True}}, "env_kwargs.training.episodic_life: is part of Atari"),
        (
            {"z_range": [0.7, float("inf")]},
            "env_kwargs.z_range: must be finite, got [0.7, inf]; write",
        ),
        ({"maker": object}, "env_kwargs.maker: must be plain data (text, numbers"),
        ({"worker_timeout": 0}, "env_kwargs.worker_timeout: must be a number > 0, got 0"),
    ],
)
def test_wrapper_keys_are_held_to_their_types_and_ranges(env_kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        validate_config(raw(env_kwargs))
    with pytest.raises(ConfigError, match=re.escape(message)):
        env_params(env_kwargs, "training")


def test_wrapper_numbers_keep_their_intended_type() -> None:
    params = env_params({"screen_size": 84.0, "clip_reward": "1e1"}, "training")
    assert (params.screen_size, params.clip_reward) == (84, 10.0)
