"""Helpers for tests of board games: games made, played by given moves or at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.board_games import BoardGame

TICTACTOE, CONNECT_FOUR = (f"rl_training.envs.board_games:{name}-v0" for name in ("TicTacToe", "ConnectFour"))
KINDS = [
    *((TICTACTOE, opponent) for opponent in (None, "random", "perfect")),
    *((CONNECT_FOUR, opponent) for opponent in (None, "random", "depth-limited")),
]
DRAWN = [0, 1, 2, 4, 3, 5, 7, 6, 8]
Choose = Callable[[BoardGame, list[int]], int]


def make(env_id: str, opponent: str | None = None, **kwargs: Any) -> BoardGame:
    env = gym.make(env_id, opponent=opponent, disable_env_checker=True, **kwargs).unwrapped
    assert isinstance(env, BoardGame)
    return env


def play(env: BoardGame, moves: list[int]) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    """Play the moves and return what the last one gave; no move before it may end the game."""
    env.reset(seed=1)
    for move in moves[:-1]:
        _, reward, terminated, truncated, _ = env.step(move)
        assert (reward, terminated, truncated) == (0.0, False, False)
    return env.step(moves[-1])


def legal(info: dict[str, Any]) -> list[int]:
    return np.flatnonzero(info["action_mask"]).tolist()


def rewards(env: BoardGame, games: int, choose: Choose, seed: int = 1) -> list[float]:
    """Return the last reward of each game, half of which the agent begins."""
    found = []
    _, info = env.reset(seed=seed)
    for _ in range(games):
        terminated = False
        while not terminated:
            _, reward, terminated, _, info = env.step(choose(env, legal(info)))
        found.append(float(reward))
        _, info = env.reset()
    return found


def at_random(seed: int) -> Choose:
    generator = np.random.default_rng(seed)
    return lambda env, moves: int(generator.choice(moves))
