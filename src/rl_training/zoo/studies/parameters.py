"""The parameters that a study searches: their values in each trial, and their places on the axes of charts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rl_training.experiment.tuning.domains import Choice, Range, as_text
from rl_training.experiment.tuning.space import Parameter, SearchSpace
from rl_training.zoo.page.svg_parts import tick_values
from rl_training.zoo.quantities import tick_text

_STEPS = (1, 2, 5)
_MOST_TICKS = 6
_DIGITS = 4  # of a number that a search drew


@dataclass(frozen=True)
class SearchedParameter:
    """A parameter, and its axis from 0 to 1 that contains the domain and the start's own value."""

    parameter: Parameter
    name: str
    """Its key, without the block if no other parameter has the same name there."""
    start: Any
    """The value of the starting configuration; MISSING if it has none, or if the parameter is not active there."""

    @property
    def key(self) -> str:
        """Dotted key of the configuration."""
        return self.parameter.key

    @property
    def scale(self) -> str:
        """How the axis is divided: `choice`, `uniform`, `log` or `one_minus_log`."""
        domain = self.parameter.domain
        return domain.scale if isinstance(domain, Range) else "choice"

    def place(self, value: Any) -> float | None:
        """Return where a value lies on the axis; None if it does not."""
        if self._options is not None:
            number = self._options.index(value)
            return None if number is None else (number + 0.5) / self._options.size
        low, high = self._ends
        coordinate = self._coordinate(value)
        if coordinate is None or not low <= coordinate <= high:
            return None
        return (coordinate - low) / (high - low)

    @cached_property
    def ticks(self) -> list[tuple[float, str]]:
        """Places with their values as text."""
        if self._options is not None:
            return [((number + 0.5) / self._options.size, text) for number, text in enumerate(self._options.labels)]
        found = [(self.place(value), tick_text(value)) for value in self._round_values()]
        return [(place, text) for place, text in found if place is not None]

    @cached_property
    def _options(self) -> Choice | None:
        """The values of a choice, and the start's if it is another."""
        domain = self.parameter.domain
        if not isinstance(domain, Choice):
            return None
        other = self.start is not dataclasses.MISSING and not domain.contains(self.start)
        return Choice((*domain.values, self.start)) if other else domain

    @cached_property
    def _ends(self) -> tuple[float, float]:
        domain = self.parameter.domain
        assert isinstance(domain, Range)
        found = [self._coordinate(value) for value in (domain.low, domain.high, self.start)]
        coordinates = [coordinate for coordinate in found if coordinate is not None]
        return (min(coordinates), max(coordinates)) if len(coordinates) > 1 else (0.0, 1.0)

    def _coordinate(self, value: Any) -> float | None:
        """Return a number on the scale of the axis; None for anything that has no place on it."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
            return None
        if self.scale == "uniform":
            return float(value)
        if self.scale == "log":
            return math.log10(value) if value > 0 else None
        return -math.log10(1 - value) if value < 1 else None

    def _round_values(self) -> Sequence[float]:
        """Return some round values between the ends, few enough to be read."""
        low, high = self._ends
        if self.scale == "uniform":
            return tick_values(low, high, _MOST_TICKS)
        ends = (low, high) if self.scale == "log" else (-high, -low)
        powers = range(math.floor(ends[0]), math.ceil(ends[1]) + 1)
        steps = _STEPS if len(powers) <= 3 else (1,)
        every = max(1, len(powers) // _MOST_TICKS)
        values = [step * 10.0**power for power in powers[::every] for step in steps]
        # 1 - 0.1 should be 0.9.
        return values if self.scale == "log" else [float(f"{1 - value:.12g}") for value in values]


_LARGEST = 1e100  # differences of smaller numbers are finite


def searched_parameters(space: SearchSpace, start: Mapping[str, Any]) -> tuple[SearchedParameter, ...]:
    """Return the parameters of a space, given the start's values by key."""
    names = [key.rpartition(".")[2] for key in space.keys]
    return tuple(
        SearchedParameter(
            parameter,
            name if names.count(name) == 1 else parameter.key,
            start.get(parameter.key, dataclasses.MISSING),
        )
        for parameter, name in zip(space.parameters, names, strict=True)
    )


def start_values(space: SearchSpace, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the active parameters in a configuration, given as plain data that nothing has checked."""
    found = {key: _value_at(config, key) for key in space.keys}
    values = {key: value for key, value in found.items() if value is not dataclasses.MISSING}
    return {parameter.key: values[parameter.key] for parameter in space.active(values) if parameter.key in values}


def value_text(value: Any) -> str:
    """Return a setting in few characters."""
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else as_text(value)


def _value_at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        if isinstance(value, str):  # a schedule that is given by its kind
            value = {"type": value}
        if not isinstance(value, Mapping) or part not in value:
            return dataclasses.MISSING
        value = value[part]
    return value
