"""Games against opponents and ScaleZero's variants, as the pages of their algorithms show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pages.render_games import game_blocks, picture_path, write_pictures
from pages.render_suites import suite_blocks


def games(step: int, simulations: int, opponent: str, wins: int) -> dict[str, Any]:
    """Return ten games from each side, one of them a draw."""
    side = {"wins": wins, "draws": 1, "losses": 9 - wins}
    row = {"step": step, "simulations": simulations, "opponent": opponent, "games_per_side": 10}
    return row | {"first": side, "second": side}


def suite(**scores: list[float]) -> dict[str, Any]:
    """Return a suite of one task with the scores of each variant's seeds."""
    cells = [
        {
            "variant": variant.replace("_", "-"),
            "seed": seed,
            "scores": {"Task": score},
            "curves": {"Task": [[10, score]]},
            "episodes": 5,
            "steps": 100,
            "seconds": 60.0,
            "all_targets_at": None,
        }
        for variant, values in scores.items()
        for seed, score in enumerate(values, start=1)
    ]
    config = {"total_timesteps": 100, "env_kwargs": {"tasks": [{"env_id": "Task", "target_return": 1.0}]}}
    return {"suite": "pair", "cells": cells, "config": config, "command": "again"}


def test_a_picture_of_games_has_a_line_per_opponent_over_training_and_over_simulations() -> None:
    pytest.importorskip("matplotlib")
    from pages.board_plot import draw

    played = [games(step, 32, name, step // 100) for name in ("random", "deep") for step in (100, 900)]
    figure = draw({"games": [*played, games(900, 8, "random", 5), games(900, 8, "deep", 0)]})
    training, simulations = figure.axes
    assert [line.get_label() for line in training.lines] == ["random", "deep"]
    np.testing.assert_allclose(np.array(training.lines[0].get_xydata(), np.float64), [[100, -0.7], [900, 0.9]])
    np.testing.assert_allclose(np.array(simulations.lines[1].get_xydata(), np.float64), [[8, -0.9], [32, 0.9]])


def test_games_over_training_have_a_picture_and_others_a_table_alone() -> None:
    entry = {
        "preset": "four",
        "config": {"seed": 1, "total_timesteps": 900},
        "command": "again",
        "versions": {"torch": "2"},
        "machine": {"python": "3", "processor": "x"},
    }
    final, earlier = games(900, 32, "deep", 7), games(100, 32, "deep", 2)
    alone, both = (str(game_blocks([entry | {"games": rows}])) for rows in ([final], [final, earlier]))
    assert "| `four` | 1 | 900 | 0 | 32 | deep | 0.50 | 7, 1, 2 | 7, 1, 2 |" in alone
    assert "| `four` | 1 | 900 | 4 | 32 |" in str(game_blocks([entry | {"opening_moves": 4, "games": [final]}]))
    assert picture_path(entry) in both
    assert "| 900 |" in both
    assert "| 100 |" not in both
    assert picture_path(entry) not in alone
    changed = entry | {"variant": "small", "games": [final, earlier]}
    assert "| `four`, small | 1 |" in str(game_blocks([changed]))
    assert picture_path(changed) != picture_path(entry)


def test_the_picture_of_games_is_drawn_from_their_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from pages.board_plot import fingerprint

    entry = {"preset": "four", "games": [games(900, 32, "deep", 7), games(100, 32, "deep", 2)]}
    (tmp_path / "games-four.json").write_text(json.dumps(entry))
    (tmp_path / "games-three.json").write_text(json.dumps({"preset": "three", "games": [games(900, 32, "deep", 7)]}))
    write_pictures(tmp_path, tmp_path)
    assert fingerprint(entry) in (tmp_path / picture_path(entry)).read_text()
    assert len(list(tmp_path.glob("plots/*"))) == 1


@pytest.mark.parametrize(
    ("dense", "words"),
    [
        ([0.1, 0.2, 0.3, 0.1, 0.2], "Task against dense 1.00 [1.00, 1.00], above."),
        ([0.1, 0.6, 0.9, 0.4, 0.8], "no difference shown."),
        ([0.8, 0.9, 1.0, 0.9, 1.0], "Task against dense 0.00 [0.00, 0.00], below."),
    ],
)
def test_variants_differ_where_the_interval_says_so(dense: list[float], words: str) -> None:
    assert words in str(suite_blocks([suite(preset=[0.5, 0.6, 0.7, 0.5, 0.6], dense=dense)]))


def test_too_few_seeds_say_nothing_about_a_variant() -> None:
    assert "Probability" not in str(suite_blocks([suite(preset=[0.5, 0.6, 0.7], dense=[0.1, 0.2, 0.3])]))
