"""What happens after the search: further seeds for the finalists, fresh ones for the winner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.tuning.journal import Trial
from rl_training.experiment.tuning.study import CONFIRMING, FINALS, read_study
from rl_training.experiment.tuning.trials import ranked
from rl_training.runtime.tuning.confirming import LastRuns
from study_parts import ScoredManager, make_study, search

LUCKY, STEADY = 1, 2


def last_runs(directory: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[int, str]]) -> LastRuns:
    """Return the last runs of a study in which the trial that led the search was only lucky."""
    study = read_study(directory)

    def scores(self: LastRuns, trial: Trial, folder: str, seeds: Sequence[int]) -> dict[int, float]:
        asked.append((trial.number, folder))
        return dict.fromkeys(seeds, 10.0 if trial.number == LUCKY else 90.0)

    monkeypatch.setattr(LastRuns, "_scores", scores)
    start = study.start()
    return LastRuns(directory, study, ScoredManager(), lambda trial: start, {})  # type: ignore[arg-type]


def luck(config: TrainConfig) -> float:
    """Return the scores of the search, by the tags that name the trial."""
    return {"trial-1": 100.0, "trial-2": 90.0}.get(config.tags[-1], 50.0)


def test_further_seeds_tell_the_lucky_from_the_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_study(tmp_path)
    asked: list[tuple[int, str]] = []
    trials = search(directory, ScoredManager(luck))
    assert ranked(trials)[0].number == LUCKY
    last = last_runs(directory, monkeypatch, asked)
    winner = last.winner(trials)
    assert winner.number == STEADY
    assert winner.value == 90.0  # over its seeds of the search and the further ones
    assert asked == [(LUCKY, FINALS), (STEADY, FINALS), (0, FINALS)]


def test_the_winner_and_the_start_meet_on_fresh_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_study(tmp_path)
    asked: list[tuple[int, str]] = []
    trials = search(directory, ScoredManager(luck))
    last = last_runs(directory, monkeypatch, asked)
    found = last.confirm(trials[LUCKY], trials)
    assert asked == [(0, CONFIRMING), (LUCKY, CONFIRMING)]
    assert found.optimism == 100.0 - 10.0
    assert not found.improved


def test_without_finalists_the_search_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_study(tmp_path, finalists=1)
    asked: list[tuple[int, str]] = []
    trials = search(directory, ScoredManager(luck))
    assert last_runs(directory, monkeypatch, asked).winner(trials).number == LUCKY
    assert asked == []
