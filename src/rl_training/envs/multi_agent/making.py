"""Makes worlds of several agents by name."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from rl_training.envs.lookup import check_make_kwargs, explain_make_failure, find_spec
from rl_training.envs.multi_agent.agent_vector import AgentVectorEnv
from rl_training.envs.multi_agent.world import World
from rl_training.errors import ConfigError
from rl_training.experiment.configuration.env_params import EnvParams

# Of the wrapper keys, these apply to worlds; normalisation is added outside.
_TAKEN = ("max_episode_steps", "make_kwargs", "num_workers", "worker_timeout")
_NORMALIZED = ("normalize_observation", "normalize_reward", "clip_observation", "clip_reward")


def make_agent_vector(env_id: str, params: EnvParams, num_envs: int) -> AgentVectorEnv:
    """Make as many worlds as `num_envs` agents fill."""
    first = make_world(env_id, params, 0)
    agents = len(first.agents)
    if num_envs % agents:
        first.close()
        many = -(-num_envs // agents) * agents
        raise ConfigError(
            f"num_envs: it counts agents, and {env_id} has {agents} in each world; set it to a multiple of {agents}, "
            f"such as {many}"
        )
    others = [make_world(env_id, params, index) for index in range(1, num_envs // agents)]
    return AgentVectorEnv([first, *others])


def make_world(env_id: str, params: EnvParams, index: int, render_mode: str | None = None) -> World:
    """Make one world; raise an error for settings that it cannot have."""
    defaults = EnvParams()
    foreign = [
        field.name
        for field in dataclasses.fields(EnvParams)
        if field.name not in (*_TAKEN, *_NORMALIZED) and getattr(params, field.name) != getattr(defaults, field.name)
    ]
    if foreign:
        raise ConfigError(
            f"env_kwargs.{foreign[0]}: is for environments with one agent; leave it out, or wrap the environment in a "
            "module of your own"
        )
    spec = find_spec(env_id)
    check_make_kwargs(spec, params)
    kwargs: dict[str, Any] = dict(params.make_kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        return World(partial(_call, spec.entry_point, kwargs), index, max_steps=params.max_episode_steps)
    except Exception as error:
        explanation = explain_make_failure(spec, params, error.__cause__ if error.__cause__ is not None else error)  # type: ignore[arg-type]
        if explanation is None:
            raise
        raise explanation from error


def _call(make: Any, kwargs: dict[str, Any]) -> Any:
    return make(**kwargs)
