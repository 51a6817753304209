"""A search space: parameters with their domains and conditions, and the configurations made of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.config import TrainConfig, config_to_dict, validate_config
from rl_training.experiment.configuration.validation import Problem, Source, plain, raise_problems
from rl_training.experiment.tuning.domains import Domain, as_text, same_value
from rl_training.experiment.tuning.searched_keys import current_value, set_value

LARGEST_GRID = 100_000


@dataclass(frozen=True)
class Parameter:
    """A key of the configuration that a search sets."""

    key: str
    """Dotted key, such as `algo_kwargs.learning_rate`."""
    domain: Domain
    """The values it can take."""
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Conditions: it is active only if each of these parameters is active and has one of the values."""

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Return whether all conditions hold, given the values of the active parameters before this one."""
        return all(
            key in values and any(same_value(values[key], wanted) for wanted in options)
            for key, options in self.when.items()
        )

    def to_data(self) -> dict[str, Any]:
        """Return domain and conditions as they are written in a file."""
        conditions = {key: plain(options) for key, options in self.when.items()}
        return {**self.domain.to_data(), **({"when": conditions} if conditions else {})}


@dataclass(frozen=True)
class SearchSpace:
    """The parameters of a search; every parameter comes after those that its conditions name."""

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        parameters, problems = in_order(self.parameters)
        raise_problems(problems)
        object.__setattr__(self, "parameters", parameters)

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys of all parameters."""
        return tuple(parameter.key for parameter in self.parameters)

    def active(self, values: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the parameters that are active, given values by key."""
        found: dict[str, Parameter] = {}
        for parameter in self.parameters:
            if parameter.is_active({key: values[key] for key in found if key in values}):
                found[parameter.key] = parameter
        return tuple(found.values())

    def contains(self, values: Mapping[str, Any]) -> bool:
        """Return whether `values` has a value of its domain for every active parameter, and nothing else."""
        active = self.active(values)
        return values.keys() == {parameter.key for parameter in active} and all(
            parameter.domain.contains(values[parameter.key]) for parameter in active
        )

    def values_of(self, config: TrainConfig) -> dict[str, Any]:
        """Return the configuration's own values of the active parameters, whether the space contains them or not."""
        values = {key: current_value(config, key) for key in self.keys}
        return {parameter.key: values[parameter.key] for parameter in self.active(values)}

    def overrides(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the active parameters by dotted key; values of inactive ones are left out.

        Null is a setting here, and a mapping replaces the configuration's; `apply` sets both.
        """
        problems = [
            Problem((key,), f"is no parameter of this space{did_you_mean(key, self.keys)}")
            for key in values
            if key not in self.keys
        ]
        settings = {}
        for parameter in self.active(values):
            key, domain = parameter.key, parameter.domain
            if key not in values:
                problems.append(Problem((key,), f"has no value; it is {domain}"))
            elif not domain.contains(values[key]):
                problems.append(Problem((key,), f"{as_text(values[key]):.200} is not in the space; it is {domain}"))
            else:
                settings[key] = plain(values[key])
        raise_problems(problems)
        return settings

    def apply(self, config: TrainConfig, values: Mapping[str, Any], *, source: Source | None = None) -> TrainConfig:
        """Return the configuration with the settings that `values` stand for, validated.

        `source` maps a key path to where it was set, for error messages.
        """
        settings = config_to_dict(config)
        for key, value in self.overrides(values).items():
            set_value(settings, key, value)
        return validate_config(settings, source=source)

    def draw(self, random: Random) -> dict[str, Any]:
        """Return random values of the active parameters."""
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.is_active(values):
                values[parameter.key] = parameter.domain.draw(random)
        return values

    def grid(self) -> list[dict[str, Any]]:
        """Return all combinations of values, the last parameter changing fastest."""
        problems = [
            Problem((parameter.key,), "has no finite number of values for a grid; list them by choice, or give a step")
            for parameter in self.parameters
            if parameter.domain.size is None
        ]
        raise_problems(problems)
        found = []
        for values in self._combinations({}, 0):
            found.append(values)
            if len(found) > LARGEST_GRID:
                raise ConfigError(f"a grid of this space has more than {LARGEST_GRID:,} points; list fewer values")
        return found

    def to_data(self) -> dict[str, Any]:
        """Return the space as it is written in a file, with dotted keys; `space_files.space_from_data` reads it."""
        return {parameter.key: parameter.to_data() for parameter in self.parameters}

    def _combinations(self, values: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
        if number == len(self.parameters):
            yield dict(values)
            return
        parameter = self.parameters[number]
        if not parameter.is_active(values):
            yield from self._combinations(values, number + 1)
            return
        assert parameter.domain.size is not None
        if parameter.domain.size > LARGEST_GRID:
            raise ConfigError(f"{parameter.key}: has {parameter.domain.size:,} values, too many for a grid; list fewer")
        for value in parameter.domain.values:
            yield from self._combinations({**values, parameter.key: plain(value)}, number + 1)


def in_order(
    parameters: Iterable[Parameter], called: Callable[[str], str] = str
) -> tuple[tuple[Parameter, ...], list[Problem]]:
    """Return the parameters with conditions after what they depend on, and the problems of conditions and keys.

    `called` maps a key to its name in messages.
    """
    parameters = tuple(parameters)
    by_key = {parameter.key: parameter for parameter in parameters}
    problems = _key_problems([parameter.key for parameter in parameters], called)
    for parameter in parameters:
        problems += _condition_problems(parameter, by_key, called)
    ordered: dict[str, Parameter] = {}
    waiting = list(parameters)
    while waiting:
        ready = next((entry for entry in waiting if not _missing(entry, ordered, by_key)), None)
        if ready is None:
            problems.append(_circle(waiting[0], ordered, by_key, called))
            break
        ordered[ready.key] = ready
        waiting = [entry for entry in waiting if entry is not ready]
    return tuple(ordered.values()), problems


def _key_problems(keys: Sequence[str], called: Callable[[str], str]) -> list[Problem]:
    problems = []
    for number, key in enumerate(keys):
        if key in keys[:number]:
            problems.append(Problem((called(key),), f"`{key}` is in the space already; remove one of them"))
        outer = next((other for other in keys if key.startswith(f"{other}.")), None)
        if outer is not None:
            text = f"`{called(outer)}` is searched as a whole, too; remove one of them"
            problems.append(Problem((called(key),), text))
    return problems


def _condition_problems(
    parameter: Parameter, by_key: Mapping[str, Parameter], called: Callable[[str], str]
) -> list[Problem]:
    problems = []
    for key, options in parameter.when.items():
        path = (called(parameter.key), "when")
        if key not in by_key:
            hint = did_you_mean(called(key), map(called, by_key)) or "; add it, or leave the condition out"
            problems.append(Problem(path, f"`{called(key)}` is no parameter of this space{hint}"))
            continue
        domain = by_key[key].domain
        problems += [
            Problem(path, f"`{called(key)}` is never {as_text(option):.200} in this space; it is {domain}")
            for option in options
            if not domain.contains(option)
        ]
        if not options:
            problems.append(Problem(path, f"lists no value of `{called(key)}`; name at least one"))
    return problems


def _missing(parameter: Parameter, ordered: Mapping[str, Parameter], known: Mapping[str, Parameter]) -> list[str]:
    """Return the parameters that a condition names and that are not in order yet."""
    return [key for key in parameter.when if key in known and key not in ordered]


def _circle(
    start: Parameter, ordered: Mapping[str, Parameter], by_key: Mapping[str, Parameter], called: Callable[[str], str]
) -> Problem:
    chain = [start.key]
    while chain[-1] not in chain[:-1]:
        chain.append(_missing(by_key[chain[-1]], ordered, by_key)[0])
    names = [called(key) for key in chain[chain.index(chain[-1]) :]]
    return Problem((names[0], "when"), f"the conditions {' -> '.join(names)} form a circle; remove one of them")
