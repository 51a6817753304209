"""TicTacToe and Connect Four by PettingZoo's rules, for self-play or against an opponent: extra `boardgames`.

Use them as `rl_training.envs.board_games:TicTacToe-v0` and `rl_training.envs.board_games:ConnectFour-v0`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.families.board_opponents import DepthLimited, Opponent, perfect_tictactoe, random_opponent
from rl_training.errors import ConfigError, EnvironmentFailure, MissingExtraError


class BoardGame(gym.Env[np.ndarray, Any]):
    """A two-player game: `step` moves both players in turn (self-play), or one of them against an opponent.

    The observation is a float32 vector: one number per cell for the player's own stones, then as many for the other's,
    from the view of the player to move next. The reward is that of the player whom this `step` moved: 1 for a win, 0
    otherwise, and -1 if the opponent's reply wins.

    Self-play soon repeats the same games, and so does a policy without noise against an opponent. Up to `opening_moves`
    random moves at the beginning of each game lead to other positions; these moves are not learned from.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own way

    def __init__(
        self,
        name: str,
        opponent: str | None,
        opponents: Mapping[str, Opponent],
        opening_moves: int,
        render_mode: str | None,
    ) -> None:
        if type(opening_moves) is not int or opening_moves < 0:
            raise ConfigError(f"env_kwargs.opening_moves: must be an integer >= 0, got {opening_moves!r}")
        if opponent is not None and opponent not in tuple(opponents):
            raise ConfigError(
                f"env_kwargs.opponent: {type(self).__name__} has no opponent `{opponent}`; choose one of "
                f"{', '.join(opponents)}, or null for self-play"
            )
        self.render_mode = render_mode
        self.turn_taking = opponent is None
        """Whether `step` moves two players in turn, in a zero-sum game."""
        self._opponent = None if opponent is None else opponents[opponent]
        self._opening_moves = opening_moves
        self._rules = _load_rules(name, render_mode)
        first_player = self._rules.possible_agents[0]
        rows, columns, planes = self._rules.observation_space(first_player)["observation"].shape
        self._planes = np.zeros((planes, rows, columns), np.int8)
        self.observation_space = spaces.Box(0.0, 1.0, (self._planes.size,), np.float32)
        self._choices = int(self._rules.action_space(first_player).n)
        self.action_space = spaces.Discrete(self._choices)
        self._moves: list[int] = []
        self._legal: list[int] = []
        self.agent_first: bool | None = None
        """Whether the agent made the first move after the opening; None in self-play."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game; against an opponent the first player alternates, and is random after a seed."""
        super().reset(seed=seed)
        if self._opponent is not None:
            drawn = seed is not None or self.agent_first is None
            self.agent_first = bool(self.np_random.integers(2)) if drawn else not self.agent_first
        self._open()
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Play a move, and let the opponent reply."""
        mover = self._play(int(action))
        if self._opponent is not None and self._legal:
            self._opponent_move()
        # Against an opponent, the final observation too is from the agent's view, even if it is not its turn.
        turned = self._opponent is not None and self._rules.agent_selection != mover
        return self._observe(turned), float(self._rules.rewards[mover]), not self._legal, False, self._info()

    def render(self) -> Any:
        """Return an image of the board."""
        return self._rules.render()

    def state_dict(self) -> dict[str, Any]:
        """Return the moves so far; the generator, which the opponent shares, is saved with every environment."""
        return {"moves": self._moves, "agent_first": self.agent_first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replay the saved moves."""
        self.agent_first = state["agent_first"]
        self._begin()
        for move in state["moves"]:
            self._play(move)

    def _begin(self) -> None:
        self._rules.reset()
        self._moves = []
        self._update_view()

    def _open(self) -> None:
        """Clear the board, play a random number of random moves, and let the opponent begin where it is to.

        An opening that ends the game, by itself or by the opponent's reply, is discarded.
        """
        while True:
            self._begin()
            count = int(self.np_random.integers(self._opening_moves + 1)) if self._opening_moves else 0
            while self._legal and len(self._moves) < count:
                self._play(random_opponent(self._moves, self._legal, self.np_random))
            if self._legal and self.agent_first is False:
                self._opponent_move()
            if self._legal:
                return

    def _play(self, move: int) -> str:
        """Make a move and return the player who made it."""
        if move not in self._legal:
            raise EnvironmentFailure(
                f"{type(self).__name__}: {move} is no legal move; "
                + (f"choose one of {self._legal}, as info['action_mask'] says" if self._legal else "call reset first")
            )
        mover: str = self._rules.agent_selection
        self._rules.step(move)
        self._moves.append(move)
        self._update_view()
        return mover

    def _opponent_move(self) -> None:
        assert self._opponent is not None
        self._play(self._opponent(self._moves, self._legal, self.np_random))

    def _update_view(self) -> None:
        """Update the view and the legal moves of the player to move; there are none when the game is over."""
        player = self._rules.agent_selection
        view = self._rules.observe(player)
        self._planes = view["observation"].transpose(2, 0, 1)  # [(own, other), rows, columns]
        self._legal = [] if self._rules.terminations[player] else view["action_mask"].nonzero()[0].tolist()

    def _observe(self, turned: bool = False) -> np.ndarray:
        planes = self._planes[::-1] if turned else self._planes
        return planes.astype(np.float32, order="C").reshape(-1)

    def _info(self) -> dict[str, Any]:
        # When the game is over no move is left, but a distribution needs at least one: all are marked legal.
        mask = np.full(self._choices, not self._legal, np.int8)
        mask[self._legal] = 1
        info: dict[str, Any] = {"action_mask": mask}
        return info if self._opponent is None else {**info, "agent_first": self.agent_first}


class TicTacToe(BoardGame):
    """Three in a row on 3x3 squares; action 3 * column + row takes a square."""

    def __init__(self, opponent: str | None = None, opening_moves: int = 0, render_mode: str | None = None) -> None:
        opponents: dict[str, Opponent] = {"random": random_opponent, "perfect": perfect_tictactoe}
        super().__init__("tictactoe", opponent, opponents, opening_moves, render_mode)


class ConnectFour(BoardGame):
    """Four in a row on 6 rows of 7 columns; an action drops a stone into a column."""

    def __init__(
        self,
        opponent: str | None = None,
        opponent_depth: int = 4,
        opening_moves: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if type(opponent_depth) is not int or opponent_depth < 1:
            raise ConfigError(f"env_kwargs.opponent_depth: must be an integer >= 1, got {opponent_depth!r}")
        opponents: dict[str, Opponent] = {"random": random_opponent, "depth-limited": DepthLimited(opponent_depth)}
        super().__init__("connect_four", opponent, opponents, opening_moves, render_mode)


def _load_rules(name: str, render_mode: str | None) -> Any:
    """Return PettingZoo's game without its wrappers, whose checks are made here already."""
    try:
        module = importlib.import_module(f"pettingzoo.classic.{name}.{name}")
    except ImportError as error:
        raise MissingExtraError("a board game", "boardgames") from error
    return module.raw_env(render_mode=render_mode)


gym.register("TicTacToe-v0", entry_point="rl_training.envs.board_games:TicTacToe")
gym.register("ConnectFour-v0", entry_point="rl_training.envs.board_games:ConnectFour")
