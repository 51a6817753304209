"""Tune: search settings, then let fresh seeds decide. The functions behind `axiomrl tune`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.config import TrainConfig, check_config, config_to_dict
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.own_code.run_code import admit_code
from rl_training.experiment.own_code.user_code import LoadedFrom, adopted
from rl_training.experiment.runs import algorithm_slug, claim_directory, dependency_versions, sanitize, utc_now
from rl_training.experiment.storage.files import hold_lock, make_directory, storage_errors
from rl_training.experiment.sweeps import COMPLETED, FAILED, INTERRUPTED
from rl_training.experiment.tuning.confirmation import Confirmation
from rl_training.experiment.tuning.journal import Trial, open_journal, read_trials, require_optuna
from rl_training.experiment.tuning.space import SearchSpace
from rl_training.experiment.tuning.space_files import default_space, read_space
from rl_training.experiment.tuning.study import BEST, RUNS, Study, read_study, with_settings, write_study
from rl_training.experiment.tuning.trials import ranked
from rl_training.runtime.setup.dataset_setup import with_dataset
from rl_training.runtime.setup.run_setup import RunSetup
from rl_training.runtime.setup.warm_start import with_fixed_init
from rl_training.runtime.signals import SignalGuard
from rl_training.runtime.tuning.confirming import Interrupted, LastRuns, write_best
from rl_training.runtime.tuning.placing import Placing
from rl_training.runtime.tuning.population import Population, check_population, fit_for_forks
from rl_training.runtime.tuning.pruning import check_pruner
from rl_training.runtime.tuning.search import Search, Watcher
from rl_training.runtime.tuning.suggestions import Suggestions

logger = logging.getLogger("rl_training")

FURTHER_SEEDS = 3
"""On which finalists are trained; as many as a trial has, if those are more."""
GENERATIONS = 10
"""Of a population, if nothing else is said."""


@dataclass(frozen=True)
class TuneResult:
    """What a study has come to."""

    study_dir: Path
    status: str
    """`completed`, `interrupted`, `failed` if no trial has a score, or `running` if other processes train trials."""
    trials: tuple[Trial, ...]
    best: Trial | None
    best_path: Path | None
    confirmation: Confirmation | None
    signal: int | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many trials there are of each status."""
        return dict(Counter(trial.status for trial in self.trials))


def new_study(
    config: TrainConfig,
    *,
    space: Path | None = None,
    trials: int = 50,
    seeds_per_trial: int = 2,
    confirm_seeds: int = 5,
    finalists: int = 3,
    **choices: Any,
) -> Path:
    """Make the directory of a study in the configuration's output directory and return it.

    `choices` are fields of `Study`: method, sampler, pruner, objective, generations.
    """
    require_optuna()
    for flag, number, least in (
        ("--trials", trials, 1),
        ("--seeds-per-trial", seeds_per_trial, 1),
        ("--confirm-seeds", confirm_seeds, 0),
        ("--finalists", finalists, 1),
    ):
        if number < least:
            raise ConfigError(f"{flag}: must be an integer >= {least}, got {number}")
    population = choices.get("method") == "pbt"
    start = with_dataset(with_fixed_init(check_config(dataclasses.replace(config, benchmark={}))))
    if not start.eval_episodes:
        raise ConfigError("eval_episodes: trials are compared by their evaluations; set it to 1 or more")
    found = default_space(start) if space is None else read_space(space, start)
    if population:
        check_population(trials, choices.setdefault("generations", GENERATIONS), start)
        found = fit_for_forks(found, start, given=space is not None)
        seeds_per_trial, finalists = trials, 1  # a seed for each member
    first = start.seed
    seeds = range(first, first + seeds_per_trial)
    further = range(seeds.stop, seeds.stop + (max(FURTHER_SEEDS, seeds_per_trial) if finalists > 1 else 0))
    study = Study(
        config=config_to_dict(start),
        space=found.to_data(),
        trials=trials,
        seeds=tuple(seeds),
        finalists=finalists,
        final_seeds=tuple(further),
        confirm_seeds=tuple(range(further.stop, further.stop + confirm_seeds)),
        created_at_utc=utc_now(),
        versions=dependency_versions(),
        **choices,
    )
    check_pruner(study.pruner, start, seeds_per_trial, "processes")
    _suggestions(study, start, found).number_of_trials()  # a grid must be finite
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"study__{algorithm_slug(start.algo)}__{sanitize(start.task_name)}__{stamp}"
    directory = claim_directory(start.output_dir, name)
    write_study(directory, study)
    open_journal(directory, create=True)
    return directory


def run_study(
    directory: Path,
    placing: Placing,
    manager: ExperimentManager,
    *,
    trials: int | None = None,
    watch: Watcher = lambda trial: None,
    trust_code: bool = False,
    written_here: bool = False,
) -> TuneResult:
    """Train what a study lacks: trials, then the confirmation; `trials` changes how many there are in all.

    Code that the study's file names is treated as that of a loaded file, unless the file was `written_here`, by the
    same process from the user's own configuration, or `trust_code` is given.
    """
    study = read_study(directory)
    if trials is not None and trials != study.trials:
        study = dataclasses.replace(study, trials=trials)
        write_study(directory, study)
    loaded = None if written_here else LoadedFrom(f"study {directory}", (), trust_code)
    start = study.start(loaded)
    space = study.search_space(start)
    code = admit_code(start, loaded)
    with adopted(code):
        setup = RunSetup(start, None)  # a mistake is reported once, here, and not as a failure of every trial
    check_pruner(study.pruner, start, len(study.seeds), placing.executor or "processes")
    if study.method == "pbt" and placing.executor == "ray":
        raise ConfigError(
            "--executor ray: members of a population start from each other's checkpoints in the study's directory, "
            "which the machines of a cluster need not share; use processes"
        )
    with storage_errors("the runs of a study", directory):
        make_directory(directory / RUNS)  # runs on other machines are copied to it
    executor, run_config, jobs = placing.place(start, study, directory, setup)
    search = (Population if study.method == "pbt" else Search)(
        directory,
        study,
        dataclasses.replace(run_config, output_dir=start.output_dir),
        _suggestions(study, start, space),
        manager=manager,
        jobs=jobs,
        code=code,
        deadline=placing.deadline(),
        watch=watch,
    )
    with search.owning(), _signals() as signals:
        executor.execute(search.seeds(), search.begin, search.report, signals)
    if signals.received is not None:
        return _result(directory, INTERRUPTED, signal=signals.received)
    if search.left():
        numbers = ", ".join(str(trial.number) for trial in search.left())
        logger.info("other processes still train trial %s; the last one confirms the best", numbers)
        return _result(directory, "running")
    return _finish(directory, study, lambda trial: with_settings(run_config, space, trial.settings), placing, manager)


def _finish(
    directory: Path,
    study: Study,
    configs: Callable[[Trial], TrainConfig],
    placing: Placing,
    manager: ExperimentManager,
) -> TuneResult:
    """Choose the best of the finalists, and train it and the start on fresh seeds."""
    trials = read_trials(directory)
    if not ranked(trials):
        return _result(directory, FAILED)
    try:
        lock = hold_lock(directory / ".confirmation.lock", taken="another process confirms the best settings")
    except AxiomError as error:
        logger.info("%s", error)
        return _result(directory, "running")
    try:
        last = LastRuns(directory, study, manager, configs, placing.benchmark(configs(trials[0]), study))
        best = last.winner(trials)
        write_best(directory, study, configs(best), best, None)
        confirmation = last.confirm(best, trials) if study.confirm_seeds else None
    except Interrupted as stopped:
        status = FAILED if stopped.signal is None else INTERRUPTED
        return _result(directory, status, signal=stopped.signal)
    finally:
        if lock is not None:
            lock.close()
    write_best(directory, study, configs(best), best, confirmation)
    return _result(directory, COMPLETED, best=best, confirmation=confirmation)


def _result(
    directory: Path,
    status: str,
    *,
    best: Trial | None = None,
    confirmation: Confirmation | None = None,
    signal: int | None = None,
) -> TuneResult:
    path = directory / BEST
    trials = tuple(read_trials(directory))
    first = next(iter(ranked(trials)), None)
    best_path = path if path.exists() else None
    return TuneResult(directory, status, trials, best or first, best_path, confirmation, signal)


def _suggestions(study: Study, start: TrainConfig, space: SearchSpace) -> Suggestions:
    return Suggestions(space, space.values_of(start), study.sampler, start.seed, study.trials)


@contextlib.contextmanager
def _signals() -> Iterator[SignalGuard]:
    signals = SignalGuard()
    signals.install()
    try:
        yield signals
    finally:
        signals.restore()
