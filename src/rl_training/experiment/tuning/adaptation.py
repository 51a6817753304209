"""Fits a search space to a configuration: its own values belong to the space, and every combination is valid."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import (
    TrainConfig,
    algorithm_params,
    config_to_dict,
    parameter_problems,
    validate_config,
)
from rl_training.experiment.configuration.validation import Problem, plain
from rl_training.experiment.schedules import as_schedule
from rl_training.experiment.tasks import tasks_of
from rl_training.experiment.tuning.domains import Choice, Domain, Range, as_text, same_value
from rl_training.experiment.tuning.searched_keys import ALGORITHM, set_value
from rl_training.experiment.tuning.space import Parameter, SearchSpace

logger = logging.getLogger("rl_training")

DRAWS = 100
"""Combinations that are tried before a search begins."""


def combination_problems(space: SearchSpace, config: TrainConfig) -> list[Problem]:
    """Return the problems of a sample of the space's combinations, the first one of each key."""
    random = Random(0)
    found: dict[str, str] = {}
    for _ in range(DRAWS):
        try:
            space.apply(config, space.draw(random))
        except ConfigError as error:
            for line in error.problems:
                key, _, text = line.partition(": ")
                found.setdefault(key, text)
    return [Problem((key,), f"some combinations are not valid: {text}") for key, text in found.items()]


def including(space: SearchSpace, config: TrainConfig) -> SearchSpace:
    """Return the space with the configuration's own values added to choices and ranges where that is possible."""
    own = space.values_of(config)
    return SearchSpace(
        tuple(
            dataclasses.replace(parameter, domain=_extended(parameter.domain, own[parameter.key]))
            if parameter.key in own
            else parameter
            for parameter in space.parameters
        )
    )


def narrowed(space: SearchSpace, config: TrainConfig) -> SearchSpace:
    """Return the space without the values that do not go with the configuration or with an earlier parameter.

    A parameter with a single value left is left out. What is left out is logged.
    """
    rules = _Rules(config)
    kept: list[Parameter] = []
    excluded = []
    for parameter in space.parameters:
        when = _conditions(parameter, kept)
        fitting = [] if when is None else _fitting(dataclasses.replace(parameter, when=when), kept, rules)
        domain = _restricted(parameter.domain, fitting)
        if domain is not None:
            kept.append(Parameter(parameter.key, domain, when or {}))
        lost = [value for value in _sample(parameter.domain) if domain is None or not domain.contains(value)]
        if lost:
            values = "" if domain is None else f" {', '.join(map(as_text, lost))}"
            excluded.append(f"{parameter.key}{values}")
    if excluded:
        logger.warning(
            "the default search space leaves out what the configuration does not allow: %s", "; ".join(excluded)
        )
    return SearchSpace(tuple(kept))


def _restricted(domain: Domain, fitting: Sequence[Any]) -> Domain | None:
    """Return a domain with only the fitting ones of its sample, None if there is nothing left to search."""
    if isinstance(domain, Range):
        return domain if len(fitting) == len(_sample(domain)) else None
    return Choice(tuple(fitting)) if len(fitting) > 1 else None


def _extended(domain: Domain, value: Any) -> Domain:
    if domain.contains(value):
        return domain
    try:
        if isinstance(domain, Range):
            return dataclasses.replace(domain, low=min(domain.low, value), high=max(domain.high, value))
        return Choice((*domain.values, value))
    except (ConfigError, TypeError):  # null or a word beside numbers, or a number without a logarithm
        return domain


def _conditions(parameter: Parameter, kept: Sequence[Parameter]) -> dict[str, tuple[Any, ...]] | None:
    """Return the conditions that can still be met, None if one of them cannot."""
    domains = {earlier.key: earlier.domain for earlier in kept}
    found = {}
    for key, options in parameter.when.items():
        found[key] = tuple(option for option in options if key in domains and domains[key].contains(option))
        if not found[key]:
            return None
    return found


def _fitting(parameter: Parameter, kept: Sequence[Parameter], rules: _Rules) -> list[Any]:
    """Return the values of a parameter that go with the configuration and with every value of the others."""
    required = _required(parameter, kept)
    others = [
        {**_required(other, kept), other.key: value} for other in kept for value in _sample(other.domain)
    ]  # each with what makes it active
    found = []
    for value in _sample(parameter.domain):
        settings = {**required, parameter.key: value}
        together = [{**other, **settings} for other in others if _agree(other, settings)]
        if all(rules.allow(combination) for combination in (settings, *together)):
            found.append(value)
    return found


def _required(parameter: Parameter, kept: Sequence[Parameter]) -> dict[str, Any]:
    """Return values of other parameters that make this one active."""
    by_key = {earlier.key: earlier for earlier in kept}
    found: dict[str, Any] = {}
    for key, options in parameter.when.items():
        found |= {**_required(by_key[key], kept), key: options[0]}
    return found


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(same_value(one[key], other[key]) for key in one.keys() & other.keys())


def _sample(domain: Domain) -> tuple[Any, ...]:
    """Return all values of a choice, and both ends of a range."""
    return domain.values if isinstance(domain, Choice) else (domain.low, domain.high)


class _Rules:
    """What the settings of a configuration allow beside each other.

    A validation takes milliseconds, and a space has a thousand pairs of values: for parameters of the algorithm, whose
    values were checked one by one when the space was read, only the rules between them are applied.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.params = algorithm_params(config)
        self.tasks = tasks_of(config)

    def allow(self, settings: Mapping[str, Any]) -> bool:
        """Return whether the configuration is valid with these settings."""
        if not all(key.startswith(f"{ALGORITHM}.") for key in settings):
            return self._validates(settings)
        changes: dict[str, Any] = {}
        for key, value in settings.items():
            name, _, part = key.removeprefix(f"{ALGORITHM}.").partition(".")
            whole = changes.get(name, getattr(self.params, name))
            changes[name] = {**plain(as_schedule(whole)), part: value} if part else value
        params = dataclasses.replace(self.params, **changes)
        steps = self.config.total_timesteps
        if parameter_problems(params, num_envs=self.config.num_envs, total_timesteps=steps):
            return False
        return not (hasattr(params, "task_problems") and params.task_problems(self.tasks, self.config))

    def _validates(self, settings: Mapping[str, Any]) -> bool:
        values = config_to_dict(self.config)
        for key, value in settings.items():
            set_value(values, key, value)
        try:
            validate_config(values)
        except ConfigError:
            return False
        return True
