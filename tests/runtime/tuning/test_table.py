"""The live table of trials, as it is drawn on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from rl_training.errors import NonFiniteError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.tuning.study import read_study
from rl_training.experiment.tuning.trials import settings_text
from rl_training.runtime.tuning.table import SHOWN, TrialTable, make_table
from study_parts import ScoredManager, hill, make_study, search


def drawn(directory: Path, width: int = 100) -> str:
    table = TrialTable(read_study(directory), io.StringIO())
    for trial in search(directory, ScoredManager(score)):
        table.update(trial)
    console = Console(file=io.StringIO(), width=width)
    console.print(table.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def score(config: TrainConfig) -> float:
    if config.algo_kwargs["learning_rate"] > 3e-3:
        raise NonFiniteError("the loss is nan")
    return hill(config)


def test_it_shows_status_seeds_objective_and_what_a_trial_changes(tmp_path: Path) -> None:
    text = drawn(make_study(tmp_path, trials=4))
    assert "of 4" in text
    assert "2/2" in text
    assert "learning_rate" in text
    assert "the start" in text


def test_it_shows_the_reason_of_a_failure(tmp_path: Path) -> None:
    assert "the loss is nan" in drawn(make_study(tmp_path, trials=25, seeds_per_trial=1))


def test_it_never_grows_beyond_its_place(tmp_path: Path) -> None:
    text = drawn(make_study(tmp_path, trials=40, seeds_per_trial=1), width=60)
    assert len(text.splitlines()) <= SHOWN + 6
    assert max(map(len, text.splitlines())) <= 60


def test_only_changes_are_named(tmp_path: Path) -> None:
    start = {"algo_kwargs": {"gamma": 0.9, "max_grad_norm": 0.5}}
    settings = {"algo_kwargs.gamma": 0.9, "algo_kwargs.max_grad_norm": None}
    assert settings_text(settings, start) == "max_grad_norm null"


def test_there_is_no_table_in_a_pipe(tmp_path: Path) -> None:
    assert make_table(read_study(make_study(tmp_path)), quiet=False, stream=io.StringIO()) is None
