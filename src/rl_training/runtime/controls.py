"""Scheduled scalars: the value of a control at a step, as a pure function of the configuration.

A control has a fixed value `<key>`, a schedule `<key>_schedule` and a warm-up over `<key>_warmup_steps`.
Callers pass the resolved value on; the configuration never changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.schedules import (
    DEFAULT_EXPONENTIAL_RATIO,
    DEFAULT_FACTOR,
    DEFAULT_MILESTONES,
    SCHEDULE_KINDS,
    Schedule,
    as_schedule,
)

WHOLE_CONTROLS = ("num_simulations",)


def schedule_value(
    schedule: str | Mapping[str, Any] | Schedule | None, *, step: float, horizon: float, value: float
) -> float:
    """Return the value at `step` of a run of `horizon` environment steps, given the schedule and the fixed `value`."""
    if schedule is None:
        return float(value)
    record = as_schedule(schedule)
    start = float(value) if record.start is None else float(record.start)
    step = max(float(step), 0.0)
    if record.type == "constant":
        return start
    if record.type == "step":
        return _stepped(record, start=start, step=step, horizon=horizon)
    if record.type == "piecewise":
        return _interpolated(record, step=step, horizon=horizon)
    if record.type in ("linear", "cosine", "exponential"):
        return _faded(record, start=start, step=step, horizon=horizon)
    raise ConfigError(
        f"unknown schedule type `{record.type}`{did_you_mean(str(record.type), SCHEDULE_KINDS)}"
        f" Types: {', '.join(SCHEDULE_KINDS)}"
    )


def resolve_control(config: TrainConfig, key: str, *, step: float, default: float) -> float:
    """Return control `key` at `step`: its value or `default`, scheduled, then warmed up from 0."""
    return Control.of(config, key, default=default).at(step)


@dataclass(frozen=True)
class Control:
    """One scheduled scalar, read from the configuration once and resolved at every step."""

    value: float
    schedule: Schedule | None
    warmup_steps: int
    horizon: int
    whole: bool = False
    """Whether it is an integer of at least 1, with halves rounded up."""

    @classmethod
    def of(cls, config: TrainConfig, key: str, *, default: float) -> Control:
        """Return control `key` of a configuration; `default` replaces a missing value."""
        settings = config.algo_kwargs
        value, schedule = settings.get(key), settings.get(f"{key}_schedule")
        return cls(
            value=float(default if value is None else value),
            schedule=None if schedule is None else as_schedule(schedule),
            warmup_steps=settings.get(f"{key}_warmup_steps") or 0,
            horizon=config.total_timesteps,
            whole=key in WHOLE_CONTROLS,
        )

    def at(self, step: float) -> float:
        """Return the value at a step."""
        if self.schedule is None and step >= self.warmup_steps:
            value = self.value
        else:
            value = schedule_value(self.schedule, step=step, horizon=self.horizon, value=self.value)
            if step < self.warmup_steps:
                value *= max(step, 0) / self.warmup_steps
        return max(1, math.floor(value + 0.5)) if self.whole else value


def resolve_learning_rate(config: TrainConfig, *, step: float, default: float) -> float:
    """Return the optimizer's step size at `step`."""
    return resolve_control(config, "learning_rate", step=step, default=default)


def resolve_clip_coef(config: TrainConfig, *, step: float, default: float) -> float:
    """Return the policy-ratio clipping range at `step`."""
    return resolve_control(config, "clip_coef", step=step, default=default)


def resolve_ent_coef(config: TrainConfig, *, step: float, default: float) -> float:
    """Return the entropy bonus's weight at `step`."""
    return resolve_control(config, "ent_coef", step=step, default=default)


def resolve_epsilon(config: TrainConfig, *, step: float, default: float) -> float:
    """Return the probability of a random action at `step`."""
    return resolve_control(config, "epsilon", step=step, default=default)


def resolve_temperature(config: TrainConfig, *, step: float, default: float) -> float:
    """Return the temperature of visit-count sampling at `step`."""
    return resolve_control(config, "temperature", step=step, default=default)


def resolve_root_exploration_fraction(config: TrainConfig, *, step: float, default: float) -> float:
    """Return the fraction of noise in the root's prior at `step`."""
    return resolve_control(config, "root_exploration_fraction", step=step, default=default)


def resolve_gumbel_scale(config: TrainConfig, *, step: float, default: float) -> float:
    """Return the factor of the Gumbel noise at the root at `step`."""
    return resolve_control(config, "gumbel_scale", step=step, default=default)


def resolve_per_beta(config: TrainConfig, *, step: float, default: float) -> float:
    """Return prioritised replay's importance-sampling exponent at `step`."""
    return resolve_control(config, "per_beta", step=step, default=default)


def resolve_num_simulations(config: TrainConfig, *, step: float, default: float) -> int:
    """Return the number of search simulations per move at `step`, at least 1; halves round up."""
    return int(resolve_control(config, "num_simulations", step=step, default=default))


def _faded(schedule: Schedule, *, start: float, step: float, horizon: float) -> float:
    end = schedule.end
    if end is None:
        end = start * DEFAULT_EXPONENTIAL_RATIO if schedule.type == "exponential" else 0.0
    duration = _in_steps((schedule.duration,), horizon)[0] if schedule.duration is not None else horizon
    progress = min(step / duration, 1.0) if duration > 0 else 1.0
    if progress >= 1.0:
        return float(end)
    if schedule.type == "linear":
        faded = start + (end - start) * progress
    elif schedule.type == "cosine":
        faded = end + (start - end) * (1.0 + math.cos(math.pi * progress)) / 2.0
    elif start <= 0 or end <= 0:
        raise ConfigError(f"an exponential schedule needs a start and an end above 0, got {start} and {end}")
    else:
        faded = start * (end / start) ** progress
    # Rounding must not move a value past its ends: a clipping range of -1e-18 would be invalid.
    return min(max(faded, min(start, end)), max(start, end))


def _stepped(schedule: Schedule, *, start: float, step: float, horizon: float) -> float:
    milestones = _in_steps(schedule.milestones or DEFAULT_MILESTONES, horizon)
    passed = sum(step >= milestone for milestone in milestones)
    if schedule.values is not None:
        return float(schedule.values[passed - 1]) if passed else start
    factor = DEFAULT_FACTOR if schedule.factor is None else schedule.factor
    return float(start * factor**passed)


def _interpolated(schedule: Schedule, *, step: float, horizon: float) -> float:
    if not schedule.points:
        raise ConfigError("a piecewise schedule needs points, for example [[0, 1.0], [0.5, 0.1]]")
    positions = _in_steps([position for position, _ in schedule.points], horizon)
    values = [float(value) for _, value in schedule.points]
    if step <= positions[0]:
        return values[0]
    for index in range(1, len(positions)):
        if step < positions[index]:
            share = (step - positions[index - 1]) / (positions[index] - positions[index - 1])
            return values[index - 1] + (values[index] - values[index - 1]) * share
    return values[-1]


def _in_steps(positions: tuple[float, ...] | list[float], horizon: float) -> list[float]:
    """Return positions in environment steps; if all of them are <= 1 they are fractions of the horizon."""
    if all(position <= 1 for position in positions):
        return [position * horizon for position in positions]
    return [float(position) for position in positions]
