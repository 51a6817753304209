"""Which of a study's trials is the best, and how trials are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.storage.printing import printable
from rl_training.experiment.tuning.domains import as_text
from rl_training.experiment.tuning.journal import Trial


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """Return the completed trial with the highest objective, of equal ones the first; None if there is none.

    Of a population only the latest generation counts: earlier ones have trained for less.
    """
    completed = [trial for trial in trials if trial.value is not None]
    latest = max((trial.generation or 0 for trial in completed), default=0)
    completed = [trial for trial in completed if (trial.generation or 0) == latest]
    return max(completed, key=lambda trial: (trial.value, -trial.number), default=None)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings on one line, without the blocks that they are in."""
    if not settings:
        return "the start"
    return ", ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in settings.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(as_text(value))
