"""Changes of settings when a run continues from a checkpoint: which are possible, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, algorithm_params, config_to_dict
from rl_training.experiment.configuration.env_params import EnvParams, env_params
from rl_training.experiment.configuration.fork_rules import (
    FREE,
    NETWORKS,
    REWARD_STATISTICS,
    UNKNOWN,
    fork_rules,
    refusal,
)
from rl_training.experiment.registry import get_algorithm_spec

# May change without a fork: these affect the length of a run and its evaluation, not what is learned.
_FREE_WITHOUT_FORK = ("total_timesteps", "eval_episodes")


def changed_settings(original: TrainConfig, config: TrainConfig, *, fork: bool) -> dict[str, tuple[Any, Any]]:
    """Return the settings that a continuation changes: key -> (before, after).

    Raises one error with all changes that are not possible, each with its reason.
    """
    changed = config_differences(original, config)
    problems = []
    for key, (before, _) in changed.items():
        rule = fork_rule(original, key)
        if rule != FREE:
            problems.append(refusal(key, before, rule))
        elif not fork and key not in _FREE_WITHOUT_FORK:
            problems.append(
                f"{key}: an exact continuation keeps its settings; add --fork to go on with others in a new run"
            )
    if problems:
        raise ConfigError(problems)
    return changed


def network_differences(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the network settings in which two configurations differ, with both values.

    The algorithms are the same, or `one` has an offline form of the other's, with every setting of its networks.
    """
    if one.algo != other.algo:
        theirs, ours = algorithm_params(one), algorithm_params(other)
        names = [name for name, rule in fork_rules(type(ours)).items() if rule == NETWORKS]
        pairs = {f"algo_kwargs.{name}": (getattr(theirs, name), getattr(ours, name)) for name in names}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    found = config_differences(one, other)
    return {key: pair for key, pair in found.items() if fork_rule(one, key) == NETWORKS}


def fork_rule(config: TrainConfig, key: str) -> str:
    block, _, name = key.partition(".")
    rules: Mapping[str, str] = fork_rules(TrainConfig)
    if block == "algo_kwargs":
        rule = fork_rules(get_algorithm_spec(config.algo).load_params()).get(name, UNKNOWN)
    elif block == "env_kwargs":
        rule = fork_rules(EnvParams).get(name, rules[block])
    else:
        rule = rules.get(block, UNKNOWN)
    if rule == REWARD_STATISTICS and not env_params(config, "training").normalize_reward:
        return FREE
    return rule


def config_differences(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two configurations differ, `block.key` inside a block, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    ours, theirs = config_to_dict(one), config_to_dict(other)
    for key, value in ours.items():
        if isinstance(value, dict):
            parts = sorted(value.keys() | theirs[key].keys())
            pairs = {f"{key}.{part}": (value.get(part), theirs[key].get(part)) for part in parts}
        else:
            pairs = {key: (value, theirs[key])}
        found |= {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return found
