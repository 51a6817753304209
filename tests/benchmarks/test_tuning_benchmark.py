"""The stored studies and what the page says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tuning
from records import RESULTS

STORED = sorted(RESULTS.glob("tune-*.json"))


def test_the_page_shows_what_is_stored() -> None:
    page = tuning.PAGE.read_text(encoding="utf-8")
    assert f"{tuning.BEGIN}\n{tuning.render()}\n{tuning.END}" in page


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_study_is_one_of_the_benchmark_and_keeps_all_its_trials(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["command"] == f"axiomrl tune {tuning.CASES[found['study']].command}"
    assert [trial["number"] for trial in found["trials"]] == list(range(found["confirmation"]["trials"]))
    assert found["trials"][0]["settings"] == {}


def test_a_bad_start_is_left_behind_and_settings_that_do_not_matter_are_not_praised() -> None:
    stored = {path.stem: json.loads(path.read_text(encoding="utf-8"))["confirmation"] for path in STORED}
    assert stored["tune-bad-start"]["improved"]
    assert not stored["tune-flat"]["improved"]
