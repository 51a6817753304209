"""Studies whose journal is written directly: trials of any content, without runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna

from rl_training.experiment.tuning.journal import (
    ERROR,
    GENERATION,
    PARENT,
    RUNS_ATTRIBUTE,
    SETTINGS,
    open_journal,
)
from study_parts import make_study

_NOTES = {"settings": SETTINGS, "error": ERROR, "generation": GENERATION, "parent": PARENT, "runs": RUNS_ATTRIBUTE}


def noted_study(folder: Path, notes: Sequence[Mapping[str, Any]], **choices: Any) -> Path:
    """Return the directory of a study with these trials.

    A trial has a `value`, or a `state` such as FAIL, and notes: settings, error, generation, parent, or scores by seed.
    """
    directory = make_study(folder, **{"trials": max(1, len(notes)), **choices})
    journal = open_journal(directory)
    for of_trial in notes:
        trial = journal.ask()
        written = {"settings": {}, **of_trial}
        if "scores" in written:
            written["runs"] = {str(seed): _run(seed, score) for seed, score in written["scores"].items()}
        for name, key in _NOTES.items():
            if name in written:
                trial.set_user_attr(key, written[name])
        if "value" in of_trial:
            journal.tell(trial, of_trial["value"])
        elif "state" in of_trial:
            journal.tell(trial, state=optuna.trial.TrialState[of_trial["state"]])
    return directory


def _run(seed: int, score: float) -> dict[str, Any]:
    return {"seed": seed, "status": "completed", "metrics": {"eval_return_mean": score}, "duration_seconds": 2.0}
