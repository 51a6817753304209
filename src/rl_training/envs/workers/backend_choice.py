"""Which backend runs an environment, and why."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from gymnasium.envs.registration import EnvSpec

from rl_training.envs.families.ale_vector import ale_vector_obstacle, has_sticky_actions
from rl_training.envs.families.envpool_vector import envpool_obstacle
from rl_training.envs.lookup import find_spec
from rl_training.errors import ConfigError, MissingExtraError, did_you_mean
from rl_training.experiment.configuration.env_params import EnvParams, Mode, env_params
from rl_training.experiment.own_code.world_names import is_world

Backend = Literal["local_sync", "local_async", "vector", "ale_vector", "envpool"]
BACKENDS = ("auto", *get_args(Backend))

_CARTPOLE_ENTRY_POINT = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
# Below this number, the overhead of array operations exceeds that of stepping single environments.
_VECTOR_CARTPOLE_FROM = 5


def resolve_backend(
    env_id: str, env_kwargs: Mapping[str, Any], backend: str, num_envs: int, *, mode: Mode = "training"
) -> tuple[Backend, str]:
    """Return the backend that will run the environments, and the reason."""
    if backend not in BACKENDS:
        raise ConfigError(
            f"execution_backend: unknown backend `{backend}`"
            + (did_you_mean(backend, BACKENDS) or f"; choose one of {', '.join(BACKENDS)}")
        )
    if is_world(env_id):
        if backend not in ("auto", "local_sync"):
            raise ConfigError(f"execution_backend: `{backend}` runs no environment with several agents; use `auto`")
        return "local_sync", "the agents of a world step together"
    if backend == "local_sync":
        return "local_sync", "asked for"
    if backend == "local_async":
        return "local_async", "asked for"
    spec, params = find_spec(env_id), env_params(env_kwargs, mode)
    if backend == "auto":
        return _choose(spec, params, num_envs)
    asked: dict[str, Callable[[EnvSpec, EnvParams], str | None]] = {
        "vector": lambda spec, params: _with_repair(_vector_obstacle(spec, params)),
        "ale_vector": ale_vector_obstacle,
        "envpool": envpool_obstacle,
    }
    obstacle = asked[backend](spec, params)
    if obstacle is not None:
        raise ConfigError(f"execution_backend: `{backend}` cannot run this: {obstacle}")
    if backend == "envpool" and importlib.util.find_spec("envpool") is None:
        raise MissingExtraError("execution_backend `envpool`", "envpool")
    return backend, "asked for"  # type: ignore[return-value]


def _choose(spec: EnvSpec, params: EnvParams, num_envs: int) -> tuple[Backend, str]:
    """Return the fastest backend among those that can be resumed exactly, whatever cores the machine has."""
    obstacle = _vector_obstacle(spec, params)
    if obstacle is None and num_envs >= _VECTOR_CARTPOLE_FROM:
        return "vector", f"{spec.id} has its own vector entry point"
    if params.atari and ale_vector_obstacle(spec, params) is None:
        if has_sticky_actions(spec, params):
            return "ale_vector", "it alone saves a game with sticky actions exactly"
        return "local_sync", (
            "as fast as any on one core; `ale_vector` steps on several, with other random starts, and repeats the "
            "steps of its games on resume"
        )
    if obstacle is None:
        obstacle = f"the vector entry point of {spec.id} is faster only from {_VECTOR_CARTPOLE_FROM} environments on"
    if importlib.util.find_spec("envpool") is not None and envpool_obstacle(spec, params) is None:
        obstacle += "; `envpool` steps on several cores, but starts new episodes on resume"
    return "local_sync", obstacle


def _with_repair(obstacle: str | None) -> str | None:
    return None if obstacle is None else f"{obstacle}; use `auto`"


def _vector_obstacle(spec: EnvSpec, params: EnvParams) -> str | None:
    """Return why the environment's own vector entry point cannot be used, or None if it can."""
    if spec.vector_entry_point is None:
        return f"{spec.id} has no vector entry point"
    if spec.vector_entry_point != _CARTPOLE_ENTRY_POINT:
        return f"the vector entry point of {spec.id} has no adapter here"
    defaults = EnvParams()
    per_env = [
        field.name
        for field in dataclasses.fields(EnvParams)
        if field.name in ("frame_stack", "reward_sign", "atari", "wrappers", "flatten_observation")
        and getattr(params, field.name) != getattr(defaults, field.name)
    ]
    foreign = [key for key in params.make_kwargs if key != "sutton_barto_reward"]
    if per_env or foreign:
        return f"the vector entry point of {spec.id} does not take {', '.join(per_env + foreign)}"
    return None
