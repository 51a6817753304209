"""The encoder of boards: patterns anywhere on the grid, and the settings it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from board_parts import CONNECT_FOUR, TICTACTOE
from planning_runs import tiny_run
from rl_training import load_policy
from rl_training.errors import ConfigError
from rl_training.models.encoders import GridEncoder
from rl_training.runtime.workflows import train

BOARD = spaces.Box(0.0, 1.0, (84,), np.float32)
SHAPE = (2, 6, 7)


def one_filter(pattern: list[list[float]], plane: int, bias: float) -> GridEncoder:
    """Return an encoder whose only filter looks for a pattern in one plane."""
    encoder = GridEncoder(BOARD, SHAPE, filters=1, kernel=len(pattern))
    with torch.no_grad():
        encoder.convolution.weight.zero_()
        encoder.convolution.weight[0, plane] = torch.tensor(pattern)
        encoder.convolution.bias.fill_(bias)  # type: ignore[union-attr]
    return encoder


def test_a_filter_finds_its_pattern_in_the_cells_that_the_observation_lists() -> None:
    diagonal = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    encoder = one_filter(diagonal, plane=1, bias=-2.0)
    assert encoder.width == 4 * 5
    board = np.zeros(SHAPE, np.float32)
    for cell in range(3):
        board[1, 2 + cell, 3 + cell] = 1.0  # the other player's, from row 2 and column 3 on
        board[0, cell, cell] = 1.0  # the player's own do not count
    found = encoder(torch.from_numpy(board.reshape(1, -1)))
    assert found.shape == (1, 20)
    assert found[0].nonzero().flatten().tolist() == [2 * 5 + 3]
    assert found[0, 2 * 5 + 3] == 1.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"shape": [6, 7]}, r"shape: \[6, 7\] does not fit an observation of 84 numbers; write \[planes"),
        ({"shape": [2, 7, 7]}, r"shape: \[2, 7, 7\] does not fit"),
        ({"shape": SHAPE, "kernel": 7}, "kernel: must be between 1 and 6, the shorter side of the grid, got 7"),
        ({"shape": SHAPE, "kernel": 0}, "kernel: must be between 1 and 6"),
    ],
)
def test_settings_that_do_not_fit_the_observation_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algo_kwargs\.encoder_kwargs\.{sentence}"):
        GridEncoder(BOARD, **settings)


@pytest.mark.parametrize(("env_id", "shape"), [(CONNECT_FOUR, [2, 6, 7]), (TICTACTOE, [2, 3, 3])])
def test_self_play_learns_with_it_and_its_policy_loads(env_id: str, shape: list[int], tmp_path: Path) -> None:
    encoder = {
        "encoder": "rl_training.models.encoders:GridEncoder",
        "encoder_kwargs": {"shape": shape, "filters": 4},
    }
    config = tiny_run(
        tmp_path, "gumbel_muzero", env_id, algo_kwargs={"two_player": True, "gamma": 1.0, **encoder}, eval_episodes=0
    )
    result = train(config)
    assert result.status == "completed"
    policy = load_policy(result.run_dir)  # the package's own code needs nobody's trust
    assert policy.predict(np.zeros(9 * 2 if env_id == TICTACTOE else 84, np.float32)) in range(9)
