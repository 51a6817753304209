"""The comparison of offline algorithms with d3rlpy measures the same work on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers import d3rlpy_learners
from speed_cases import offline_side, offline_speed
from speed_cases.speed_parts import Effort, Outcome


def test_offline_updates_per_second_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side learns in its own process, with the same algorithm and seed."""
    asked: list[list[str]] = []

    def alone(script: Path, words: list[str]) -> dict[str, float]:
        asked.append(words)
        return {"steps_per_second": 300.0 if words[1] == "ours" else 150.0}

    monkeypatch.setattr(offline_speed, "measure_alone", alone)
    monkeypatch.setattr(d3rlpy_learners, "why_missing", lambda: None)
    outcome = offline_speed.measure("iql", Effort(2, quick=True))
    assert outcome.ratios == {"d3rlpy": [2.0, 2.0]}
    assert asked == [
        [*words, "--quick"]
        for words in (["iql", "ours", "1"], ["iql", "d3rlpy", "1"], ["iql", "d3rlpy", "2"], ["iql", "ours", "2"])
    ]
    monkeypatch.setattr(d3rlpy_learners, "why_missing", lambda: "d3rlpy is not there")
    assert offline_speed.measure("iql", Effort(2)) == Outcome({}, ["d3rlpy is not there"])


def test_our_side_of_an_offline_comparison_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr(offline_side, "LENGTH", 20)
    monkeypatch.setattr(offline_side, "LEFT_OUT", 2)
    long, short = offline_side.ours("iql", 1, (4, 2), tmp_path)
    assert min(*long, *short) > 0
