"""The values that a searched parameter can take: a range of numbers, or a list of choices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

from rl_training.errors import ConfigError
from rl_training.experiment.configuration.validation import check_plain, plain

Scale: TypeAlias = Literal["uniform", "log", "one_minus_log"]
Number: TypeAlias = int | float

# How a kind of range is written in a file: its scale, and whether it contains integers only.
RANGES: dict[str, tuple[Scale, bool]] = {
    "uniform": ("uniform", False),
    "log": ("log", False),
    "one_minus_log": ("one_minus_log", False),
    "int": ("uniform", True),
    "log_int": ("log", True),
}
CHOICE = "choice"


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included."""

    low: Number
    high: Number
    scale: Scale = "uniform"
    """How values are spread: evenly, evenly in log(value), or evenly in log(1 - value)."""
    integer: bool = False
    """Whether only integers belong to the range."""
    step: Number | None = None
    """Difference of neighbouring values, counted from `low`; None: every number, or integer, of the range."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise ConfigError(problem)
        kind: type[int] | type[float] = int if self.integer else float
        for name in ("low", "high", "step"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, kind(getattr(self, name)))

    @property
    def kind(self) -> str:
        """The word for it in a file."""
        return next(kind for kind, found in RANGES.items() if found == (self.scale, self.integer))

    @property
    def logarithmic(self) -> bool:
        """Whether the coordinate is searched on a logarithmic scale."""
        return self.scale != "uniform"

    @property
    def bounds(self) -> tuple[Number, Number]:
        """Ends of the coordinate to search in, which is the value, or 1 - value on the scale `one_minus_log`."""
        return (1 - self.high, 1 - self.low) if self.scale == "one_minus_log" else (self.low, self.high)

    def coordinate(self, value: Number) -> Number:
        """Return the coordinate of a value."""
        return 1 - value if self.scale == "one_minus_log" else value

    def value_at(self, coordinate: Number) -> Number:
        """Return the value of a coordinate, which rounding may have put slightly outside of the range."""
        value = min(max(self.coordinate(coordinate), self.low), self.high)
        return round(value) if self.integer else float(value)

    def contains(self, value: Any) -> bool:
        """Return whether the range contains `value`."""
        if not _is_number(value) or not self.low <= value <= self.high:
            return False
        if self.step is not None:
            return _is_whole((value - self.low) / self.step)
        return not self.integer or float(value).is_integer()

    @property
    def size(self) -> int | None:
        """Number of values of a range with steps, or of integers on the scale `uniform`; None for all others."""
        return None if self._grid_step is None else round((self.high - self.low) / self._grid_step) + 1

    @property
    def values(self) -> tuple[Number, ...]:
        """All values in order, if the range has a size."""
        assert self.size is not None
        assert self._grid_step is not None
        return tuple(self._multiple(number, self._grid_step) for number in range(self.size))

    def draw(self, random: Random) -> Number:
        """Return a random value, spread by the scale."""
        low, high = self.bounds
        if self.size is not None and self._grid_step is not None:
            return self._multiple(random.randrange(self.size), self._grid_step)
        margin = 0.5 if self.integer else 0.0  # so that the first and the last integer are as likely as others
        if self.logarithmic:
            return self.value_at(math.exp(random.uniform(math.log(low - margin), math.log(high + margin))))
        return self.value_at(random.uniform(low, high))

    def to_data(self) -> dict[str, Any]:
        """Return the range as it is written in a file."""
        return {self.kind: [self.low, self.high], **({} if self.step is None else {"step": self.step})}

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"

    @property
    def _grid_step(self) -> Number | None:
        return 1 if self.step is None and self.kind == "int" else self.step

    def _multiple(self, number: int, step: Number) -> Number:
        # 0.1 + 2 * 0.1 should be 0.3.
        return self.low + number * step if self.integer else float(f"{self.low + number * step:.12g}")

    def _problem(self) -> str | None:
        """Return why there is no such range, None if there is."""
        if (self.scale, self.integer) not in RANGES.values():
            return f"there is no scale {self.scale!r:.50}{' for integers' if self.integer else ''}"
        numbers = [number for number in (self.low, self.high, self.step) if number is not None]
        for number in numbers:
            if not _is_number(number) or not math.isfinite(number):
                return f"must be finite numbers, got {number!r:.200}"
            if self.integer and not float(number).is_integer():
                return f"must be integers, got {number!r}"
        ends = f"[{self.low}, {self.high}]"
        if self.low >= self.high:
            return f"{ends} is empty, because {self.low} is not below {self.high}; write the lower end first"
        if self.scale == "log" and self.low <= 0:
            return f"{ends} has no logarithm at {self.low}; begin above 0, or use uniform"
        if self.scale == "one_minus_log" and not 0 < self.low < self.high < 1:
            return f"{ends} must lie between 0 and 1, both excluded; for example [0.9, 0.999]"
        return None if self.step is None else self._step_problem(self.step)

    def _step_problem(self, step: Number) -> str | None:
        if self.scale != "uniform":
            return "a step goes with uniform and int only; leave it out, or list the values by choice"
        if step <= 0:
            return f"the step must be above 0, got {step}"
        if not _is_whole((self.high - self.low) / step):
            last = self._multiple(int((self.high - self.low) / step), step)
            return f"steps of {step} from {self.low} do not reach {self.high}; change the step, or end at {last:g}"
        return None


@dataclass(frozen=True)
class Choice:
    """A list of values, which are plain data: null, booleans, numbers, text, lists and mappings."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if isinstance(self.values, (str, Mapping)) or not hasattr(self.values, "__iter__"):
            raise ConfigError(f"must be a list of values, got {self.values!r:.200}")
        values = tuple(plain(value) for value in self.values)
        object.__setattr__(self, "values", values)
        if not values:
            raise ConfigError("is empty; list the values to choose from")
        problems = [problem.text for value in values for problem in check_plain(value, ())]
        problems += [
            f"{as_text(value)} is listed twice; remove one of them"
            for number, value in enumerate(values)
            if [same_value(value, earlier) for earlier in values[:number]].count(True) == 1
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as text, all different."""
        texts = tuple(map(as_text, self.values))
        return texts if len({*texts}) == len(texts) else tuple(map(json.dumps, self.values))

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    def index(self, value: Any) -> int | None:
        """Return the position of a value, None if it is not in the list."""
        return next((number for number, known in enumerate(self.values) if same_value(known, value)), None)

    def contains(self, value: Any) -> bool:
        """Return whether `value` is in the list."""
        return self.index(value) is not None

    def draw(self, random: Random) -> Any:
        """Return a random value of the list."""
        return plain(random.choice(self.values))

    def to_data(self) -> dict[str, Any]:
        """Return the choice as it is written in a file."""
        return {CHOICE: plain(self.values)}

    def __str__(self) -> str:
        return f"one of {', '.join(self.labels)}"


Domain: TypeAlias = Range | Choice


def same_value(one: Any, other: Any) -> bool:
    """Return whether two plain values are the same: 1 is 1.0, but `true` is not 1."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if _is_number(one) and _is_number(other):
        return bool(one == other)
    return type(one) is type(other) and bool(one == other)


def as_text(value: Any) -> str:
    """Return a plain value as it may be written in a file: text without quotes, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(plain(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(ratio: float) -> bool:
    return math.isclose(ratio, round(ratio), rel_tol=1e-9, abs_tol=1e-9)
