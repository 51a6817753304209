"""Suggestions: from any sampler they lie in the space, and they depend on nothing but seed, number and results."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.experiment.tuning.journal import open_journal
from rl_training.experiment.tuning.study import read_study
from rl_training.runtime.tuning.suggestions import Suggestions
from study_parts import make_study, start_config

CONDITIONAL = """
optimizer: {choice: [adam, rmsprop]}
optimizer_eps: {log: [1e-8, 1e-4], when: {optimizer: adam}}
gamma: {one_minus_log: [0.9, 0.999]}
num_steps: {log_int: [64, 512]}
"""


def suggestions_of(directory: Path) -> Suggestions:
    study = read_study(directory)
    start = study.start()
    space = study.search_space(start)
    return Suggestions(space, space.values_of(start), study.sampler, start.seed, study.trials)


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_suggestions_lie_in_the_space_and_obey_its_conditions(tmp_path: Path, sampler: str) -> None:
    directory = make_study(tmp_path, CONDITIONAL, sampler=sampler, trials=40)
    suggestions, journal = suggestions_of(directory), open_journal(directory)
    seen = []
    for number in range(40):
        trial, values = suggestions.ask(journal)
        assert trial.number == number
        assert number == 0 or suggestions.space.contains(values)
        journal.tell(trial, float(number % 7))
        seen.append("algo_kwargs.optimizer_eps" in values)
    assert any(seen)
    assert not all(seen[1:])


def test_the_start_is_known_to_the_sampler_as_far_as_it_lies_in_the_space(tmp_path: Path) -> None:
    config = start_config(tmp_path, algo_kwargs={"learning_rate": 1e-7, "gamma": 0.95})
    space = "learning_rate: {log: [1e-5, 1e-2]}\ngamma: {one_minus_log: [0.9, 0.999]}\n"
    directory = make_study(tmp_path, space, config)
    trial, values = suggestions_of(directory).ask(open_journal(directory))
    assert values == {}
    assert list(trial.params) == ["1 - algo_kwargs.gamma"]
    assert trial.params["1 - algo_kwargs.gamma"] == pytest.approx(0.05)


def test_a_trial_that_was_put_in_line_by_a_killed_process_is_the_next_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    found = []
    for directory in (one, two):
        directory.mkdir()
        study = make_study(directory, "update_epochs: {int: [1, 8]}\n", sampler="grid", trials=9)
        suggestions, journal = suggestions_of(study), open_journal(study)
        suggestions.ask(journal)
        if directory is two:  # what a process does that is killed before it asks
            journal.enqueue_trial({"algo_kwargs.update_epochs": suggestions._grid()[0]["algo_kwargs.update_epochs"]})
        found.append([suggestions.ask(journal)[1] for _ in range(3)])
    assert found[0] == found[1]


def test_cmaes_moves_towards_what_was_better(tmp_path: Path) -> None:
    space = "learning_rate: {log: [1e-6, 1e-1]}\ngamma: {one_minus_log: [0.5, 0.9999]}\nent_coef: {uniform: [0, 1]}\n"
    directory = make_study(tmp_path, space, sampler="cmaes", trials=200)
    suggestions, journal = suggestions_of(directory), open_journal(directory)
    distances = []
    for _ in range(150):
        trial, values = suggestions.ask(journal)
        value = values.get("algo_kwargs.ent_coef", 0.0)
        journal.tell(trial, -abs(value - 0.9))
        distances.append(abs(value - 0.9))
    assert sum(distances[-20:]) / 20 < 0.1
