"""Shortens the warm-up of a short trial of a long configuration, unless the user chose it.

`--total-timesteps 2000` with a preset that collects 100,000 steps before learning would learn nothing. A warm-up that
takes half of the horizon or more is scaled down like the horizon.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_training.experiment.configuration.validation import check_value
from rl_training.experiment.registry import find_algorithm

WARM_UP = "learning_starts"


class ScaledWarmUp(NamedTuple):
    """A warm-up in proportion to the horizon, and the message about it."""

    steps: int
    sentence: str


def scaled_warm_up(values: Mapping[str, Any], *, chosen: bool, horizon: Any, origin: str) -> ScaledWarmUp | None:
    """Return the scaled warm-up for an unvalidated configuration, None if it stays as it is.

    `chosen` says whether the user set it; `horizon` is the number of steps that `origin`, a preset or the algorithm's
    defaults, is made for. Invalid values are left to validation.
    """
    algo, total, settings = values.get("algo"), values.get("total_timesteps"), values.get("algo_kwargs") or {}
    spec = None if chosen else find_algorithm(algo)
    if spec is None or not isinstance(settings, Mapping):
        return None
    defaults = {field.name: field.default for field in dataclasses.fields(spec.load_params())}
    steps = _count(settings.get(WARM_UP, defaults.get(WARM_UP)))
    total, horizon = _count(total), _count(horizon)
    if total >= horizon or 2 * steps < total or not steps:
        return None
    scaled = steps * total // horizon
    return ScaledWarmUp(
        scaled,
        f"algo_kwargs.{WARM_UP}: {scaled} instead of the {steps} of {origin}, in proportion to {total} of {horizon} "
        f"steps; choose another by --set algo_kwargs.{WARM_UP}=",
    )


def _count(number: Any) -> int:
    """Return a number of steps as validation will read it, 0 if it is invalid."""
    checked, problems = check_value(int, number, ())
    return 0 if problems else int(checked)
