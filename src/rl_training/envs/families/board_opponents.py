"""Opponents for the board games: random, perfect in TicTacToe, depth-limited alpha-beta in Connect Four.

An opponent gets the moves of the game so far, so that it needs no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np


class Opponent(Protocol):
    """Chooses one of the legal moves."""

    def __call__(self, moves: Sequence[int], legal: Sequence[int], generator: np.random.Generator) -> int:
        """Return a reply to the `moves` so far, the first player's first; ties are broken at random."""


def random_opponent(moves: Sequence[int], legal: Sequence[int], generator: np.random.Generator) -> int:
    """Return a random legal move."""
    return _draw(legal, generator)


def _draw(choices: Sequence[int], generator: np.random.Generator) -> int:
    return choices[int(generator.integers(len(choices)))]


# -- TicTacToe: a set of squares is an integer with one bit per square ---------------------------------------------

_FULL = 0b111_111_111
_LINES = (0b000_000_111, 0b000_111_000, 0b111_000_000, 0b001_001_001, 0b010_010_010, 0b100_100_100, 0o421, 0o124)


def perfect_tictactoe(moves: Sequence[int], legal: Sequence[int], generator: np.random.Generator) -> int:
    """Return one of the moves that keep the best outcome that can be forced, regardless of its length."""
    own = sum(1 << move for move in moves[len(moves) % 2 :: 2])
    other = sum(1 << move for move in moves[1 - len(moves) % 2 :: 2])
    outcomes = [-tictactoe_outcome(other, own | 1 << move) for move in legal]
    return _draw([move for move, outcome in zip(legal, outcomes, strict=True) if outcome == max(outcomes)], generator)


@cache
def tictactoe_outcome(own: int, other: int) -> int:
    """Return the outcome that the player to move, who holds `own`, can force: 1 a win, 0 a draw, -1 a loss."""
    if any(other & line == line for line in _LINES):
        return -1
    if own | other == _FULL:
        return 0
    empty = _FULL & ~(own | other)
    return max(-tictactoe_outcome(other, own | 1 << square) for square in range(9) if empty >> square & 1)


# -- Connect Four: bit 7 * column + height; the unused seventh bit separates the columns ----------------------------

_COLUMNS = tuple(0b0111111 << 7 * column for column in range(7))
_BOTTOM = sum(1 << 7 * column for column in range(7))
_BOARD = sum(_COLUMNS)
# Middle columns first: good moves that are tried early prune more of the others.
_ORDER = (3, 2, 4, 1, 5, 0, 6)
WIN = 1000  # above every estimate of a position


@dataclass(frozen=True)
class DepthLimited:
    """Searches `depth` moves ahead in Connect Four by alpha-beta and estimates the positions it reaches."""

    depth: int = 4

    def __call__(self, moves: Sequence[int], legal: Sequence[int], generator: np.random.Generator) -> int:
        """Return one of the moves with the best score."""
        own, stones = connect_four_bits(moves)
        winning = completing_cells(own, stones)
        best, best_moves = -2 * WIN, list[int]()
        for column in _ORDER:
            cell = landing_cells(stones) & _COLUMNS[column]
            if not cell:
                continue
            if cell & winning:
                score = WIN + self.depth
            else:
                # The window begins one below the best score so far, so that equal scores are exact too.
                score = -_alpha_beta(own ^ stones, stones | cell, self.depth - 1, -2 * WIN, 1 - best)
            if score > best:
                best, best_moves = score, []
            if score == best:
                best_moves.append(column)
        return _draw(best_moves, generator)


def connect_four_bits(moves: Sequence[int]) -> tuple[int, int]:
    """Return the stones of the player to move, and all stones, after the columns in `moves`."""
    own = stones = 0
    for column in moves:
        own, stones = own ^ stones, stones | landing_cells(stones) & _COLUMNS[column]
    return own, stones


def landing_cells(stones: int) -> int:
    """Return the lowest empty cell of every column that is not full."""
    return (stones + _BOTTOM) & _BOARD


def completing_cells(own: int, stones: int) -> int:
    """Return the empty cells, reachable or not, where one more stone of `own` makes four in a row."""
    found = (own << 1) & (own << 2) & (own << 3)  # three stones below it
    for step in (7, 6, 8):  # along a row and both diagonals: the cell is an end or one of the two inner ones
        before, after = own << step & own << 2 * step, own >> step & own >> 2 * step
        found |= before & (own << 3 * step | own >> step) | after & (own >> 3 * step | own << step)
    return found & (_BOARD & ~stones)


def _alpha_beta(own: int, stones: int, depth: int, alpha: int, beta: int) -> int:
    """Return the score for the player to move: exact between `alpha` and `beta`, else a bound."""
    playable = landing_cells(stones)
    if not playable:
        return 0
    if playable & completing_cells(own, stones):
        return WIN + depth  # earlier wins, with more depth left, score higher
    if depth == 0:
        return estimate(own, stones)
    best = -2 * WIN
    for column in _ORDER:
        cell = playable & _COLUMNS[column]
        if cell:
            score = -_alpha_beta(own ^ stones, stones | cell, depth - 1, -beta, -max(alpha, best))
            best = max(best, score)
            if best >= beta:
                break
    return best


def estimate(own: int, stones: int) -> int:
    """Return the advantage of the player to move, in cells that complete a four and in stones in the middle column."""
    other, middle = own ^ stones, _COLUMNS[3]
    cells = completing_cells(own, stones).bit_count() - completing_cells(other, stones).bit_count()
    return 4 * cells + (own & middle).bit_count() - (other & middle).bit_count()
