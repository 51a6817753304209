"""Schedules: how a training scalar changes over a run (`runtime.controls` computes the values)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from annotated_types import Ge, Gt, MinLen

from rl_training.errors import ConfigError, did_you_mean

ScheduleKind: TypeAlias = Literal["constant", "linear", "cosine", "exponential", "step", "piecewise"]
SCHEDULE_KINDS: tuple[str, ...] = get_args(ScheduleKind)

# Defaults of the schedule kinds.
DEFAULT_MILESTONES = (0.5, 0.75)
DEFAULT_FACTOR = 0.1
DEFAULT_EXPONENTIAL_RATIO = 0.01

Scalar: TypeAlias = Annotated[float, Ge(0)]
Position: TypeAlias = Annotated[float, Ge(0)]

_FIELDS_OF_KIND: dict[str, tuple[str, ...]] = {
    "constant": ("start",),
    "linear": ("start", "end", "duration"),
    "cosine": ("start", "end", "duration"),
    "exponential": ("start", "end", "duration"),
    "step": ("start", "milestones", "values", "factor"),
    "piecewise": ("points",),
}


@dataclass(frozen=True)
class Schedule:
    """A scalar as a function of environment steps.

    Positions (`duration`, `milestones`, the first number of each point) count environment steps, or are fractions of
    the run's `total_timesteps` if all of them are <= 1.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    type: ScheduleKind
    """`constant` stays at start; `linear`, `cosine` and `exponential` go from start to end; `step` jumps at
    milestones; `piecewise` interpolates between points."""

    start: Scalar | None = None
    """Value at step 0; null: the fixed value of the scheduled key."""

    end: Scalar | None = None
    """Value at the end, kept afterwards; null: 0 (`exponential`: 1% of the start)."""

    duration: Annotated[float, Gt(0)] | None = None
    """Length of the change; null: the whole run."""

    milestones: Annotated[tuple[Position, ...], MinLen(1)] | None = None
    """`step`: where the value changes; null: [0.5, 0.75]."""

    values: Annotated[tuple[Scalar, ...], MinLen(1)] | None = None
    """`step`: the value from each milestone on, one per milestone, instead of `factor`."""

    factor: Annotated[float, Gt(0)] | None = None
    """`step`: factor applied at every milestone; null: 0.1."""

    points: Annotated[tuple[tuple[Position, Scalar], ...], MinLen(1)] | None = None
    """`piecewise`: pairs [position, value] in order; constant before the first and after the last."""

    def __post_init__(self) -> None:
        # Mappings from YAML contain lists; tuples keep the record hashable.
        for name in ("milestones", "values"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given))
        if self.points is not None:
            object.__setattr__(self, "points", tuple(tuple(point) for point in self.points))

    def problems(self) -> list[str]:
        """Return a message for each inconsistency."""
        allowed = _FIELDS_OF_KIND.get(self.type, ())
        unused = [
            name for name in SCHEDULE_KEYS if name != "type" and name not in allowed and getattr(self, name) is not None
        ]
        found = [f"{name}: has no meaning for type {self.type}, which takes {', '.join(allowed)}" for name in unused]
        if self.type == "exponential" and (self.start == 0 or self.end == 0):
            found.append("an exponential schedule never reaches 0; set start and end above 0 or use linear")
        if self.type == "piecewise" and self.points is None:
            found.append("points: is required for type piecewise, for example [[0, 1.0], [0.5, 0.1]]")
        if self.type == "step" and self.values is not None:
            found += self._problems_of_step_values(self.values)
        positions = self.milestones or tuple(position for position, _ in self.points or ())
        if any(later <= earlier for earlier, later in pairwise(positions)):
            name = "milestones" if self.milestones else "points"
            found.append(f"{name}: positions must increase, got {list(positions)}")
        return found

    def _problems_of_step_values(self, values: tuple[float, ...]) -> list[str]:
        if self.factor is not None:
            return ["values: exclude factor; remove one of the two"]
        if self.milestones is None:
            return ["milestones: is required with values, one for each value"]
        if len(values) != len(self.milestones):
            return [f"values: must be one per milestone, got {len(values)} for {len(self.milestones)}"]
        return []


SCHEDULE_KEYS: tuple[str, ...] = tuple(entry.name for entry in fields(Schedule))
ScheduleSpec: TypeAlias = ScheduleKind | Schedule


def as_schedule(spec: str | Mapping[str, Any] | Schedule) -> Schedule:
    """Return the schedule given by a kind, a mapping or a record."""
    if isinstance(spec, Schedule):
        return spec
    if isinstance(spec, Mapping):
        unknown = [key for key in spec if key not in SCHEDULE_KEYS]
        if unknown:
            suggestion = did_you_mean(str(unknown[0]), SCHEDULE_KEYS)
            raise ConfigError(f"unknown schedule key `{unknown[0]}`{suggestion}")
        if "type" not in spec:
            raise ConfigError(f"a schedule needs a type: one of {', '.join(SCHEDULE_KINDS)}")
        return Schedule(**spec)
    return Schedule(type=spec)  # type: ignore[arg-type]
