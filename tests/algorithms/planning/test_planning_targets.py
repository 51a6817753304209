"""Targets of an unroll by hand: where returns end, whose reward it is, what is known past the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.algorithms.planning.targets import (
    Returns,
    partial_returns,
    search_errors,
    steps_by_age,
    unroll_targets,
)
from rl_training.data.trajectory_replay import Window

GOING, TERMINATES, CUT, NEWEST = "going", "terminates", "cut", "newest"


def window_of(*trajectories: tuple[Sequence[float], str], length: int) -> Window:
    """Return trajectories of these rewards, and how they end; rows count from 100 per trajectory."""
    batch = len(trajectories)
    shape = (length, batch)
    real, over, terminated = (np.zeros(shape, bool) for _ in range(3))
    reward = np.full(shape, 99.0, np.float32)  # what no target may contain
    for column, (rewards, end) in enumerate(trajectories):
        steps = min(len(rewards), length)
        real[:steps, column] = True
        reward[:steps, column] = rewards[:steps]
        if end == TERMINATES and len(rewards) <= length:
            terminated[steps - 1, column] = True
            over[steps:, column] = True
    rows = np.arange(length)[:, None] + 100 * np.arange(batch)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), shape).astype(np.float32)
    return Window(rows, real, over, np.zeros(shape, np.int64), reward, terminated, policy, np.zeros(shape, np.float32))


def one(rewards: Sequence[float], end: str, *, unroll_steps: int, n_step: int, discount: float) -> Returns:
    window = window_of((rewards, end), length=unroll_steps + n_step + 1)
    return Returns(*(array[:, 0] for array in partial_returns(window, unroll_steps, n_step, discount)))


# -- returns -------------------------------------------------------------------------------------


def test_a_return_of_three_steps_by_hand() -> None:
    found = one([1, 2, 3, 4, 5, 6], GOING, unroll_steps=1, n_step=3, discount=0.5)
    assert found.total.tolist() == [1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3 + 0.25 * 4]
    assert found.factor.tolist() == [0.125, 0.125]
    assert found.last.tolist() == [2, 3]  # the value after these steps is added


def test_nothing_is_added_after_a_termination() -> None:
    found = one([1, 2], TERMINATES, unroll_steps=3, n_step=3, discount=0.5)
    assert found.total.tolist() == [1 + 0.5 * 2, 2, 0, 0]
    assert found.factor.tolist() == [0, 0, 0, 0]


def test_a_time_limit_is_bootstrapped_from_the_step_it_cut() -> None:
    found = one([1, 2], CUT, unroll_steps=2, n_step=3, discount=0.5)
    assert found.total.tolist() == [1 + 0.5 * 2, 2, 0]
    assert found.factor.tolist() == [0.25, 0.5, 0]
    assert found.last[:2].tolist() == [1, 1]  # its true successor is the final observation


def test_the_newest_step_is_bootstrapped_like_a_cut() -> None:
    found = one([7, 2], NEWEST, unroll_steps=1, n_step=4, discount=0.9)
    assert found.total.tolist() == pytest.approx([7 + 0.9 * 2, 2])
    assert found.factor.tolist() == pytest.approx([0.81, 0.9])
    assert found.last.tolist() == [1, 1]


def test_a_termination_after_the_last_reward_of_a_sum_still_gets_its_bootstrap() -> None:
    found = one([1, 1, 5], TERMINATES, unroll_steps=0, n_step=2, discount=0.5)
    assert (found.total.tolist(), found.factor.tolist(), found.last.tolist()) == ([1.5], [0.25], [1])


def test_what_the_other_player_gains_is_lost() -> None:
    # Moves: mine (1), theirs (2), mine (4); each reward is the mover's.
    found = one([1, 2, 4, 8], GOING, unroll_steps=1, n_step=3, discount=-1.0)
    assert found.total.tolist() == [1 - 2 + 4, 2 - 4 + 8]
    assert found.factor.tolist() == [-1, -1]  # after three moves it is their turn
    found = one([1, 2, 4, 8], GOING, unroll_steps=0, n_step=2, discount=-0.5)
    assert (found.total.tolist(), found.factor.tolist()) == ([1 - 0.5 * 2], [0.25])


def test_a_game_won_by_the_last_move_is_lost_for_the_one_before() -> None:
    found = one([0, 0, 1], TERMINATES, unroll_steps=2, n_step=5, discount=-1.0)
    assert found.total.tolist() == [1, -1, 1]
    assert found.factor.tolist() == [0, 0, 0]


def test_each_trajectory_has_its_own_number_of_steps() -> None:
    same = ([1, 2, 3, 4, 5, 6, 7, 8], GOING)
    window = window_of(same, same, same, length=7)
    found = partial_returns(window, 1, np.array([1, 2, 5]), 1.0)
    assert found.total.tolist() == [[1, 3, 15], [2, 5, 20]]
    assert found.last.tolist() == [[0, 101, 204], [1, 102, 205]]


def test_older_trajectories_sum_fewer_rewards() -> None:
    # clip(5 - floor(age / (0.3 T)), 1, 5) with T = 1000: one less for every 300 steps of age.
    age = np.array([0, 1, 299, 300, 599, 600, 900, 1200, 1500, 9999])
    assert steps_by_age(age, 5, 1000).tolist() == [5, 5, 5, 4, 4, 3, 2, 1, 1, 1]
    assert steps_by_age(age, 2, 1000).tolist() == [2, 2, 2, 1, 1, 1, 1, 1, 1, 1]


# -- priorities ------------------------------------------------------------------------------------


def test_priorities_compare_the_search_with_what_came_and_what_it_said_then() -> None:
    rewards = [1, 2, 3, 4, 5]
    window = window_of((rewards, GOING), (rewards[:2], TERMINATES), (rewards[:2], CUT), length=3)
    window.value[:] = [[0.5, 0.5, 0.5], [7, 7, 7], [8, 8, 8]]
    errors = search_errors(window, 2, 0.5)
    going = 1 + 0.5 * 2 + 0.25 * 8  # bootstrapped by the search's value two steps later
    terminated = 1 + 0.5 * 2
    cut = 1 + 0.5 * 2 + 0.25 * 7  # the value of the last state seen stands in for that of the final one
    assert errors.tolist() == [going - 0.5, terminated - 0.5, cut - 0.5]


def test_a_search_that_was_right_gets_no_priority() -> None:
    window = window_of(([1, 1, 1, 1], GOING), length=3)
    window.value[:, 0] = [2.0, 2.0, 2.0]  # 1 + 0.5 * 2
    assert search_errors(window, 2, 0.5).tolist() == [0.0]


def test_the_state_beyond_a_time_limit_is_the_other_players() -> None:
    window = window_of(([0, 0], CUT), length=4)
    window.value[:2, 0] = [1.0, -1.0]  # both sides agree who wins
    assert search_errors(window, 3, -1.0).tolist() == [0.0]


# -- an unroll -----------------------------------------------------------------------------------


def test_past_a_termination_everything_is_worth_nothing_and_no_policy_is_known() -> None:
    window = window_of(([1, 2], TERMINATES), length=8)
    targets = unroll_targets(window, np.full((5, 1), 7.0, np.float32))
    assert targets.value[:, 0].tolist() == [7, 7, 0, 0, 0]
    assert targets.value_mask[:, 0].tolist() == [1, 1, 1, 1, 1]
    assert targets.reward[:, 0].tolist() == [1, 2, 0, 0]
    assert targets.reward_mask[:, 0].tolist() == [1, 1, 1, 1]
    assert targets.policy_mask[:, 0].tolist() == [1, 1, 0, 0, 0]
    assert targets.successor_mask[:, 0].tolist() == [1, 1, 0, 0]
    np.testing.assert_array_equal(targets.policy, window.policy[:5])


@pytest.mark.parametrize("end", [CUT, NEWEST])
def test_past_a_cut_nothing_is_known(end: str) -> None:
    window = window_of(([1, 2], end), length=8)
    targets = unroll_targets(window, np.full((5, 1), 7.0, np.float32))
    assert targets.value_mask[:, 0].tolist() == [1, 1, 0, 0, 0]
    assert targets.reward[:2, 0].tolist() == [1, 2]
    assert targets.reward_mask[:, 0].tolist() == [1, 1, 0, 0]  # the step into the cut state paid
    assert targets.policy_mask[:, 0].tolist() == [1, 1, 0, 0, 0]
    assert targets.successor_mask[:, 0].tolist() == [1, 1, 0, 0]


def test_value_prefixes_are_sums_that_start_anew() -> None:
    window = window_of(([1, 2, 4, 8, 16, 32, 64, 128], GOING), ([1, 2, 4], TERMINATES), length=8)
    targets = unroll_targets(window, np.zeros((8, 2), np.float32), prefix_horizon=3)
    assert targets.reward[:, 0].tolist() == [1, 3, 7, 8, 24, 56, 64]
    assert targets.reward[:, 1].tolist() == [1, 3, 7, 0, 0, 0, 0]
    targets = unroll_targets(window, np.zeros((8, 2), np.float32), prefix_horizon=5)
    assert targets.reward[:, 1].tolist() == [1, 3, 7, 7, 7, 0, 0]  # nothing is added past the end


def test_masks_and_targets_are_single_precision() -> None:
    window = window_of(([1, 2], CUT), length=6)
    for array in unroll_targets(window, np.zeros((3, 1)), prefix_horizon=2):
        assert array.dtype == np.float32


# -- against a loop over trajectories --------------------------------------------------------------

trajectories = st.lists(
    st.tuples(
        st.lists(st.integers(-3, 3), min_size=1, max_size=14),
        st.sampled_from([GOING, TERMINATES, CUT, NEWEST]),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=5,
)


@given(trajectories, st.integers(1, 5), st.sampled_from([0.5, 1.0, -1.0, -0.5]), st.integers(1, 4))
def test_targets_equal_a_loop_over_trajectories(
    parts: list[tuple[list[int], str, int]], unroll_steps: int, discount: float, horizon: int
) -> None:
    length = unroll_steps + 1 + 4
    window = window_of(*((rewards, end) for rewards, end, _ in parts), length=length)
    returns = partial_returns(window, unroll_steps, np.array([n_step for *_, n_step in parts]), discount)
    worth = 10.0 + np.arange(1000) / 8  # of the state after each row
    values = returns.total + returns.factor * worth[returns.last]
    targets = unroll_targets(window, values, prefix_horizon=horizon)
    for column, (rewards, end, n_step) in enumerate(parts):
        seen, prefix = rewards[:length], 0.0
        over = end == TERMINATES and len(rewards) <= length
        for state in range(unroll_steps + 1):
            real = state < len(seen)
            known = real or over
            assert targets.value_mask[state, column] == known
            assert targets.policy_mask[state, column] == real
            expected, factor, steps = 0.0, 1.0, 0
            while steps < n_step and state + steps < len(seen):
                expected += factor * seen[state + steps]
                factor *= discount
                steps += 1
            ended = over and state + steps == len(seen)
            if real and not ended:
                expected += factor * worth[100 * column + state + steps - 1]
            assert targets.value[state, column] == pytest.approx(expected if real else 0.0)
            if state == unroll_steps:
                break
            prefix = (0.0 if state % horizon == 0 else prefix) + (seen[state] if real else 0.0)
            assert targets.reward_mask[state, column] == known
            assert targets.successor_mask[state, column] == real
            assert targets.reward[state, column] == prefix
