"""Creates environments by name: chooses the backend and checks that they can be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rl_training.envs.families.ale_vector import make_ale_vector
from rl_training.envs.families.envpool_vector import make_envpool
from rl_training.envs.lookup import check_make_kwargs, find_spec
from rl_training.envs.multi_agent.making import make_agent_vector, make_world
from rl_training.envs.multi_agent.world import World
from rl_training.envs.slot import EnvFactory, EnvSlot
from rl_training.envs.spaces import unsupported_action, unsupported_observation
from rl_training.envs.vector import SyncVectorEnv, VectorEnv
from rl_training.envs.workers.backend_choice import resolve_backend
from rl_training.envs.wrapping import KEY, ignored_texts
from rl_training.errors import ConfigError
from rl_training.experiment.configuration.env_params import EnvParams, Mode, env_params
from rl_training.experiment.machine import thread_limit
from rl_training.experiment.own_code.named_objects import named_objects
from rl_training.experiment.own_code.user_code import AdoptedCode, uses_of
from rl_training.experiment.own_code.world_names import is_world


def make_vector_env(
    env_id: str, env_kwargs: Mapping[str, Any], *, mode: Mode, num_envs: int, backend: str
) -> VectorEnv:
    """Make `num_envs` environments on the backend that `resolve_backend` names.

    Observation and reward normalisation are not applied here: they need the algorithm's discount
    (`normalize.with_normalization`).
    """
    chosen, _ = resolve_backend(env_id, env_kwargs, backend, num_envs, mode=mode)
    if is_world(env_id):
        return make_agent_vector(env_id, env_params(env_kwargs, mode), num_envs)
    spec, params = find_spec(env_id), env_params(env_kwargs, mode)
    if chosen == "vector":
        from rl_training.envs.families.vector_cartpole import VectorCartPole

        return VectorCartPole(num_envs, **_vector_cartpole_kwargs(spec, params))
    if chosen == "ale_vector":
        return make_ale_vector(spec, params, num_envs, _num_threads(params))
    factory = _factory(env_id, params)
    if chosen == "envpool":
        return make_envpool(factory, num_envs, _num_threads(params))
    if chosen == "local_async":
        from rl_training.envs.workers.async_vector import AsyncVectorEnv

        return AsyncVectorEnv(factory, num_envs, num_workers=params.num_workers, worker_timeout=params.worker_timeout)
    return SyncVectorEnv([EnvSlot(factory, index) for index in range(num_envs)])


def make_factory(env_id: str, env_kwargs: Mapping[str, Any], *, mode: Mode) -> EnvFactory:
    """Return what makes single environments, also in another process."""
    if is_world(env_id):
        raise ConfigError(f"samplers: {env_id} has several agents, which samplers do not step; leave samplers out")
    return _factory(env_id, env_params(env_kwargs, mode))


def make_slots(
    env_id: str, env_kwargs: Mapping[str, Any], *, mode: Mode, count: int, render_mode: str | None = None
) -> list[EnvSlot]:
    """Make single environments without autoreset, for evaluations that count complete episodes."""
    if is_world(env_id):
        raise ConfigError(f"env_id: {env_id} has several agents, and this needs an environment with one")
    factory = _factory(env_id, env_params(env_kwargs, mode), render_mode)
    return [EnvSlot(factory, index) for index in range(count)]


def make_players(
    env_id: str, env_kwargs: Mapping[str, Any], *, mode: Mode, count: int, render_mode: str | None = None
) -> Sequence[EnvSlot | World]:
    """Make single environments, or worlds of several agents, without autoreset."""
    if not is_world(env_id):
        return make_slots(env_id, env_kwargs, mode=mode, count=count, render_mode=render_mode)
    params = env_params(env_kwargs, mode)
    return [make_world(env_id, params, index, render_mode) for index in range(count)]


class EnvironmentFacts(NamedTuple):
    """Spaces and attributes of an environment in one mode."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    turn_taking: bool
    """Whether `step` moves two players in turn in a zero-sum game (attribute `turn_taking`)."""
    ignored: tuple[str, ...] = ()
    """Entries of the observation that are left out because they are texts."""


def check_environment(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation and the action space of an environment, checked as `inspect_environment` does."""
    training, _ = inspect_environment(env_id, env_kwargs)
    return training.observation_space, training.action_space


def inspect_environment(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[EnvironmentFacts, EnvironmentFacts]:
    """Make the environment once for training and once for evaluation, and return the facts of both.

    Raises an `AxiomError` for an unknown or deprecated id, a missing extra, an argument the environment does not take,
    an unsupported space, or modes that do not match.
    """
    training = env_params(env_kwargs, "training")
    facts = _facts_of(env_id, training)
    observation_problem = unsupported_observation(facts.observation_space)
    if observation_problem is not None:
        raise ConfigError(f"env_id: the observation space of `{env_id}` is not supported: {observation_problem}")
    action_problem = unsupported_action(facts.action_space)
    if action_problem is not None:
        raise ConfigError(f"env_id: the action space of `{env_id}` is not supported: {action_problem}")

    evaluation = env_params(env_kwargs, "evaluation")
    if evaluation == training:
        return facts, facts
    evaluated = _facts_of(env_id, evaluation)
    for name in ("observation", "action"):
        ours, theirs = (getattr(one, f"{name}_space") for one in (facts, evaluated))
        if ours != theirs:
            raise ConfigError(
                f"env_kwargs.evaluation: the {name} space is {_brief(theirs, ours)} in evaluation and "
                f"{_brief(ours, theirs)} in training; a policy needs the same in both"
            )
    return facts, evaluated


def _facts_of(env_id: str, params: EnvParams) -> EnvironmentFacts:
    if is_world(env_id):
        world = make_world(env_id, params, 0)
        world.close()
        return EnvironmentFacts(world.observation_space, world.action_space, turn_taking=False)
    slot = EnvSlot(_factory(env_id, params), 0)
    try:
        turn_taking = bool(getattr(slot.env.unwrapped, "turn_taking", False))
        return EnvironmentFacts(slot.observation_space, slot.action_space, turn_taking, ignored_texts(slot.env))
    finally:
        slot.close()


def _num_threads(params: EnvParams) -> int:
    """Return the number of threads of a backend with threads of its own."""
    return params.num_workers or thread_limit().number


def _factory(env_id: str, params: EnvParams, render_mode: str | None = None) -> EnvFactory:
    spec = find_spec(env_id)
    check_make_kwargs(spec, params)
    names = [env_id, *(entry.name for entry in named_objects(params.wrappers, KEY))]
    return EnvFactory(spec, params, render_mode, AdoptedCode(uses_of(names)))


def _vector_cartpole_kwargs(spec: EnvSpec, params: EnvParams) -> dict[str, Any]:
    limit = params.max_episode_steps or spec.max_episode_steps
    assert limit is not None, "CartPole is registered with a time limit"
    return {**spec.kwargs, **params.make_kwargs, "max_episode_steps": limit}


def _brief(space: gym.Space[Any], other: gym.Space[Any]) -> str:
    """Describe a space by its shape if that differs from the other space's."""
    return f"{type(space).__name__}{space.shape}" if space.shape != other.shape else str(space)
