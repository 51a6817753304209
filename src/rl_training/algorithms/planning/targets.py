"""Training targets of a window of experience: rewards, values and policies of an unroll of K steps.

A return ends without a bootstrap where the episode terminated, and with a bootstrap where it was truncated or where
the stored experience ends. States after a termination have value 0. Nothing is known about the states after a
truncation, so they are masked out.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from rl_training.data.trajectory_replay import Window


class Returns(NamedTuple):
    """Discounted sums of rewards from the first states of a window, and the factors of their bootstrap values."""

    total: np.ndarray  # [K + 1, B]
    factor: np.ndarray  # [K + 1, B] of the value of the state after step `last`; 0 where there is no bootstrap
    last: np.ndarray  # [K + 1, B] rows of the last step of each sum


def partial_returns(window: Window, unroll_steps: int, n_step: int | np.ndarray, discount: float) -> Returns:
    """Sum up to `n_step` rewards (one number, or one per trajectory [B]) from the states 0 to `unroll_steps`.

    `discount` is negative in two-player games: each reward is from the view of the player who moves.
    """
    states, most = unroll_steps + 1, int(np.max(n_step))
    factors = _powers(discount, most)
    at = np.arange(most)[:, None] + np.arange(states)  # [steps, K + 1] of the window
    going = window.real[at]  # [steps, K + 1, B], whether a step's reward is part of the sum
    going[1:] &= ~window.terminated[at[:-1]]
    going &= np.arange(most)[:, None, None] < n_step
    np.logical_and.accumulate(going, out=going)
    rewards = np.where(going, factors[:most, None, None] * window.reward[at], np.float32(0.0))
    count = going.sum(0)
    newest = np.arange(states)[:, None] + np.maximum(count - 1, 0)
    last = np.take_along_axis(window.rows, newest, 0)
    ended = (count > 0) & np.take_along_axis(window.terminated, newest, 0)
    bootstraps = window.real[:states] & ~ended
    return Returns(rewards.sum(0, initial=0.0), np.where(bootstraps, factors[count], np.float32(0.0)), last)


@functools.lru_cache(maxsize=16)
def _powers(discount: float, count: int) -> np.ndarray:
    """Return the factors of up to `count` steps, each rounded to single precision."""
    factors = np.ones(count + 1, np.float32)
    for step in range(count):
        factors[step + 1] = float(factors[step]) * discount
    return factors


def search_errors(window: Window, n_step: int, discount: float) -> np.ndarray:
    """Return the absolute differences [B] between the searched values of the first states and their n-step returns.

    Both are from the time of collection; compared with a present value, every old one would look wrong.
    """
    returns = partial_returns(window, 0, n_step, discount)
    newest = window.real[: n_step + 1].sum(0) - 1
    bootstrap = np.take_along_axis(window.value, newest[None], 0)
    # After a truncation the last state stands in for its successor, in which it would be the other player's turn.
    turned = np.where(newest < n_step, np.sign(discount), 1.0)
    return np.abs(window.value[0] - (returns.total + returns.factor * turned * bootstrap)[0])


def steps_by_age(age: np.ndarray, n_step: int, total_timesteps: int) -> np.ndarray:
    """Return the number of rewards [B] to sum for trajectories collected `age` environment steps ago (Ye et al. 2021).

    The older a trajectory, the further its policy from the present one: one reward less per 30 % of the run.
    """
    return np.clip(n_step - np.floor(age / (0.3 * total_timesteps)), 1, n_step).astype(np.int64)


class Targets(NamedTuple):
    """Training targets of an unroll; masks are float32, 0 where the target is unknown."""

    value: np.ndarray  # [K + 1, B]
    value_mask: np.ndarray  # [K + 1, B]
    reward: np.ndarray  # [K, B] of the step into state k + 1, or the sum since the last reset
    reward_mask: np.ndarray  # [K, B]
    policy: np.ndarray  # [K + 1, B, A]
    policy_mask: np.ndarray  # [K + 1, B]
    successor_mask: np.ndarray  # [K, B] whether state k + 1 was observed, or repeats the terminal state


def unroll_targets(
    window: Window, values: np.ndarray, *, prefix_horizon: int | None = None, absorbing_ends: bool = False
) -> Targets:
    """Return the targets, given the values [K + 1, B] of the states.

    `prefix_horizon` sums rewards between resets. `absorbing_ends` repeats the terminal state of an ended episode.
    """
    steps = len(values) - 1
    real, over = window.real[: steps + 1], window.over[: steps + 1]
    rewards = np.where(real[:-1], window.reward[:steps], 0.0).astype(np.float32)
    if prefix_horizon is not None:
        for start in range(0, steps, prefix_horizon):
            rewards[start : start + prefix_horizon] = rewards[start : start + prefix_horizon].cumsum(0)
    known = (real | over).astype(np.float32)
    return Targets(
        value=np.where(real, values, 0.0).astype(np.float32),
        value_mask=known,
        reward=rewards,
        reward_mask=known[:-1],
        policy=window.policy[: steps + 1],
        policy_mask=real.astype(np.float32),
        successor_mask=known[:-1] if absorbing_ends else real[:-1].astype(np.float32),
    )
