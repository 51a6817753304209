"""The journal of a study: what its trials were given and how they ended, in one file that several processes append to.

It is Optuna's journal, one JSON object per line, so that Optuna's tools open it. Nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rl_training.errors import AxiomError, ConfigError, MissingExtraError
from rl_training.experiment.storage.untrusted import UntrustedFileError, check_bounds
from rl_training.experiment.sweeps import COMPLETED, FAILED, RUNNING, BenchmarkRunRecord
from rl_training.experiment.tuning.study import JOURNAL

if TYPE_CHECKING:
    import optuna

NAME = "axiomrl"
PRUNED = "pruned"
SETTINGS, RUNS_ATTRIBUTE, ERROR, OWNER = "settings", "runs", "error", "owner"
"""What is noted about a trial: its settings by dotted key, the records of its runs, why it failed, who trains it."""
GENERATION, PARENT = "generation", "parent"
"""In a population also its generation, and the trial that it goes on from."""
_OF_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, AssertionError, OverflowError, RecursionError)
_STATES = {"COMPLETE": COMPLETED, "PRUNED": PRUNED, "FAIL": FAILED, "RUNNING": RUNNING, "WAITING": "waiting"}


def require_optuna() -> None:
    """Raise an error if the packages for tuning are missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import optuna
    except ImportError as error:
        raise MissingExtraError("tuning", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class Trial:
    """One trial of a study."""

    number: int
    status: str
    """`running`, `completed`, `pruned`, `failed`, or `waiting` for its first seed."""
    settings: Mapping[str, Any]
    """What it changes of the starting configuration, by dotted key; the first trial changes nothing."""
    value: float | None
    """Its objective, if it is completed."""
    runs: Mapping[int, BenchmarkRunRecord] = field(default_factory=dict)
    """Its runs by seed."""
    error: str | None = None
    duration_seconds: float | None = None
    """Sum of its runs' durations, as far as they have ended."""
    generation: int | None = None
    """In a population: its generation."""
    parent: int | None = None
    """In a population: the trial of the generation before that it goes on from."""


def as_trial(frozen: optuna.trial.FrozenTrial) -> Trial:
    """Return a trial of the journal as a plain record."""
    attributes = _checked_notes(frozen)
    runs = {int(seed): BenchmarkRunRecord.from_json(run) for seed, run in attributes.get(RUNS_ATTRIBUTE, {}).items()}
    durations = [run.duration_seconds for run in runs.values() if run.duration_seconds is not None]
    return Trial(
        number=frozen.number,
        status=_STATES[frozen.state.name],
        settings=attributes.get(SETTINGS, {}),
        value=attributes["value"],
        runs=runs,
        error=attributes.get(ERROR),
        duration_seconds=sum(durations) if durations else None,
        generation=attributes.get(GENERATION),
        parent=attributes.get(PARENT),
    )


def _checked_notes(frozen: optuna.trial.FrozenTrial) -> dict[str, Any]:
    """Return what is noted about a trial, with its value; raise an error for what a study cannot have written."""
    from rl_training.experiment.storage.schemas import TrialNotes, mismatch

    notes = {**frozen.user_attrs, "value": frozen.value if frozen.state.name == "COMPLETE" else None}
    try:
        check_bounds(notes, f"trial {frozen.number}")
    except UntrustedFileError as error:
        raise ValueError(str(error)) from error
    problem = mismatch(TrialNotes, notes)
    if problem is not None:
        raise ValueError(f"trial {frozen.number}: {problem}")
    return notes


def read_trials(directory: Path) -> list[Trial]:
    """Return the trials of a study in the order of their numbers; nothing is written."""
    with journal_errors(directory):
        return [as_trial(frozen) for frozen in open_journal(directory).get_trials(deepcopy=False)]


def open_journal(directory: Path, *, create: bool = False) -> optuna.Study:
    """Return Optuna's view of the journal in a study's directory."""
    require_optuna()
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    path = directory / JOURNAL
    if not create and not path.is_file():
        raise ConfigError(f"{path} is missing: the study has no trials; start it anew with `axiomrl tune`")
    with journal_errors(directory):
        lock: Any = _JournalLock(path)
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        if create:
            return optuna.create_study(storage=storage, study_name=NAME, direction="maximize")
        return optuna.load_study(storage=storage, study_name=NAME)


@contextlib.contextmanager
def journal_errors(directory: Path) -> Iterator[None]:
    """Turn whatever a damaged journal raises into one sentence."""
    try:
        yield
    except AxiomError:
        raise
    except _OF_DAMAGE as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"{directory / JOURNAL} is damaged ({cause}); restore it from a copy, or start a new study"
        ) from error


class _JournalLock:
    """A lock for writing to a journal that the system releases if its holder is killed.

    Whoever gets it removes what a killed writer left of a line, which the next line would otherwise join.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        import fcntl

        self._file = (self._journal.parent / f".{self._journal.name}.lock").open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        _remove_cut_off_line(self._journal)
        return True

    def release(self) -> None:
        """Let the next one write."""
        assert self._file is not None
        self._file.close()


def _remove_cut_off_line(journal: Path) -> None:
    with contextlib.suppress(FileNotFoundError), journal.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        logging.getLogger("rl_training").warning("%s: the last line is cut off and is removed", journal)
        file.truncate(whole)
