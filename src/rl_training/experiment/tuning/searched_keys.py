"""Which keys of a configuration can be searched, which not and why, and how their values are checked and set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_origin

from rl_training.errors import did_you_mean
from rl_training.experiment.config import TrainConfig, config_to_dict
from rl_training.experiment.configuration.env_params import MODES, WRAPPER_KEYS, EnvParams
from rl_training.experiment.configuration.names_elsewhere import (
    WHOLE_CONFIGURATION,
    answer_for,
    unknown_parameter,
    unknown_top_level_key,
)
from rl_training.experiment.configuration.type_words import members, strip_metadata
from rl_training.experiment.configuration.validation import (
    KeyPath,
    Problem,
    check_plain,
    check_value,
    field_default,
    field_types,
    plain,
    unknown_key,
)
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.tasks import TASKS

ALGORITHM, ENVIRONMENT = "algo_kwargs", "env_kwargs"
SEARCHABLE = ("num_envs",)
"""Keys at the top level that can be searched, besides the two blocks."""

_SCORES = "it decides how trials are scored, which must be the same for all of them"
_NOT_LEARNING = "it does not change what is learned"
_SPEED = "it changes how fast a trial is trained, not what is learned"
_TASK = "it decides what is learned, and the scores of trials would not be comparable"
_LENGTH = "a longer trial would win by its length; set it once for all trials"
NOT_SEARCHABLE: dict[str, str] = {
    "algo": "settings of different algorithms have no space in common; make one study for each",
    "env_id": _TASK,
    "dataset": _TASK,
    "seed": "all trials are trained with the same seeds, so that luck does not decide",
    "benchmark": "the study chooses the seeds of its trials",
    "total_timesteps": _LENGTH,
    "early_stopping": _LENGTH,
    "eval_episodes": _SCORES,
    "eval_interval": _SCORES,
    "init": "all trials start alike; set it once for all trials",
    "callbacks": "they may do anything with a run; set them once for all trials",
    **dict.fromkeys(("device", "execution_backend", "deterministic", "torch_threads", "acceleration"), _SPEED),
    **dict.fromkeys(("samplers", "sampler_backend", "ray_address", "devices"), _SPEED),
    "policy_lag": "a lag trades what is learned for speed, and trials are scored by the former; set it for all",
    **dict.fromkeys(("output_dir", "name", "tags", "preset", "tracking", "video"), _NOT_LEARNING),
    **dict.fromkeys(("log_interval", "checkpoint_interval", "keep_checkpoints"), _NOT_LEARNING),
}
# Wrappers that change how an agent perceives a task and its rewards, but not the task that it is scored on.
_PERCEPTION = (
    "frame_stack",
    "flatten_observation",
    "normalize_observation",
    "clip_observation",
    "screen_size",
    "grayscale",
)
_REWARDS = ("normalize_reward", "clip_reward", "reward_sign", "episodic_life")
_WORKERS = ("num_workers", "worker_timeout")
_EXAMPLES = {ALGORITHM: "learning_rate", ENVIRONMENT: "frame_stack"}


@dataclass(frozen=True)
class SearchedKey:
    """A key that can be searched, and the type of its values."""

    key: str
    """Dotted key of the configuration."""
    hint: Any = None
    """Type annotation of its values; None: any plain data."""

    @property
    def takes_numbers(self) -> bool:
        """Whether it accepts a number."""
        return self.hint is None or int in self._types or float in self._types

    @property
    def takes_integers_only(self) -> bool:
        """Whether all numbers that it accepts are integers."""
        return int in self._types and float not in self._types

    @property
    def _types(self) -> list[Any]:
        return [] if self.hint is None else [strip_metadata(member) for member in members(self.hint)]

    def fit(self, value: Any, path: KeyPath) -> tuple[Any, list[Problem]]:
        """Return `value` in the form that a configuration contains, or the problems that prevent it."""
        if self.hint is None:
            return plain(value), check_plain(plain(value), path)
        fitted, problems = check_value(self.hint, value, path)
        return plain(fitted), problems


def find_key(name: str, config: TrainConfig) -> SearchedKey | str:
    """Return the key that a file calls `name`, or the rest of a sentence on why it cannot be searched.

    The name of an algorithm's parameter may stand alone: `learning_rate` is `algo_kwargs.learning_rate`.
    """
    spec = get_algorithm_spec(config.algo)
    parameters = field_types(spec.load_params())
    head, *rest = name.split(".")
    if head in parameters:
        return _algorithm_key((head, *rest), parameters, config)
    if head == ALGORITHM and rest:
        if rest[0] in parameters:
            return _algorithm_key(tuple(rest), parameters, config)
        return unknown_parameter(spec, rest[0], parameters, top_level=field_types(TrainConfig))
    if head == ENVIRONMENT and rest:
        return _environment_key(tuple(rest))
    if head in (ALGORITHM, ENVIRONMENT):
        return f"is a whole block; search its keys one by one, such as `{head}.{_EXAMPLES[head]}`"
    if name in SEARCHABLE:
        return SearchedKey(name, field_types(TrainConfig)[name])
    refused = next((key for key in (head, WHOLE_CONFIGURATION.get(head)) if key in NOT_SEARCHABLE), None)
    if refused is not None:
        return f"cannot be searched: {NOT_SEARCHABLE[refused]}; leave it out of the space"
    if head in WHOLE_CONFIGURATION and answer_for(spec, head, parameters) is None:
        return unknown_top_level_key(head, (), {})
    return unknown_parameter(spec, name, [*parameters, *SEARCHABLE], top_level=())


def current_value(config: TrainConfig, key: str) -> Any:
    """Return the value of a key in a configuration, its default if the configuration leaves it out."""
    value: Any = config_to_dict(config)
    parts = key.split(".")
    for part in parts:
        value = _as_mapping(value).get(part, dataclasses.MISSING)
        if value is dataclasses.MISSING:
            return _default(config, parts)
    return value


def set_value(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of a configuration, given as plain data, to exactly `value`: null counts and mappings are replaced."""
    *parents, last = key.split(".")
    for parent in parents:
        settings[parent] = dict(_as_mapping(settings.get(parent)))
        settings = settings[parent]
    settings[last] = plain(value)


def _algorithm_key(parts: KeyPath, parameters: Mapping[str, Any], config: TrainConfig) -> SearchedKey | str:
    name, *inner = parts
    hint = parameters[name]
    key = ".".join((ALGORITHM, *parts))
    if get_origin(strip_metadata(hint)) is dict:
        if inner:
            return SearchedKey(key)
        return f"is a mapping; search its keys one by one, such as `{name}.size`"
    if not inner:
        return SearchedKey(key, hint)
    record = next((member for member in members(hint) if dataclasses.is_dataclass(member)), None)
    if record is None:
        return f"`{name}` has no parts; search it as a whole"
    assert isinstance(record, type)
    fields = field_types(record)
    if len(inner) > 1 or inner[0] not in fields:
        return unknown_key(".".join(inner), fields)
    if current_value(config, f"{ALGORITHM}.{name}") is None:
        return f"the configuration has no {name} of which a part could be searched; set one there, or leave this out"
    return SearchedKey(key, fields[inner[0]])


def _environment_key(parts: KeyPath) -> SearchedKey | str:
    *block, name = parts
    key = ".".join((ENVIRONMENT, *parts))
    if parts[0] == TASKS:
        return f"cannot be searched: {_TASK}; leave it out of the space"
    if parts[0] == "evaluation":
        return f"cannot be searched: {_SCORES}; leave it out of the space"
    if parts == ("training",):
        return f"is a whole block; search its keys one by one, such as `{key}.frame_stack`"
    if name in _WORKERS:
        return f"cannot be searched: {_SPEED}; leave it out of the space"
    hints = field_types(EnvParams)
    if block == ["training"] or (not block and name in (*_PERCEPTION, *_REWARDS)):
        return SearchedKey(key, hints[name] if name in WRAPPER_KEYS else None)
    if not block and name not in WRAPPER_KEYS and (close := did_you_mean(name, (*_PERCEPTION, *_REWARDS))):
        return f"unknown key{close} An argument of the environment is searched as `{ENVIRONMENT}.training.{name}`"
    training = ".".join((ENVIRONMENT, "training", *parts))
    return f"cannot be searched: {_TASK}; search it in training only, as `{training}`, or leave it out of the space"


def _as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a block; a schedule that is given by its kind becomes a mapping."""
    if isinstance(value, str):
        return {"type": value}
    return value if isinstance(value, Mapping) else {}


def _default(config: TrainConfig, parts: list[str]) -> Any:
    """Return the default of a key that a configuration leaves out: of a wrapper, or null for all else."""
    fields = {field.name: field for field in dataclasses.fields(EnvParams)}
    name = parts[-1]
    if parts[0] != ENVIRONMENT or name not in WRAPPER_KEYS:
        return None
    if parts[1] in MODES:  # the key of one mode defaults to the one that both share
        return current_value(config, f"{ENVIRONMENT}.{name}")
    return plain(field_default(fields[name]))
