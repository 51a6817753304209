"""The keys of `env_kwargs` for wrappers and workers; all other keys go to `gymnasium.make`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from annotated_types import DocInfo, Ge, Gt

from rl_training.experiment.configuration.fork_rules import FREE, rules
from rl_training.experiment.configuration.validation import (
    KeyPath,
    Problem,
    check_plain,
    check_value,
    field_types,
    plain,
    raise_problems,
)
from rl_training.experiment.own_code.named_objects import NamedObject, check_named_objects, named_objects

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

Mode = Literal["training", "evaluation"]
MODES: tuple[Mode, ...] = get_args(Mode)
WRAPPERS = "wrappers"


@dataclass(frozen=True)
class EnvParams:
    """Wrapper settings of one environment, as read from `env_kwargs`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}
    on_fork: ClassVar[Mapping[str, str]] = rules(FREE, "num_workers", "worker_timeout")

    max_episode_steps: Annotated[int, Ge(1)] | None = None
    """Truncate episodes after this many steps; null: the environment's own limit."""

    wrappers: Annotated[
        tuple[str | dict[str, Any], ...], DocInfo("a list of `module:Name` and `{use: module:Name, <arguments>}`")
    ] = ()
    """Subclasses of gymnasium.Wrapper around the environment, innermost first: `module:Name`, `path/to/file.py:Name`,
    or a mapping with that name as `use` and the arguments. They are part of the task: returns are counted above
    them."""

    flatten_observation: bool = False
    """Join all entries of a Dict or Tuple observation to one vector; discrete entries become one-hot."""

    frame_stack: Annotated[int, Ge(1)] = 1
    """Number of latest frames observed together; 1: no stacking."""

    normalize_observation: bool = False
    """Normalise observations by their running mean and standard deviation; evaluation uses the frozen statistics."""

    normalize_reward: bool = False
    """Scale training rewards by the running standard deviation of the discounted return."""

    clip_observation: Annotated[float, Gt(0)] = 10.0
    """Normalised observations are clipped to this absolute value."""

    clip_reward: Annotated[float, Gt(0)] = 10.0
    """Normalised rewards are clipped to this absolute value."""

    reward_sign: bool = False
    """Learn from the sign of the reward (-1, 0, 1), as usual on Atari; training only."""

    atari: bool = False
    """Apply Atari preprocessing: no-op starts, frame skip, resizing, grayscale."""

    noop_max: Annotated[int, Ge(0)] = 30
    """Atari: up to this many random no-op steps at the start of a game."""

    frame_skip: Annotated[int, Ge(1)] = 4
    """Atari: repeat each action for this many frames and observe the maximum of the last two."""

    screen_size: Annotated[int, Ge(1)] = 84
    """Atari: side of the square observation in pixels."""

    grayscale: bool = True
    """Atari: observe one gray channel instead of three colours."""

    episodic_life: bool = False
    """Atari: treat the loss of a life as the end of an episode; training only."""

    fire_reset: bool = False
    """Atari: press FIRE after a reset in games that wait for it."""

    num_workers: Annotated[int, Ge(1)] | None = None
    """`local_async`: number of worker processes; null: one per core, at most one per environment. `ale_vector` and
    `envpool`: number of threads; null: one per usable core, at most OMP_NUM_THREADS and one per environment."""

    worker_timeout: Annotated[float, Gt(0)] = 60.0
    """`local_async`: seconds to wait for a worker before the run stops with an error. `samplers`: seconds without a
    step after which one is replaced."""

    make_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of `gymnasium.make`: all keys of `env_kwargs` that are not listed here."""


WRAPPER_KEYS: tuple[str, ...] = tuple(
    entry.name for entry in dataclasses.fields(EnvParams) if entry.name != "make_kwargs"
)
# Evaluation reports real rewards over real episodes, regardless of the settings for training.
_OFF_IN_EVALUATION = {"normalize_reward": False, "reward_sign": False, "episodic_life": False}
_MAKE_KWARGS_REPAIR = "unknown key; write arguments of gymnasium.make directly under env_kwargs"
_NEED_ATARI = ("episodic_life", "fire_reset")


def env_params(config: TrainConfig | Mapping[str, Any], mode: Mode) -> EnvParams:
    """Return the wrapper settings for `mode`, from a config or from its `env_kwargs`.

    The `training:` or `evaluation:` block overrides the shared keys.
    """
    env_kwargs = config if isinstance(config, Mapping) else config.env_kwargs
    checked, problems = check_env_kwargs(env_kwargs)
    raise_problems(problems)
    return _merge(checked, mode)


def named_wrappers(env_kwargs: Mapping[str, Any], key: str = "env_kwargs") -> list[NamedObject]:
    """Return the wrappers that validated `env_kwargs` name, those of single modes too."""
    blocks = {key: env_kwargs} | {f"{key}.{mode}": env_kwargs.get(mode, {}) for mode in MODES}
    return [
        entry
        for place, block in blocks.items()
        for entry in named_objects(block.get(WRAPPERS, ()), f"{place}.{WRAPPERS}")
    ]


def check_env_kwargs(
    env_kwargs: Mapping[str, Any], path: KeyPath = ("env_kwargs",)
) -> tuple[dict[str, Any], list[Problem]]:
    """Return `env_kwargs` with its wrapper keys converted to their types, and all problems found.

    Unknown keys are kept: only the environment can check its arguments.
    """
    shared = {key: value for key, value in env_kwargs.items() if key not in MODES}
    checked, problems = _check_keys(shared, path)
    for mode in MODES:
        block = env_kwargs.get(mode)
        if block is None:
            continue
        if not isinstance(block, Mapping):
            problems.append(Problem((*path, mode), f"must be a mapping of environment keys, got {block!r:.200}"))
            continue
        checked[mode], found = _check_keys(block, (*path, mode))
        problems += found
        problems += [
            Problem((*path, mode, nested), f"does not belong inside `{mode}:`; move it one level up")
            for nested in MODES
            if nested in block
        ]
    if not problems:
        problems = _inconsistencies(checked, path)
    return checked, problems


def _check_keys(block: Mapping[str, Any], path: KeyPath) -> tuple[dict[str, Any], list[Problem]]:
    hints = field_types(EnvParams)
    checked: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in block.items():
        if key == "make_kwargs":
            problems.append(Problem((*path, key), _MAKE_KWARGS_REPAIR))
        elif key in WRAPPER_KEYS:
            checked[key], found = check_value(hints[key], value, (*path, key))
            if key == WRAPPERS and not found:
                checked[key] = list(checked[key])  # env_kwargs is plain data
                found = check_named_objects(checked[key], (*path, key))
            problems += found
        else:
            checked[str(key)] = plain(value)
            problems += check_plain(checked[str(key)], (*path, str(key)))
    return checked, problems


def _merge(env_kwargs: Mapping[str, Any], mode: Mode) -> EnvParams:
    merged = {key: value for key, value in env_kwargs.items() if key not in MODES}
    merged |= env_kwargs.get(mode, {})
    if mode == "evaluation":
        merged |= _OFF_IN_EVALUATION
    wrapper_values = {key: merged.pop(key) for key in WRAPPER_KEYS if key in merged}
    if WRAPPERS in wrapper_values:
        wrapper_values[WRAPPERS] = tuple(wrapper_values[WRAPPERS])
    return EnvParams(**wrapper_values, make_kwargs=merged)


def _inconsistencies(env_kwargs: Mapping[str, Any], path: KeyPath) -> list[Problem]:
    problems = {}
    for mode in MODES:
        params = _merge(env_kwargs, mode)
        for key in _NEED_ATARI:
            if getattr(params, key) and not params.atari:
                place = (mode, key) if key in env_kwargs.get(mode, {}) else (key,)
                text = "is part of Atari preprocessing; set atari: true or remove it"
                problems[place] = Problem((*path, *place), text)
    return list(problems.values())
