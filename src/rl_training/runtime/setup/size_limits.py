"""Refuses sizes that do not fit into memory, with an estimate, before anything of that size is made.

Estimates are lower bounds, so that nothing is refused which would run. Replays have their own limits (`replay_limits`),
since they use disk as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from rl_training.algorithms.offline.cql import CQLParams
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.algorithms.params.offline_params import OfflineParams
from rl_training.algorithms.params.on_policy_params import OnPolicyParams
from rl_training.algorithms.params.replay_params import ReplayParams
from rl_training.algorithms.planning.params import PlanningParams
from rl_training.envs.make import inspect_environment
from rl_training.envs.spaces import observation_kind
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import MODES, env_params
from rl_training.experiment.machine import available_memory, in_words
from rl_training.experiment.tasks import Task
from rl_training.models.encoders import SMALL_IMAGE_FEATURES
from rl_training.search.tree import EDGE, NODE

FLOAT = 4
COPIES_OF_A_WEIGHT = 4  # itself, its gradient and Adam's two moments
COPIES_OF_AN_OBSERVATION = 3  # a space contains the bounds of every number
USUAL_STACK = 64  # frames
ENVIRONMENT = 2_000  # bytes of an environment in Python, at least
VECTOR_ENVIRONMENT = 64  # and of one in a vectorised environment
WORKER = 20_000_000  # bytes of a process with an environment
LARGEST_SHOWN = 10**24  # bytes; larger numbers are not shown
SEED = 36  # bytes of a seed in a list
STEP_BESIDES = 14  # bytes of a stored step besides observation and action


class Demand(NamedTuple):
    """The memory that a setting needs."""

    key: str
    """The key as the user writes it."""
    what: str
    memory: int
    """Bytes, at least."""


def check_sizes(
    config: TrainConfig, params: Any, spaces_by_task: Sequence[tuple[Space[Any], Space[Any]]], *, vector: bool
) -> None:
    """Raise an error if a run would need more memory than is available.

    `spaces_by_task` are observation and action space of each task; `vector`: its environments are vectorised.
    """
    # In this order: too many environments or too large networks make everything after them too large as well.
    refuse(_environment_demands(config, spaces_by_task, vector=vector))
    check_policy_size(params, spaces_by_task)
    for shown, taken in spaces_by_task:
        refuse(_learning_demands(config, params, observation_bytes(shown), action_width(taken)))


def check_policy_size(params: Any, spaces_by_task: Iterable[tuple[Space[Any], Space[Any]]]) -> None:
    """Raise an error if a policy's networks, or one search with them, would need more memory than is available."""
    for shown, taken in spaces_by_task:
        refuse(_network_demands(params, shown, taken))
        if isinstance(params, PlanningParams):
            refuse([_search_demand(params, 1, action_width(taken))])


def check_observation_size(task: Task) -> None:
    """Raise an error if stacked frames or a screen would need more memory than is available, before any is made."""
    for mode in MODES:
        params = env_params(task.env_kwargs, mode)
        if params.atari:
            size = params.screen_size**2 * (1 if params.grayscale else 3)
        elif params.frame_stack > USUAL_STACK:  # fewer frames are not worth making an environment
            size = observation_bytes(_single_frame(task))
        else:
            continue
        key, what = "frame_stack", f"observations of {params.frame_stack} frames"
        if params.atari and params.screen_size > params.frame_stack:
            key, what = "screen_size", f"observations of {params.screen_size} x {params.screen_size} pixels"
        refuse([Demand(f"env_kwargs.{key}", what, COPIES_OF_AN_OBSERVATION * params.frame_stack * size)])


def _single_frame(task: Task) -> Space[Any]:
    single: dict[str, Any] = {mode: {**task.env_kwargs.get(mode, {}), "frame_stack": 1} for mode in MODES}
    return inspect_environment(task.env_id, {**task.env_kwargs, **single})[0].observation_space


def check_episodes(key: str, count: int) -> None:
    """Raise an error if the seeds of so many episodes would need more memory than is available."""
    refuse([_episodes_demand(key, count)])


def refuse(demands: Iterable[Demand]) -> None:
    """Raise one error with a message for every demand that exceeds the available memory."""
    available = available_memory()
    problems = {}
    for demand in demands:
        if demand.memory > available:
            needed = in_words(min(demand.memory, LARGEST_SHOWN))
            problems[demand.key] = (
                f"{demand.key}: {demand.what} need at least {needed} of memory, and {in_words(available)} are "
                "available; lower it"
            )
    if problems:
        raise ConfigError(list(problems.values()))


def observation_bytes(space: Space[Any]) -> int:
    """Return the bytes of one stored observation: floats in single precision."""
    if isinstance(space, spaces.Dict):
        return sum(observation_bytes(part) for part in space.spaces.values())
    size = FLOAT if np.issubdtype(space.dtype, np.floating) else np.dtype(space.dtype).itemsize
    return _product(space.shape or ()) * size


def observation_width(space: Space[Any]) -> int:
    """Return a lower bound on the number of features that an encoder makes of an observation."""
    if isinstance(space, spaces.Dict):
        return sum(observation_width(part) for part in space.spaces.values())
    if observation_kind(space) == "image":
        return SMALL_IMAGE_FEATURES
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return action_width(space)
    return _product(space.shape or ())


def action_width(space: Space[Any]) -> int:
    """Return the number of outputs of a policy for an action."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return _product(space.shape or ())


def _episodes_demand(key: str, count: int) -> Demand:
    return Demand(key, f"the seeds of {count} episodes", count * SEED)


def _product(shape: Iterable[int]) -> int:
    product = 1
    for size in shape:  # Python integers, which do not overflow
        product *= int(size)
    return product


def _environment_demands(
    config: TrainConfig, spaces_by_task: Sequence[tuple[Space[Any], Space[Any]]], *, vector: bool
) -> Iterator[Demand]:
    each = VECTOR_ENVIRONMENT if vector else ENVIRONMENT
    memory = config.num_envs * sum(each + observation_bytes(shown) for shown, _ in spaces_by_task)
    yield Demand("num_envs", f"{config.num_envs} environments", memory)
    yield _episodes_demand("eval_episodes", config.eval_episodes)
    workers = env_params(config, "training").num_workers
    if config.execution_backend == "local_async" and workers is not None:
        workers = min(workers, config.num_envs)
        yield Demand("env_kwargs.num_workers", f"{workers} worker processes", workers * WORKER)


def _network_demands(params: Any, shown: Space[Any], taken: Space[Any]) -> Iterator[Demand]:
    if hasattr(params, "network_weights"):  # optional for a user's algorithm
        named = getattr(params, "encoder", None) is not None  # a user's encoder may have as few as one feature
        weights = params.network_weights(1 if named else observation_width(shown), action_width(taken))
        what = f"networks of {weights} weights with their gradients and moments"
        yield Demand(_largest_setting(params, _NETWORK_SETTINGS), what, weights * FLOAT * COPIES_OF_A_WEIGHT)


def _learning_demands(config: TrainConfig, params: Any, observation: int, actions: int) -> Iterator[Demand]:
    """Yield the memory for stored steps and for batches of them."""
    num_envs = config.num_envs
    if isinstance(params, OnPolicyParams):
        what = f"rollouts (num_steps {params.num_steps} x num_envs {num_envs})"
        yield Demand("algo_kwargs.num_steps", what, params.num_steps * num_envs * (observation + STEP_BESIDES))
    if isinstance(params, ReplayParams):
        what = f"incomplete returns (n_step {params.n_step} x num_envs {num_envs})"
        yield Demand("algo_kwargs.n_step", what, params.n_step * num_envs * (4 * observation + 4 * FLOAT))
        # The batches of a round are sampled together, unless each depends on the errors of the previous one.
        batches = 1 if params.by_priority else max(1, num_envs // params.train_interval) * params.updates_per_round
        key = _largest_setting(params, ("batch_size", "gradient_steps", "train_interval"))
        what, each = f"batches drawn at once ({batches} x batch_size {params.batch_size})", 2 * observation
        if getattr(params, "recurrent", None) is not None:
            # A sequence may have a single step, but always has a memory to begin with.
            each += FLOAT * params.recurrent.memory_size  # type: ignore[attr-defined]
        yield Demand(key, what, batches * params.batch_size * (each + STEP_BESIDES))
    if isinstance(params, DQNParams):
        if params.distribution == "quantile":
            pairs = params.batch_size * params.num_quantiles**2
            yield Demand("algo_kwargs.num_quantiles", f"{pairs} pairs of quantiles", pairs * FLOAT)
        if params.repeat_exponent is not None:
            limit = params.repeat_limit
            yield Demand("algo_kwargs.repeat_limit", f"{limit} durations of repeated actions", limit * 3 * FLOAT)
    if isinstance(params, OfflineParams):
        memory = params.batch_size * (2 * observation + STEP_BESIDES)
        yield Demand("algo_kwargs.batch_size", f"batches of {params.batch_size} transitions", memory)
    if isinstance(params, CQLParams):
        rows = 3 * params.action_samples * params.batch_size
        widest = max(params.critic_hidden_sizes or params.hidden_sizes, default=1)
        key = _largest_setting(params, ("action_samples", "batch_size"))
        yield Demand(key, f"values of {rows} sampled actions", rows * params.num_critics * widest * FLOAT)
    if isinstance(params, PlanningParams):
        yield from _planning_demands(config, params, observation, actions)


def _planning_demands(config: TrainConfig, params: PlanningParams, observation: int, actions: int) -> Iterator[Demand]:
    """Yield the memory for searches and for windows of experience."""
    again = int(params.batch_size * params.reanalyze_ratio) * (params.unroll_steps + 1)
    yield _search_demand(params, config.num_envs, actions)
    settings = ("num_simulations", "batch_size", "unroll_steps")
    yield _search_demand(params, again, actions)._replace(key=_largest_setting(params, settings))
    steps = params.unroll_steps + params.n_step
    memory = params.batch_size * (steps * FLOAT * (actions + 2) + (params.unroll_steps + 1) * observation)
    key = _largest_setting(params, ("batch_size", "unroll_steps", "n_step"))
    yield Demand(key, f"batches of {params.batch_size} windows of {steps} steps", memory)


def _search_demand(params: PlanningParams, trees: int, actions: int) -> Demand:
    simulations = params.most_simulations
    node = NODE.itemsize + actions * EDGE.itemsize + FLOAT * (1 + params.latent_numbers)
    scheduled = "_schedule" if params.num_simulations < simulations else ""
    what = f"search trees ({trees} x num_simulations {simulations})"
    return Demand(f"algo_kwargs.num_simulations{scheduled}", what, trees * simulations * node)


_NETWORK_SETTINGS = (
    "hidden_sizes",
    "critic_hidden_sizes",
    "hidden_size",
    "latent_size",
    "support_size",
    "width",
    "layers",
    "context_steps",
    "experts",
    "expert_size",
    "adapters",
    "adapter_rank",
    "top_k",
    "num_critics",
    "num_quantiles",
    "num_atoms",
)


def _largest_setting(params: Any, names: Sequence[str]) -> str:
    """Return the key of the setting that exceeds its default the most."""
    defaults = {field.name: field.default for field in dataclasses.fields(params)}
    present = [name for name in names if name in defaults]
    if not present:  # a user's algorithm may have other names for its sizes
        return "algo_kwargs"
    excess = {name: 1000 * _size(getattr(params, name)) // _size(defaults[name]) for name in present}
    return f"algo_kwargs.{max(present, key=lambda name: excess[name])}"


def _size(value: Any) -> int:
    """Return a size for comparison; for several layers, from the widest one and their number."""
    if isinstance(value, tuple):
        return max(1, max(value, default=1) * len(value))
    return max(1, value or 1)
