"""The order of a study's trials, and how their settings are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.storage.printing import printable
from rl_training.experiment.tuning.domains import as_text
from rl_training.experiment.tuning.journal import Trial


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return the completed trials from the highest objective down, of equal ones the first before the others.

    Of a population only the latest generation counts: earlier ones have trained for less.
    """
    completed = [trial for trial in trials if trial.value is not None]
    latest = max((trial.generation or 0 for trial in completed), default=0)
    completed = [trial for trial in completed if (trial.generation or 0) == latest]
    return sorted(completed, key=lambda trial: (-(trial.value or 0.0), trial.number))


def settings_text(settings: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """Return on one line what settings change of a configuration, without the blocks that they are in."""
    changed = {key: value for key, value in settings.items() if _current(start, key) != value}
    return ", ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in changed.items()) or "the start"


def _current(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(as_text(value))
