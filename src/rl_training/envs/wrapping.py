"""Wrappers between an environment and everything that counts or learns: those of the user, and of observations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers

from rl_training.errors import ConfigError
from rl_training.experiment.configuration.env_params import EnvParams
from rl_training.experiment.own_code.named_objects import NamedObject, named_objects
from rl_training.experiment.own_code.user_code import load_object

AnyEnv = gym.Env[Any, Any]
KEY = "env_kwargs.wrappers"


def wrap_task(env: AnyEnv, params: EnvParams) -> AnyEnv:
    """Add the wrappers that the configuration names, leave out texts, and flatten the observation if asked to."""
    for entry in named_objects(params.wrappers, KEY):
        env = _wrapped(env, entry)
    texts = text_entries(env.observation_space)
    if texts:
        env = WithoutEntries(env, texts)
    return wrappers.FlattenObservation(env) if params.flatten_observation else env


WRAPS_NOTHING = "it takes neither wrappers nor flatten_observation; remove them from env_kwargs, or use `local_sync`"


def wraps_task(params: EnvParams) -> bool:
    """Return whether the configuration asks for wrappers of the task, which only single environments have."""
    return bool(params.wrappers) or params.flatten_observation


class WithoutEntries(gym.ObservationWrapper[Any, Any, Any]):
    """Leaves entries out of a Dict observation; it has no state."""

    def __init__(self, env: AnyEnv, keys: tuple[str, ...]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        kept = [(key, part) for key, part in env.observation_space.spaces.items() if key not in keys]
        self.keys = keys
        self.observation_space = spaces.Dict(kept)

    def observation(self, observation: Any) -> Any:
        """Return the entries that are left; what is no mapping is reported where observations are checked."""
        if not isinstance(observation, Mapping):
            return observation
        return {key: part for key, part in observation.items() if key not in self.keys}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


def text_entries(space: gym.Space[Any]) -> tuple[str, ...]:
    """Return the entries of a Dict that are texts, which no network here reads, if others remain."""
    if not isinstance(space, spaces.Dict):
        return ()
    texts = tuple(key for key, part in space.spaces.items() if _holds_text(part))
    return texts if len(texts) < len(space.spaces) else ()


def _holds_text(space: gym.Space[Any]) -> bool:
    """Return whether members of a space are texts; MiniGrid has a space of missions that is no Text."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and np.dtype(space.dtype).kind == "U")


def ignored_texts(env: AnyEnv) -> tuple[str, ...]:
    """Return the entries that were left out of an environment's observation."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, WithoutEntries):
            return layer.keys
        layer = layer.env
    return ()


def _wrapped(env: AnyEnv, entry: NamedObject) -> AnyEnv:
    kind = load_object(entry.name, place=entry.place, fits=_is_wrapper, wanted="wrapper class (gymnasium.Wrapper)")
    if not _is_wrapper(kind):
        what = "a class" if inspect.isclass(kind) else f"a {type(kind).__name__}"
        raise ConfigError(
            f"{entry.place}: `{entry.name}` is {what} that wraps no environment; name a subclass of gymnasium.Wrapper"
        )
    try:
        inspect.signature(kind).bind(env, **entry.arguments)
    except TypeError as error:
        raise ConfigError(
            f"{entry.place}: `{entry.name}` does not take these arguments: {error}; it is made by "
            f"{kind.__name__}{inspect.signature(kind)}"
        ) from error
    try:
        made: AnyEnv = kind(env, **entry.arguments)
    except Exception as error:
        raise ConfigError(
            f"{entry.place}: `{entry.name}` cannot wrap this environment: {type(error).__name__}: {error}"
        ) from error
    return made


def _is_wrapper(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, gym.Wrapper)
