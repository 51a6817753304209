"""What fresh seeds say, by hand-made numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.tuning.confirmation import Confirmation, Side, read_confirmation, write_confirmation
from rl_training.experiment.tuning.study import CONFIRMATION


def side(trial: int, searched: float, *scores: float) -> Side:
    return Side(trial, searched, {seed + 10: score for seed, score in enumerate(scores)})


def test_better_settings_are_called_better() -> None:
    found = Confirmation(side(7, 120.0, 100, 101, 102, 103, 104), side(0, 50.0, 48, 49, 50, 51, 52), 20)
    assert found.improved
    assert found.probability == 1.0
    assert found.optimism == 120.0 - 102.0
    assert found.sentence.startswith("trial 7 is better than the start on 5 fresh seeds: 102.00 against 50.00")


def test_settings_that_do_not_matter_are_called_nothing_better() -> None:
    found = Confirmation(side(7, 120.0, 100, 102, 104, 98, 101), side(0, 100.0, 101, 99, 103, 100, 102), 20)
    assert not found.improved
    assert "nothing better was shown" in found.sentence
    assert "cannot be told apart" in found.sentence


def test_equal_scores_are_no_improvement() -> None:
    found = Confirmation(side(7, 500.0, *[500] * 5), side(0, 500.0, *[500] * 5), 20)
    assert found.probability == 0.5
    assert not found.improved


def test_worse_settings_are_called_worse() -> None:
    found = Confirmation(side(7, 120.0, 1, 2, 3, 4, 5), side(0, 50.0, 48, 49, 50, 51, 52), 20)
    assert found.sentence.startswith("nothing better was found: trial 7 is worse on fresh seeds, 3.00 against 50.00")


def test_a_start_that_stays_the_best_is_said_plainly() -> None:
    start = side(0, 50.0, 48, 49, 50)
    assert Confirmation(start, start, 12).sentence == "the search found nothing better than the start among 12 trials"


def test_two_seeds_are_too_few_to_tell() -> None:
    found = Confirmation(side(7, 120.0, 100, 101), side(0, 50.0, 1, 2), 20)
    assert not found.improved
    assert "too few" in found.sentence


def test_the_file_repeats_everything(tmp_path: Path) -> None:
    found = Confirmation(side(7, 120.0, 100, 101, 102), side(0, 50.0, 48, 49, 50), 20)
    write_confirmation(tmp_path, found)
    assert read_confirmation(tmp_path) == found
    record = found.as_record()
    assert record["best"]["scores"] == {"10": 100, "11": 101, "12": 102}
    assert record["best"]["interval"][0] <= record["best"]["iqm"] <= record["best"]["interval"][1]


def test_there_may_be_no_confirmation_yet(tmp_path: Path) -> None:
    assert read_confirmation(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"best": 1}', '{"best": {"trial": "x"}}'])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIRMATION).write_text(text)
    with pytest.raises(ConfigError, match=r"confirmation.json is damaged .*delete it"):
        read_confirmation(tmp_path)
