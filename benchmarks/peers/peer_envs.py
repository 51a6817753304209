"""The environments of one of our configurations as stable-baselines3 makes them, for it and for SBX.

What it has no wrapper for is refused.
"""

from __future__ import annotations

from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import MODES, EnvParams, env_params
from rl_training.models.encoders import NATURE_IMAGE

_NAME = "stable-baselines3"
_NORMALIZED = ("normalize_observation", "normalize_reward")
_ATARI = ("atari", "noop_max", "frame_skip", "screen_size", "grayscale", "frame_stack", "fire_reset", *MODES)


def vector_env(config: TrainConfig) -> Any:
    """Return the environments to train in."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    params = env_params(config, "training")
    known = {*_NORMALIZED, *(_ATARI if params.atari else ()), *params.make_kwargs}
    unknown = [key for key in config.env_kwargs if key not in known]
    if unknown:
        raise ValueError(f"{_NAME} has no {', '.join(unknown)}")
    if params.atari:
        return _atari_env(config, params)
    env = make_vec_env(config.task_name, n_envs=config.num_envs, seed=config.seed, env_kwargs=params.make_kwargs)
    if params.normalize_observation or params.normalize_reward:
        return VecNormalize(
            env,
            norm_obs=params.normalize_observation,
            norm_reward=params.normalize_reward,
            clip_obs=params.clip_observation,
            clip_reward=params.clip_reward,
            gamma=config.algo_kwargs["gamma"],
        )
    return env


def _atari_env(config: TrainConfig, params: EnvParams) -> Any:
    """Return games with the usual preprocessing, which presses FIRE wherever a game waits for it."""
    import ale_py  # noqa: F401 - registers the games
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    if not (params.grayscale and params.fire_reset):
        raise ValueError(f"{_NAME} has no Atari games in colour or without FIRE")
    if params.screen_size < NATURE_IMAGE:
        raise ValueError(f"{_NAME} has other convolutions for images of {params.screen_size} pixels a side")
    games = make_atari_env(
        config.task_name,
        n_envs=config.num_envs,
        seed=config.seed,
        env_kwargs={**params.make_kwargs, "frameskip": 1},  # the wrapper skips
        wrapper_kwargs={
            "noop_max": params.noop_max,
            "frame_skip": params.frame_skip,
            "screen_size": params.screen_size,
            "terminal_on_life_loss": params.episodic_life,
            "clip_reward": params.reward_sign,
        },
    )
    return VecFrameStack(games, params.frame_stack) if params.frame_stack > 1 else games
