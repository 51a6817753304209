"""n-step returns by hand, over truncations and terminations; stacks of frames against what the environment showed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from rl_training.data.accumulator import NStepAccumulator, StackTracker, Transitions
from rl_training.data.observation_store import ObservationStore

Row = tuple[int, int, float, float, int, int]  # observation, action, reward, discount, successor, env


class Steps:
    """Feeds an accumulator steps written as rewards with `T` (terminated), `L` (time limit) or nothing per env."""

    def __init__(self, num_envs: int, n_step: int, gamma: float, *, summed: bool = True) -> None:
        self.accumulator = NStepAccumulator(num_envs, n_step, gamma, summed=summed)
        self.time = 0

    def __call__(self, *steps: tuple[float, str]) -> list[Row]:
        """Take one step of every env; its observation is 10 * time + env, its successor 10 * (time + 1) + env."""
        envs = np.arange(len(steps))
        reward = np.array([reward for reward, _ in steps], np.float32)
        terminated, truncated = (np.array([mark in end for _, end in steps]) for mark in "TL")
        observation, successor = 10 * self.time + envs, 10 * (self.time + 1) + envs
        action = 100 + observation
        self.time += 1
        return rows(self.accumulator.add(observation, action, reward, terminated, truncated, successor))


def rows(new: Transitions) -> list[Row]:
    """Return transitions as tuples, ordered by env and observation."""
    columns = (new.observation, new.action, new.reward, new.discount, new.successor, new.env)
    return sorted(zip(*(column.tolist() for column in columns), strict=True), key=lambda row: (row[5], row[0]))


def test_one_step_transitions_are_complete_at_once():
    step = Steps(1, 1, 0.9)
    assert step((2.0, "")) == [(0, 100, 2.0, pytest.approx(0.9), 1 * 10, 0)]
    assert step((3.0, "T")) == [(10, 110, 3.0, 0.0, 20, 0)]
    assert step((4.0, "L")) == [(20, 120, 4.0, pytest.approx(0.9), 30, 0)]


def test_three_steps_are_summed_with_growing_discount():
    step = Steps(1, 3, 0.5)
    assert step((1.0, "")) == []
    assert step((2.0, "")) == []
    assert step((4.0, "")) == [(0, 100, 1 + 0.5 * 2 + 0.25 * 4, 0.125, 30, 0)]
    assert step((8.0, "")) == [(10, 110, 2 + 0.5 * 4 + 0.25 * 8, 0.125, 40, 0)]


def test_rewards_kept_apart_are_those_that_a_sum_would_hold():
    summed, apart = Steps(2, 3, 0.5), Steps(2, 3, 0.5, summed=False)
    draws = np.random.default_rng(0)
    seen: list[Any] = []
    for _ in range(60):
        step = [(float(draws.integers(1, 9)), str(draws.choice(["", "", "", "T", "L"]))) for _ in range(2)]
        ours, theirs = apart(*step), summed(*step)
        seen += [row[2] for row in ours]
        totals = [float(apart.accumulator.total(np.array(row[2]))) for row in ours]
        assert [(*row[:2], total, *row[3:]) for row, total in zip(ours, totals, strict=True)] == theirs
    assert {sum(reward > 0 for reward in rewards) for rewards in seen} == {1, 2, 3}  # zeros follow the last


def test_a_termination_ends_every_sum_without_a_bootstrap():
    step = Steps(1, 3, 0.5)
    step((1.0, ""))
    step((2.0, ""))
    step((4.0, ""))
    assert step((8.0, "T")) == [
        (10, 110, 2 + 0.5 * 4 + 0.25 * 8, 0.0, 40, 0),
        (20, 120, 4 + 0.5 * 8, 0.0, 40, 0),
        (30, 130, 8.0, 0.0, 40, 0),
    ]
    # The next episode starts with nothing pending.
    assert step((16.0, "")) == []
    assert step((32.0, "")) == []
    assert step((64.0, "")) == [(40, 140, 16 + 16 + 16, 0.125, 70, 0)]


def test_a_truncation_bootstraps_from_its_final_observation_after_as_many_rewards_as_there_were():
    step = Steps(1, 3, 0.5)
    step((1.0, ""))
    step((2.0, ""))
    step((4.0, ""))
    assert step((8.0, "L")) == [
        (10, 110, 2 + 0.5 * 4 + 0.25 * 8, 0.125, 40, 0),
        (20, 120, 4 + 0.5 * 8, 0.25, 40, 0),
        (30, 130, 8.0, 0.5, 40, 0),
    ]
    assert step((1.0, "")) == []


def test_an_episode_shorter_than_n_steps_is_kept_whole():
    step = Steps(1, 5, 0.5)
    step((1.0, ""))
    assert step((2.0, "L")) == [(0, 100, 2.0, 0.25, 20, 0), (10, 110, 2.0, 0.5, 20, 0)]
    assert step((3.0, "T")) == [(20, 120, 3.0, 0.0, 30, 0)]


def test_a_termination_at_the_time_limit_does_not_bootstrap():
    assert Steps(1, 2, 0.5)((1.0, "TL")) == [(0, 100, 1.0, 0.0, 10, 0)]


def test_environments_end_at_different_times():
    step = Steps(3, 2, 0.5)
    assert step((1.0, ""), (10.0, "T"), (100.0, "")) == [(1, 101, 10.0, 0.0, 11, 1)]
    assert step((2.0, "L"), (20.0, ""), (200.0, "")) == [
        (0, 100, 2.0, 0.25, 20, 0),
        (10, 110, 2.0, 0.5, 20, 0),
        (2, 102, 200.0, 0.25, 22, 2),
    ]
    assert step((3.0, ""), (30.0, ""), (300.0, "T")) == [
        (11, 111, 35.0, 0.25, 31, 1),
        (12, 112, 350.0, 0.0, 32, 2),
        (22, 122, 300.0, 0.0, 32, 2),
    ]


def test_flushing_truncates_what_is_pending():
    step = Steps(2, 3, 0.5)
    step((1.0, ""), (10.0, ""))
    step((2.0, ""), (20.0, "T"))
    flushed = step.accumulator.flush(np.array([77, 88]))
    assert flushed is not None
    assert rows(flushed) == [(0, 100, 2.0, 0.25, 77, 0), (10, 110, 2.0, 0.5, 77, 0)]  # env 1 had nothing pending
    again = step.accumulator.flush(np.array([77, 88]))
    assert again is not None
    assert rows(again) == []
    assert NStepAccumulator(2, 3, 0.5).flush(np.array([0, 1])) is None


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_restored_accumulator_completes_what_was_pending(stop):
    ends = ["", "", "L", "", "", "", "T", ""]
    straight, stopped = Steps(2, 3, 0.9), Steps(2, 3, 0.9)
    expected = [straight((float(time), end), (2.0 * time, "")) for time, end in enumerate(ends)]
    found = []
    for time, end in enumerate(ends):
        if time == stop:
            state = {key: np.copy(value) if isinstance(value, np.ndarray) else value
                     for key, value in stopped.accumulator.state_dict().items()}  # fmt: skip
            stopped.accumulator = NStepAccumulator(2, 3, 0.9)
            stopped.accumulator.load_state_dict(state)
        found.append(stopped((float(time), end), (2.0 * time, "")))
    assert found == expected


# -- stacks of frames --------------------------------------------------------------------------------


class Film(gym.Env[Any, Any]):
    """Random pictures in episodes of random length, of which every other is ended by a time limit."""

    observation_space = gym.spaces.Box(0, 255, (4, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 9))
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        by_time = bool(self.np_random.random() < 0.5)
        return self._frame(), 0.0, not self.left and not by_time, not self.left and by_time, {}

    def _frame(self) -> Any:
        return self.np_random.integers(0, 256, (4, 3), dtype=np.uint8)


@pytest.mark.parametrize("stack", [2, 4])
def test_reconstructed_stacks_are_what_the_environment_showed_across_episodes(stack):
    env = FrameStackObservation(Film(), stack)
    store = ObservationStore(env.observation_space, 1000, stack=stack)
    tracker = StackTracker(1, stack)
    shown, _ = env.reset(seed=stack)
    tracker.restart(np.array([0]), store.put(shown[None]))
    history = [(tracker.serials.copy(), shown)]
    episodes = 0
    for _ in range(120):
        shown, _, terminated, truncated, _ = env.step(0)
        tracker.serials = tracker.successor(store.put(shown[None]))
        history.append((tracker.serials.copy(), shown))
        if terminated or truncated:
            episodes += 1
            shown, _ = env.reset()
            tracker.restart(np.array([0]), store.put(shown[None]))
            history.append((tracker.serials.copy(), shown))
    assert episodes > 10
    assert store.count == len(history)  # one frame each
    for serials, expected in history:
        np.testing.assert_array_equal(store.get(serials)[0], expected)


def test_stacks_of_several_environments_restart_one_by_one():
    tracker = StackTracker(2, 3)
    tracker.restart(np.arange(2), np.array([0, 1]))
    tracker.serials = tracker.successor(np.array([2, 3]))
    assert tracker.serials.tolist() == [[0, 0, 2], [1, 1, 3]]
    tracker.restart(np.array([1]), np.array([4]))
    tracker.serials = tracker.successor(np.array([5, 6]))
    assert tracker.serials.tolist() == [[0, 2, 5], [4, 4, 6]]


def test_without_stacking_a_serial_number_stands_alone():
    tracker = StackTracker(2, 1)
    tracker.restart(np.arange(2), np.array([0, 1]))
    assert tracker.successor(np.array([2, 3])).tolist() == [2, 3]
    assert tracker.serials.tolist() == [0, 1]
