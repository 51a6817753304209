"""The search: asks for trials, has their seeds trained, and tells the results.

Several processes may search for one study at the same time. Each trial has an owner, a process that holds a lock file;
when it is gone, however it went, the trial is taken over with its runs, which resume exactly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rl_training.errors import AxiomError, CheckpointError, ConfigError, RunFailure
from rl_training.experiment.benchmarking import run_place
from rl_training.experiment.checkpoints import newest_sound_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manager import ExperimentManager, Runner
from rl_training.experiment.own_code.user_code import CodeUse
from rl_training.experiment.runs import LOCK, give_up_run
from rl_training.experiment.storage.files import hold_lock
from rl_training.experiment.sweeps import COMPLETED, FAILED, INTERRUPTED, BenchmarkRunRecord
from rl_training.experiment.tuning.journal import (
    ERROR,
    OWNER,
    RUNS_ATTRIBUTE,
    SETTINGS,
    Trial,
    as_trial,
    journal_errors,
    open_journal,
)
from rl_training.experiment.tuning.study import RUNS, Study, with_settings
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.sweep.sweep_setup import SeedRunner
from rl_training.runtime.tuning.pruning import (
    PRUNED_REASON,
    WHILE_TRAINING,
    StopWhenBehind,
    evaluations_per_seed,
    make_pruner,
)
from rl_training.runtime.tuning.suggestions import Suggestions
from rl_training.zoo.studies.objective import seed_score, trial_value

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger("rl_training")

_SECONDS_TO_END = 10.0

Watcher = Callable[[Trial], None]
"""Called with a trial whenever something about it changes."""


@dataclass
class Active:
    """A trial that this process trains."""

    trial: optuna.Trial
    config: TrainConfig
    waiting: list[int]
    """Its seeds that have yet to begin."""
    runs: dict[int, BenchmarkRunRecord]
    training: set[int] = field(default_factory=set)
    failure: str | None = None
    pruned: bool = False
    interrupted: bool = False


class Search:
    """The trials of a study, as far as this process trains them."""

    def __init__(
        self,
        directory: Path,
        study: Study,
        start: TrainConfig,
        suggestions: Suggestions,
        *,
        manager: ExperimentManager,
        jobs: int,
        code: tuple[CodeUse, ...] = (),
        deadline: float | None = None,
        watch: Watcher = lambda trial: None,
    ) -> None:
        """`start` is the configuration of the first trial; no trial begins after `deadline` (`time.monotonic`)."""
        self._directory, self._study, self._start, self._suggestions = directory, study, start, suggestions
        self._manager, self._code, self._jobs = manager, code, jobs
        self._deadline, self._watch = deadline, watch
        self._journal = open_journal(directory)
        self._journal.pruner = make_pruner(study.pruner, evaluations_per_seed(start))
        self._owner = secrets.token_hex(8)
        self._active: dict[int, Active] = {}
        self._begun: list[tuple[int, int]] = []  # trial and seed by the number that executors know them by

    @contextlib.contextmanager
    def owning(self) -> Iterator[None]:
        """Hold the lock that tells other processes that this one is alive."""
        lock = hold_lock(self._lock_of(self._owner), taken="the lock of this process is taken")
        try:
            yield
        finally:
            self._lock_of(self._owner).unlink(missing_ok=True)
            if lock is not None:
                lock.close()

    def seeds(self) -> Iterator[int | None]:
        """Return what to train next, whenever it is asked for; None while there is nothing."""
        while True:
            with journal_errors(self._directory):
                trial = self._next_trial()
            if trial is not None:
                seed = trial.waiting.pop(0)
                trial.training.add(seed)
                self._begun.append((trial.trial.number, seed))
                yield len(self._begun) - 1
            elif any(trial.training for trial in self._active.values()):
                yield None
            else:
                return

    def begin(self, number: int) -> Runner:
        """Return the runner of a seed of a trial."""
        trial_number, seed = self._begun[number]
        active = self._active[trial_number]
        logger.info("trial %d, seed %d", trial_number, seed)
        return self._runner(active, seed, f"trial {trial_number}, seed {seed}")

    def report(self, record: BenchmarkRunRecord) -> None:
        """Note the latest record of a seed; end its trial when nothing of it is left to train."""
        trial_number, seed = self._begun[record.seed]
        active = self._active[trial_number]
        earlier = active.runs.get(seed)
        if earlier is not None and earlier.run_dir == record.run_dir and record.duration_seconds is not None:
            seconds = record.duration_seconds + (earlier.duration_seconds or 0.0)
            record = dataclasses.replace(record, duration_seconds=seconds)
        active.runs[seed] = dataclasses.replace(record, seed=seed)
        with journal_errors(self._directory):
            if record.status in (COMPLETED, FAILED, INTERRUPTED):
                active.training.discard(seed)
                self._judge(active, active.runs[seed])
            runs = {str(one): run.to_json() for one, run in active.runs.items()}
            active.trial.set_user_attr(RUNS_ATTRIBUTE, runs)
            if not active.training and (active.failure or active.pruned or not active.waiting):
                self._end(active)
            self._tell_watcher(trial_number)

    def left(self) -> list[Trial]:
        """Return the trials that are not finished: those of other processes, and interrupted ones."""
        with journal_errors(self._directory):
            trials = [as_trial(frozen) for frozen in self._journal.get_trials(deepcopy=False)]
        return [trial for trial in trials if trial.status == "running"]

    def _runner(self, active: Active, seed: int, label: str) -> SeedRunner:
        """Return what trains a seed of a trial."""
        callbacks: tuple[Callback, ...] = ()
        if self._study.pruner in WHILE_TRAINING:
            done = [one for one in self._study.seeds if one != seed and one in active.runs]
            scores = [self._score(active.runs[one]) for one in done]
            number = active.trial.number
            callbacks = (StopWhenBehind(self._directory, number, self._study.pruner, scores, active.config),)
        config = dataclasses.replace(active.config, seed=seed)
        return SeedRunner(self._manager, config, self._resume_point(active, seed), callbacks, self._code, label)

    def _seeds_of(self, number: int) -> Sequence[int]:
        """Return the seeds of a trial."""
        return self._study.seeds

    def _next_trial(self) -> Active | None:
        """Return a trial with a seed that can begin."""
        if sum(len(trial.training) for trial in self._active.values()) >= self._jobs:
            return None
        one_by_one = self._study.pruner != "none"
        for active in self._active.values():
            stopped = active.failure or active.pruned or active.interrupted
            if active.waiting and not stopped and not (one_by_one and active.training):
                return active
        with self._alone():
            while True:
                known = len(self._journal.get_trials(deepcopy=False))
                found = self._adopt() or self._ask()
                # A new trial that cannot be trained has failed already: the next one is asked for.
                if found is not None or len(self._journal.get_trials(deepcopy=False)) == known:
                    return found

    def _ask(self) -> Active | None:
        """Begin a new trial, unless there are enough or the time is over."""
        known = self._journal.get_trials(deepcopy=False)
        begun = sum(trial.state.name != "WAITING" for trial in known)
        if begun >= self._suggestions.number_of_trials():
            return None
        if self._is_late():
            return None
        trial, values = self._suggestions.ask(self._journal)
        trial.set_user_attr(OWNER, self._owner)
        settings = self._suggestions.space.overrides(values) if values else {}
        trial.set_user_attr(SETTINGS, settings)
        return self._activate(trial, settings, {})

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _place(self, run_dir: Path) -> Path:
        """Return where a run is now: the study may have been moved."""
        return run_place(run_dir, self._directory / RUNS)

    def _adopt(self) -> Active | None:
        """Take over a trial whose process is gone."""
        import optuna

        for frozen in self._journal.get_trials(deepcopy=False):
            if frozen.state.name != "RUNNING" or frozen.number in self._active:
                continue
            owner = str(frozen.user_attrs.get(OWNER, ""))
            if owner and owner != self._owner and self._is_alive(owner):
                continue
            trial = optuna.trial.Trial(self._journal, frozen._trial_id)
            trial.set_user_attr(OWNER, self._owner)
            known = as_trial(frozen)
            if SETTINGS not in frozen.user_attrs:  # killed between asking and noting what to try
                self._fail(trial, "its process was killed before its settings were noted")
                continue
            logger.info("trial %d goes on: the process that trained it is gone", frozen.number)
            active = self._activate(trial, known.settings, dict(known.runs))
            if active is not None:
                return active
        return None

    def _activate(self, trial: optuna.Trial, settings: Any, runs: dict[int, BenchmarkRunRecord]) -> Active | None:
        """Return a trial that this process trains from now on; None if its settings do not go together."""
        try:
            config = with_settings(self._start, self._suggestions.space, settings)
        except ConfigError as error:
            self._fail(trial, f"its settings do not go together: {error}")
            return None
        tags = (*self._start.tags, f"trial-{trial.number}")
        config = dataclasses.replace(config, output_dir=self._directory / RUNS, benchmark={}, tags=tags)
        seeds = self._seeds_of(trial.number)
        waiting = [seed for seed in seeds if seed not in runs or runs[seed].status != COMPLETED]
        active = Active(trial, config, waiting, runs)
        self._active[trial.number] = active
        for record in list(runs.values()):
            if record.status == COMPLETED:
                self._judge(active, record)
        if active.failure or active.pruned or not active.waiting:  # killed between the last seed and the end
            self._end(active)
            return None
        self._tell_watcher(trial.number)
        return active

    def _judge(self, active: Active, record: BenchmarkRunRecord) -> None:
        """Decide what the end of a seed means for its trial."""
        if record.status == INTERRUPTED:
            active.interrupted = True
        elif record.status == FAILED:
            active.failure = f"seed {record.seed}: {record.error}"
            logger.error("trial %d: seed %d failed: %s", active.trial.number, record.seed, record.error)
        elif (record.stop_reason or "").startswith(PRUNED_REASON):
            active.pruned = True
        else:
            try:
                score = self._score(record)
            except RunFailure as error:
                active.failure = str(error)
                return
            if self._study.pruner == "wilcoxon":
                active.trial.report(score, self._study.seeds.index(record.seed))
                active.pruned = bool(active.waiting) and active.trial.should_prune()

    def _end(self, active: Active) -> None:
        """Tell how a trial ended, unless it was interrupted: then it goes on another time."""
        import optuna

        number = active.trial.number
        if active.failure:
            self._fail(active.trial, active.failure)
        elif active.pruned:
            self._journal.tell(active.trial, state=optuna.trial.TrialState.PRUNED)
            logger.info("trial %d was pruned", number)
        elif active.interrupted:
            return
        else:
            value = trial_value([self._score(active.runs[seed]) for seed in self._seeds_of(number)])
            self._journal.tell(active.trial, value)
            logger.info("trial %d completed with %g", number, value)
        self._active.pop(number, None)

    def _fail(self, trial: optuna.Trial, reason: str) -> None:
        import optuna

        trial.set_user_attr(ERROR, reason)
        self._journal.tell(trial, state=optuna.trial.TrialState.FAIL)
        self._active.pop(trial.number, None)
        logger.warning("trial %d failed: %s", trial.number, reason)
        self._tell_watcher(trial.number)

    def _tell_watcher(self, number: int) -> None:
        self._watch(as_trial(self._journal.get_trials(deepcopy=False)[number]))

    def _score(self, record: BenchmarkRunRecord) -> float:
        if record.run_dir is not None:
            record = dataclasses.replace(record, run_dir=self._place(record.run_dir))
        return seed_score(self._study.objective, record)

    def _resume_point(self, active: Active, seed: int) -> Path | None:
        """Return the run that a seed goes on from, if there is one with an undamaged checkpoint."""
        record = active.runs.get(seed)
        if record is None or record.run_dir is None:
            return None
        run_dir = self._place(record.run_dir)
        _wait_until_free(run_dir)
        try:
            newest_sound_checkpoint(run_dir)
        except CheckpointError as error:
            logger.warning("trial %d, seed %d starts anew: %s", active.trial.number, seed, " ".join(str(error).split()))
            with contextlib.suppress(AxiomError):
                give_up_run(run_dir, "killed, and no sound checkpoint is left: its trial started the seed anew")
            return None
        return run_dir

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from choosing trials at the same time."""
        import fcntl

        with (self._directory / ".choice.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _lock_of(self, owner: str) -> Path:
        return self._directory / f".owner-{owner}.lock"

    def _is_alive(self, owner: str) -> bool:
        """Return whether the process of an owner holds its lock."""
        import fcntl

        if not owner.isalnum():  # from the journal, which others may have written
            return False
        try:
            file: IO[bytes] = self._lock_of(owner).open("rb+")
        except OSError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            with contextlib.suppress(OSError):
                os.unlink(self._lock_of(owner))
            return False


def _wait_until_free(run_dir: Path) -> None:
    """Wait for a process to end that trained a run for somebody who was killed a moment ago."""
    give_up = time.monotonic() + _SECONDS_TO_END
    while time.monotonic() < give_up:
        try:
            lock = hold_lock(run_dir / LOCK, taken="")
        except AxiomError:
            time.sleep(0.05)
            continue
        if lock is not None:
            lock.close()
        return
