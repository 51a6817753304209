"""Atari preprocessing, and the wrappers that change observations, rewards and episodes for training."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.configuration.env_params import EnvParams

AnyEnv = gym.Env[Any, Any]
AnyWrapper = gym.Wrapper[Any, Any, Any, Any]
StepResult = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


def make_preprocessed(spec: EnvSpec, params: EnvParams, make_kwargs: dict[str, Any]) -> AnyEnv:
    """Make a game with no-op starts, frame skip, resizing and grayscale; a step is one decision of the agent."""
    if "frameskip" in make_kwargs:
        raise ConfigError("env_kwargs.frameskip: `atari: true` skips frames itself; set `frame_skip` instead")
    if spec.entry_point != "ale_py.env:AtariEnv":
        raise ConfigError(f"env_kwargs.atari: `{spec.id}` is not an Atari game; remove `atari: true`")
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Atari preprocessing", "atari") from error
    game = gym.make(spec, max_episode_steps=-1, disable_env_checker=True, frameskip=1, **make_kwargs)
    _skip_screens(game.unwrapped)
    env: AnyEnv = AtariPreprocessing(
        game,
        noop_max=params.noop_max,
        frame_skip=params.frame_skip,
        screen_size=params.screen_size,
        terminal_on_life_loss=False,
        grayscale_obs=params.grayscale,
    )
    # Above the frame skip: the limit counts decisions, like every other step count.
    return env if params.max_episode_steps is None else TimeLimit(env, params.max_episode_steps)


def _skip_screens(game: Any) -> None:
    """Let the game return an empty screen: the preprocessing reads the two frames it needs from the emulator itself.

    Copying a colour screen at every frame takes a quarter of the time of a step.
    """
    blank = np.zeros(game.observation_space.shape, np.uint8)
    game._get_obs = lambda: blank


def wrap_for_agent(env: AnyEnv, params: EnvParams) -> AnyEnv:
    """Add the wrappers that change episodes, observations and rewards for training."""
    if params.episodic_life:
        env = EpisodicLife(env)
    if params.fire_reset:
        env = FireReset(env)
    if params.frame_stack > 1:
        env = (FrameStack if isinstance(env.observation_space, gym.spaces.Box) else FrameStackObservation)(
            env, params.frame_stack
        )
        shape = env.observation_space.shape
        if env.observation_space.dtype == np.uint8 and shape is not None and len(shape) == 4:
            env = StackedChannels(env)
    return RewardSign(env) if params.reward_sign else env


class EpisodicLife(AnyWrapper):
    """The loss of a life ends the episode; the next reset continues the game."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._lives = 0
        self._game_over = True

    def step(self, action: Any) -> StepResult:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._game_over = bool(terminated or truncated)
        lives = info["lives"]
        # Some games show zero lives for a few frames before the game is over: these do not count as a lost life.
        if 0 < lives < self._lives:
            terminated = True
        self._lives = lives
        return obs, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._game_over or seed is not None:
            obs, info = self.env.reset(seed=seed, options=options)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._game_over = False
        self._lives = info["lives"]
        return obs, info

    def state_dict(self) -> dict[str, Any]:
        return {"lives": int(self._lives), "game_over": self._game_over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._lives, self._game_over = state["lives"], state["game_over"]


class FireReset(AnyWrapper):
    """Presses FIRE after a reset in games that wait for it; does nothing in other games."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        meanings = env.get_wrapper_attr("get_action_meanings")()
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        if self._fire is None:
            return obs, info
        fired_obs, _, terminated, truncated, fired_info = self.env.step(self._fire)
        if terminated or truncated:
            # FIRE ended the new episode: reset again, and leave FIRE to the agent.
            return self.env.reset(options=options)
        return fired_obs, fired_info

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class FrameStack(FrameStackObservation[Any, Any, Any]):
    """Gymnasium's frame stack for arrays, without its general functions and its second copy of all frames."""

    saved_as = "gymnasium.wrappers.stateful_observation.FrameStackObservation"
    """The class in snapshots, whose state is the same."""

    def step(self, action: Any) -> StepResult:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.obs_queue.append(obs)
        return self._stacked(), reward, terminated, truncated, info

    def _stacked(self) -> np.ndarray:
        stacked = np.empty_like(self.stacked_obs)
        for place, frame in enumerate(self.obs_queue):
            stacked[place] = frame
        return stacked


class StackedChannels(gym.ObservationWrapper[Any, Any, Any]):
    """Colour frames [stack, height, width, 3] as one image [stack * 3, height, width]."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        stack, height, width, channels = env.observation_space.shape  # type: ignore[misc]
        self.observation_space = gym.spaces.Box(0, 255, (stack * channels, height, width), np.uint8)

    def observation(self, observation: Any) -> Any:
        stack, height, width, channels = observation.shape
        return observation.transpose(0, 3, 1, 2).reshape(stack * channels, height, width)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class RewardSign(gym.RewardWrapper[Any, Any]):
    """Replaces rewards by their sign; the tracker below counts the real ones."""

    def reward(self, reward: SupportsFloat) -> float:
        return float(np.sign(float(reward)))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
