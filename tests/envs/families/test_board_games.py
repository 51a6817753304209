"""Board games: PettingZoo's rules seen by one player at a time, opponents that play as they promise."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from board_parts import CONNECT_FOUR, DRAWN, KINDS, TICTACTOE, at_random, legal, make, play, rewards
from rl_training.envs.board_games import BoardGame
from rl_training.envs.families.board_opponents import (
    WIN,
    DepthLimited,
    completing_cells,
    connect_four_bits,
    estimate,
    landing_cells,
    perfect_tictactoe,
    tictactoe_outcome,
)
from rl_training.envs.make import check_environment
from rl_training.errors import ConfigError, EnvironmentFailure, MissingExtraError
from rl_training.install_hint import install_hint

# -- rules and perspective -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "moves"),
    [
        (TICTACTOE, [0, 3, 1, 4, 2]),
        (TICTACTOE, [0, 1, 4, 2, 8]),
        (TICTACTOE, [0, 2, 1, 4, 8, 6]),  # the second player
        (CONNECT_FOUR, [0, 1, 0, 1, 0, 1, 0]),
        (CONNECT_FOUR, [0, 0, 1, 1, 2, 2, 3]),
        (CONNECT_FOUR, [0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3]),
        (CONNECT_FOUR, [6, 5, 5, 4, 4, 3, 4, 3, 3, 0, 3]),
        (CONNECT_FOUR, [6, 0, 5, 1, 6, 2, 5, 3]),  # the second player
    ],
)
def test_a_completed_line_ends_the_game_with_a_reward_for_the_mover(env_id: str, moves: list[int]) -> None:
    _, reward, terminated, truncated, _ = play(make(env_id), moves)
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_a_full_board_without_a_line_is_a_draw_that_pays_nothing() -> None:
    assert play(make(TICTACTOE), DRAWN)[1:4] == (0.0, True, False)


def test_what_is_taken_is_masked_and_a_full_column_is_too() -> None:
    *_, info = play(make(TICTACTOE), [4, 0])
    assert info["action_mask"].tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 1]
    *_, info = play(make(CONNECT_FOUR), [0, 0, 0, 0, 0])
    assert info["action_mask"].tolist() == [1] * 7
    *_, info = play(make(CONNECT_FOUR), [0, 0, 0, 0, 0, 0])
    assert info["action_mask"].tolist() == [0, 1, 1, 1, 1, 1, 1]


def test_the_mask_of_a_game_that_is_over_allows_everything() -> None:
    assert play(make(TICTACTOE), DRAWN)[4]["action_mask"].tolist() == [1] * 9


def test_the_observation_is_that_of_the_player_to_move_own_stones_first() -> None:
    env = make(TICTACTOE)
    observation, info = env.reset(seed=1)
    assert (observation.dtype, observation.tolist()) == (np.float32, [0.0] * 18)
    assert legal(info) == list(range(9))
    assert np.flatnonzero(env.step(1)[0]).tolist() == [9 + 1]
    assert np.flatnonzero(env.step(5)[0]).tolist() == [1, 9 + 5]
    assert np.flatnonzero(env.step(2)[0]).tolist() == [5, 9 + 1, 9 + 2]


def test_connect_four_is_observed_from_the_top_row_down() -> None:
    observation = play(make(CONNECT_FOUR), [3, 3, 0])[0]
    own, other = observation.reshape(2, 6, 7)
    assert np.argwhere(own).tolist() == [[4, 3]]
    assert np.argwhere(other).tolist() == [[5, 0], [5, 3]]


def test_self_play_moves_two_players_and_a_game_against_an_opponent_one() -> None:
    for env_id, opponent in KINDS:
        env = make(env_id, opponent)
        assert env.turn_taking is (opponent is None)
        assert env.observation_space == make(env_id).observation_space
        assert env.action_space == make(env_id).action_space


@pytest.mark.parametrize(("env_id", "opponent"), KINDS)
def test_gymnasium_finds_nothing_to_complain_of(env_id: str, opponent: str | None) -> None:
    class Forgiving(type(make(env_id))):  # type: ignore[misc]
        """The checker knows no masks: another move is made instead of one that is illegal."""

        def step(self, action: Any) -> Any:
            return super().step(action if action in self._legal else self._legal[0])

    check_env(Forgiving(opponent), skip_render_check=True)
    if opponent is None:
        check_env(make(env_id))  # every first two moves that it draws are legal, and its pictures are looked at


@pytest.mark.parametrize("env_id", [TICTACTOE, CONNECT_FOUR])
def test_a_picture_shows_the_stones(env_id: str) -> None:
    env = make(env_id, render_mode="rgb_array")
    env.reset(seed=1)
    before = env.render()
    env.step(3)
    assert before.shape == env.render().shape == (*before.shape[:2], 3)
    assert (before != env.render()).any()


# -- games against an opponent ---------------------------------------------------------------------


def test_the_agent_begins_every_other_game_after_a_drawn_side() -> None:
    env = make(TICTACTOE, "random")
    begins = []
    for seed in range(20):
        sides = [env.reset(seed=seed)[1]["agent_first"], *(env.reset()[1]["agent_first"] for _ in range(3))]
        assert sides == [sides[0], not sides[0]] * 2
        begins.append(sides[0])
    assert 3 < sum(begins) < 17


def test_an_opponent_that_begins_has_one_stone_on_the_board() -> None:
    env = make(TICTACTOE, "random")
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        stones = 0 if info["agent_first"] else 1
        assert (observation[:9].sum(), observation[9:].sum()) == (0, stones)
        assert len(legal(info)) == 9 - stones
        observation, *_, info = env.step(legal(info)[0])
        assert (observation[:9].sum(), observation[9:].sum()) == (1, stones + 1)
        assert info["agent_first"] == (stones == 0)


@pytest.mark.parametrize("env_id", [TICTACTOE, CONNECT_FOUR])
def test_the_agent_is_paid_for_wins_and_pays_for_losses_and_sees_the_end_as_itself(env_id: str) -> None:
    env = make(env_id, "random")
    choose = at_random(2)
    seen = set()
    for seed in range(60):
        _, info = env.reset(seed=seed)
        terminated, moves = False, 0
        while not terminated:
            observation, reward, terminated, _, info = env.step(choose(env, legal(info)))
            moves += 1
        own, other = observation.reshape(2, -1).sum(axis=1)
        assert own == moves
        if reward != 0.0:
            assert own - other == info["agent_first"] + (reward > 0) - 1  # whoever won made the last move
        seen.add(reward)
    assert {1.0, -1.0} <= seen <= {1.0, 0.0, -1.0}


def test_a_seed_repeats_the_games_and_another_gives_others() -> None:
    def trace(seed: int) -> list[Any]:
        env = make(CONNECT_FOUR, "depth-limited", opponent_depth=1)
        choose, steps = at_random(4), []
        observation, info = env.reset(seed=seed)
        for _ in range(30):
            observation, reward, terminated, _, info = env.step(choose(env, legal(info)))
            steps.append((observation.tolist(), reward, info["agent_first"]))
            if terminated:
                observation, info = env.reset()
        return steps

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


# -- opponents -------------------------------------------------------------------------------------


def test_tictactoe_is_a_draw_and_the_table_holds_each_of_its_positions() -> None:
    tictactoe_outcome.cache_clear()
    assert tictactoe_outcome(0, 0) == 0
    assert tictactoe_outcome.cache_info().currsize == 5478


def test_a_corner_is_answered_in_the_middle_and_a_fork_is_a_win() -> None:
    generator = np.random.default_rng(1)
    assert {perfect_tictactoe([0], range(1, 9), generator) for _ in range(20)} == {4}
    assert tictactoe_outcome(own=0b100_000_001, other=0b001_010_000) == 1  # a third corner threatens twice


def test_the_perfect_player_never_loses_to_random_moves() -> None:
    found = rewards(make(TICTACTOE, "perfect"), 300, at_random(1))
    assert max(found) == 0.0
    assert np.mean(found) < -0.7


def test_the_perfect_player_draws_against_itself_in_many_ways() -> None:
    generator, games = np.random.default_rng(1), set()

    def choose(env: BoardGame, moves: list[int]) -> int:
        played = env.state_dict()["moves"]
        games.add(tuple(played))
        return perfect_tictactoe(played, moves, generator)

    assert set(rewards(make(TICTACTOE, "perfect"), 200, choose)) == {0.0}
    assert len({game for game in games if len(game) >= 7}) > 50


def test_the_depth_limited_player_beats_random_moves() -> None:
    found = rewards(make(CONNECT_FOUR, "depth-limited"), 30, at_random(1))
    assert np.mean(found) < -0.9


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(
    ("moves", "answer"),
    [
        ([0, 1, 0, 1, 0, 1], 0),  # wins rather than blocks
        ([0, 1, 0, 1, 0], 0),  # blocks the column
        ([6, 0, 6, 1, 5, 2, 0], 3),  # wins at the end of a row
        ([0, 1, 1, 2, 2, 3, 2, 3, 3, 6], 3),  # wins on a diagonal
        ([0, 6, 1, 6, 3, 5], 2),  # fills the gap
        ([0, 6, 1, 6, 3], 2),  # blocks the gap
    ],
)
def test_the_depth_limited_player_takes_a_win_and_stops_a_loss(depth: int, moves: list[int], answer: int) -> None:
    generator = np.random.default_rng(1)
    assert {DepthLimited(depth)(moves, range(7), generator) for _ in range(10)} == {answer}


def test_looking_ahead_finds_an_open_three_before_it_is_made() -> None:
    generator = np.random.default_rng(1)
    open_two = [2, 2, 3]
    assert {DepthLimited(4)(open_two, range(7), generator) for _ in range(20)} <= {1, 4}
    assert not {DepthLimited(1)(open_two, range(7), generator) for _ in range(20)} & {1, 4}


def test_a_lost_game_is_made_to_last() -> None:
    generator = np.random.default_rng(1)
    # Column 2 stops the first of two threats; every other move loses at once.
    assert {DepthLimited(3)([3, 4, 4, 5, 3, 3, 5, 2, 4], range(7), generator) for _ in range(20)} == {2}


def plain_minimax(own: int, stones: int, depth: int) -> int:
    cells = [landing_cells(stones) & 0x7F << 7 * column for column in range(7)]
    if not any(cells):
        return 0
    if landing_cells(stones) & completing_cells(own, stones):
        return WIN + depth
    if depth == 0:
        return estimate(own, stones)
    return max(-plain_minimax(own ^ stones, stones | cell, depth - 1) for cell in cells if cell)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=30), st.integers(0, 1000))
def test_cutting_off_changes_no_choice(columns: list[int], seed: int) -> None:
    moves: list[int] = []
    for column in columns:
        own, stones = connect_four_bits(moves)
        cell = landing_cells(stones) & 0x7F << 7 * column
        if cell and not cell & completing_cells(own, stones):
            moves.append(column)
    own, stones = connect_four_bits(moves)
    if not landing_cells(stones):
        return
    scores = {}
    for column in range(7):
        cell = landing_cells(stones) & 0x7F << 7 * column
        if cell:
            wins = cell & completing_cells(own, stones)
            scores[column] = WIN + 3 if wins else -plain_minimax(own ^ stones, stones | cell, 2)
    best = {column for column, score in scores.items() if score == max(scores.values())}
    generator = np.random.default_rng(seed)
    assert {DepthLimited(3)(moves, list(scores), generator) for _ in range(40)} == best


def test_the_opponents_bits_say_what_the_rules_say() -> None:
    env = make(CONNECT_FOUR)
    choose = at_random(5)
    for _ in range(40):
        _, info = env.reset()
        moves: list[int] = []
        terminated = False
        while not terminated:
            own, stones = connect_four_bits(moves)
            column = choose(env, legal(info))
            cell = landing_cells(stones) & 0x7F << 7 * column
            observation, reward, terminated, _, info = env.step(column)
            moves.append(column)
            assert bool(cell & completing_cells(own, stones)) == (reward == 1.0)
            planes = observation.reshape(2, 6, 7)
            mine, everything = connect_four_bits(moves)
            for plane, bits in zip(planes, (mine, everything ^ mine), strict=True):
                assert {7 * column + 5 - row for row, column in np.argwhere(plane)} == {
                    bit for bit in range(49) if bits >> bit & 1
                }


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", [4, -1, 9])
def test_an_illegal_move_is_refused_with_the_legal_ones(move: int) -> None:
    env = make(TICTACTOE)
    env.reset(seed=1)
    env.step(4)
    with pytest.raises(EnvironmentFailure, match=rf"TicTacToe: {move} is no legal move; choose one of \[0, 1, 2, 3, 5"):
        env.step(move)


def test_a_move_after_the_end_or_before_the_beginning_asks_for_a_reset() -> None:
    env = make(TICTACTOE)
    play(env, DRAWN)
    with pytest.raises(EnvironmentFailure, match="call reset first"):
        env.step(0)
    with pytest.raises(EnvironmentFailure, match="call reset first"):
        make(CONNECT_FOUR).step(0)


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "message"),
    [
        (TICTACTOE, {"opponent": "depth-limited"}, "choose one of random, perfect, or null for self-play"),
        (CONNECT_FOUR, {"opponent": "perfect"}, "choose one of random, depth-limited, or null for self-play"),
        (CONNECT_FOUR, {"evaluation": {"opponent": ["random"]}}, "env_kwargs.opponent: ConnectFour has no opponent"),
        (CONNECT_FOUR, {"opponent_depth": 0}, "env_kwargs.opponent_depth: must be an integer >= 1, got 0"),
        (CONNECT_FOUR, {"opponent_depth": True}, "env_kwargs.opponent_depth: must be an integer >= 1, got True"),
        (TICTACTOE, {"opponent_depth": 2}, "takes no such argument"),
    ],
)
def test_wrong_arguments_are_answered_with_those_that_fit(env_id: str, env_kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_environment(env_id, env_kwargs)
    assert message in str(error.value)


@pytest.mark.parametrize("package", ["pettingzoo", "pygame"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == "pettingzoo"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as error:
        check_environment(TICTACTOE, {})
    assert install_hint("boardgames") in str(error.value)
