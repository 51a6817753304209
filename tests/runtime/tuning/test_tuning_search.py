"""The search: what it asks, trains, tells, and how it goes on after any end."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from rl_training.errors import ConfigError, NonFiniteError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.sweeps import COMPLETED, FAILED
from rl_training.experiment.tuning.journal import PRUNED, Trial
from rl_training.experiment.tuning.space import SearchSpace
from rl_training.experiment.tuning.trials import ranked
from rl_training.runtime.signals import SignalGuard
from rl_training.runtime.sweep.process_executor import ProcessExecutor
from study_parts import ScoredManager, hill, make_study, search


def tried(trials: list[Trial]) -> list[tuple[int, str, dict, float | None]]:
    return [(trial.number, trial.status, dict(trial.settings), trial.value) for trial in trials]


def test_the_first_trial_is_the_start_and_every_trial_is_trained_on_the_same_seeds(tmp_path: Path) -> None:
    trials = search(make_study(tmp_path))
    assert len(trials) == 6
    assert trials[0].settings == {}
    assert all(trial.settings for trial in trials[1:])
    assert all(sorted(trial.runs) == [1, 2] for trial in trials)
    assert {trial.status for trial in trials} == {COMPLETED}


def test_the_objective_is_the_interquartile_mean_over_seeds(tmp_path: Path) -> None:
    scores = {1: 0.0, 2: 10.0, 3: 20.0, 4: 1000.0}
    (trial,) = search(
        make_study(tmp_path, trials=1, seeds_per_trial=4), ScoredManager(lambda config: scores[config.seed])
    )
    assert trial.value == 15.0  # a quarter is left out at either end


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_one_worker_makes_the_same_trials_again(tmp_path: Path, sampler: str) -> None:
    found = [
        tried(search(make_study(tmp_path / name, trials=14, seeds_per_trial=1, sampler=sampler)))
        for name in _folders(tmp_path, "one", "two")
    ]
    assert found[0] == found[1]


def test_another_seed_makes_other_trials(tmp_path: Path) -> None:
    from study_parts import start_config

    one, two = _folders(tmp_path, "one", "two")
    first = search(make_study(tmp_path / one))
    second = search(make_study(tmp_path / two, config=start_config(tmp_path / two, seed=7)))
    assert [trial.settings for trial in first[1:]] != [trial.settings for trial in second[1:]]


def test_tpe_finds_the_top_of_a_hill_that_chance_misses(tmp_path: Path) -> None:
    one, two = _folders(tmp_path, "tpe", "random")
    best = {}
    for name in (one, two):
        trials = search(make_study(tmp_path / name, trials=40, seeds_per_trial=1, sampler=name))
        best[name] = max(trial.value or 0.0 for trial in trials)
    assert best["tpe"] > best["random"]


def test_an_interrupted_study_goes_on_with_the_trials_it_would_have_made(tmp_path: Path) -> None:
    one, two = _folders(tmp_path, "one", "two")
    whole = tried(search(make_study(tmp_path / one)))
    directory, signals = make_study(tmp_path / two), SignalGuard()
    calls: list[int] = []

    def score(config: TrainConfig) -> float:
        calls.append(config.seed)
        if len(calls) == 5:  # in the third trial
            signals.received = signal.SIGINT
        return hill(config)

    partly = search(directory, ScoredManager(score), signals=signals)
    assert [trial.status for trial in partly] == [COMPLETED, COMPLETED, "running"]
    assert tried(search(directory, ScoredManager(score))) == whole
    assert len(calls) == 12  # nothing was trained twice


def test_more_trials_can_be_asked_of_a_study_that_has_ended(tmp_path: Path) -> None:
    import dataclasses

    from rl_training.experiment.tuning.study import read_study, write_study

    directory = make_study(tmp_path, trials=3)
    first = tried(search(directory))
    write_study(directory, dataclasses.replace(read_study(directory), trials=5))
    later = tried(search(directory))
    assert later[:3] == first
    assert len(later) == 5


def test_a_failed_seed_makes_a_failed_trial_that_stays_in_the_study(tmp_path: Path) -> None:
    def score(config: TrainConfig) -> float:
        if config.algo_kwargs["learning_rate"] > 1e-3:
            raise NonFiniteError("the loss is nan at step 512")
        return hill(config)

    trials = search(make_study(tmp_path, trials=12), ScoredManager(score))
    failed = [trial for trial in trials if trial.status == FAILED]
    assert failed
    assert len(trials) == 12
    assert all("the loss is nan" in (trial.error or "") and trial.value is None for trial in failed)
    assert all(sorted(trial.runs) == [1] for trial in failed)  # the second seed was not trained in vain


def test_a_score_that_is_not_finite_is_a_failure_and_never_the_best(tmp_path: Path) -> None:
    trials = search(
        make_study(tmp_path, trials=2),
        ScoredManager(lambda config: math.inf if config.algo_kwargs["learning_rate"] != 3e-4 else 1.0),
    )
    assert [trial.status for trial in trials] == [COMPLETED, FAILED]
    assert ranked(trials) == trials[:1]


def test_settings_that_do_not_go_together_are_recorded_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(self: SearchSpace, config: TrainConfig, values: dict) -> TrainConfig:
        raise ConfigError("algo_kwargs.minibatch_size: is larger than the rollout")

    directory = make_study(tmp_path, trials=4)
    monkeypatch.setattr(SearchSpace, "apply", apply)  # a space is checked by samples: rare combinations stay unseen
    trials = search(directory)
    assert [trial.status for trial in trials] == [COMPLETED, FAILED, FAILED, FAILED]
    assert "do not go together: algo_kwargs.minibatch_size" in (trials[1].error or "")


def test_no_trial_begins_after_the_deadline(tmp_path: Path) -> None:
    assert len(search(make_study(tmp_path), deadline=time.monotonic() - 1)) == 0


def test_a_grid_tries_every_combination_once_and_then_ends(tmp_path: Path) -> None:
    space = "learning_rate: {choice: [1e-4, 1e-3, 1e-2]}\nupdate_epochs: {int: [1, 2]}\n"
    trials = search(make_study(tmp_path, space, trials=50, seeds_per_trial=1, sampler="grid"))
    points = {tuple(trial.settings.values()) for trial in trials[1:]}
    assert len(trials) == 7
    assert points == {(rate, epochs) for rate in (1e-4, 1e-3, 1e-2) for epochs in (1, 2)}


def test_a_grid_of_a_continuous_parameter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no finite number of values"):
        make_study(tmp_path, sampler="grid")


def test_the_median_of_other_trials_prunes_a_bad_one_at_its_first_evaluations(tmp_path: Path) -> None:
    def score(config: TrainConfig) -> float:
        return 100.0 if config.algo_kwargs["learning_rate"] < 1e-3 else -100.0

    trials = search(make_study(tmp_path, trials=20, pruner="median"), ScoredManager(score))
    pruned = [trial for trial in trials if trial.status == PRUNED]
    assert pruned
    assert all(trial.settings["algo_kwargs.learning_rate"] >= 1e-3 for trial in pruned)
    assert all(sorted(trial.runs) == [1] for trial in pruned)
    assert all((trial.runs[1].stop_reason or "").startswith("pruned by median") for trial in pruned)


def test_wilcoxons_test_over_seeds_prunes_before_the_last_seed(tmp_path: Path) -> None:
    trials = search(make_study(tmp_path, trials=12, seeds_per_trial=8, pruner="wilcoxon"))
    pruned = [trial for trial in trials if trial.status == PRUNED]
    assert pruned
    assert all(4 <= len(trial.runs) < 8 for trial in pruned)


def test_wilcoxons_test_needs_seeds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--seeds-per-trial 5 or more"):
        make_study(tmp_path, pruner="wilcoxon")


@pytest.mark.slow
def test_several_jobs_train_trials_at_the_same_time_and_lose_none(tmp_path: Path) -> None:
    directory = make_study(tmp_path, trials=3, seeds_per_trial=1)
    trials = search(directory, executor=ProcessExecutor(2), jobs=2)
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert all(trial.status == COMPLETED and sorted(trial.runs) == [1] for trial in trials)
    assert len(list((directory / "runs").iterdir())) == 3


def test_two_processes_and_a_killed_one_lose_and_double_nothing(tmp_path: Path) -> None:
    directory = make_study(tmp_path, trials=12, seeds_per_trial=2)
    context = multiprocessing.get_context("fork")
    slow = ScoredManager(seconds=0.05)
    workers = [context.Process(target=search, args=(directory, slow)) for _ in range(3)]
    for worker in workers:
        worker.start()
    time.sleep(0.4)
    assert workers[0].pid is not None
    os.kill(workers[0].pid, signal.SIGKILL)
    for worker in workers:
        worker.join(60)
    trials = search(directory, slow)
    assert [trial.number for trial in trials] == list(range(12))
    assert {trial.status for trial in trials} == {COMPLETED}
    assert all(sorted(trial.runs) == [1, 2] for trial in trials)
    assert len({str(trial.settings) for trial in trials}) == 12
    finished = len(list((directory / "runs").iterdir()))
    assert 24 <= finished <= 25  # at most the run that was killed was begun anew


def _folders(tmp_path: Path, *names: str) -> list[str]:
    for name in names:
        (tmp_path / name).mkdir()
    return list(names)
