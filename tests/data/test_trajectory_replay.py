"""Windows of trajectories by hand: where they end, what they show, and what survives a checkpoint."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from replay_parts import large_arrays
from rl_training.data.replay_size import ReplaySize
from rl_training.data.samplers import PrioritizedSampler, Sampler, UniformSampler
from rl_training.data.trajectory_replay import TrajectoryReplay, Window, search_bytes

ACTIONS = 3
SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
START, FINAL = 0.25, 0.5  # what a first and a final observation add to the number of their step


def make_replay(capacity: int, num_envs: int = 1, *, prioritized: bool = False, stack: int = 1) -> TrajectoryReplay:
    sampler: Sampler = UniformSampler(capacity)
    if prioritized:
        sampler = PrioritizedSampler(capacity, alpha=0.6, eps=1e-6)
    action = np.zeros(num_envs, np.int64)
    return TrajectoryReplay(SPACE, action, sampler, actions=ACTIONS, capacity=capacity, num_envs=num_envs, stack=stack)


class Player:
    """Adds steps whose every number says which step it was: environment e's t-th step pays 100 e + t."""

    def __init__(self, replay: TrajectoryReplay, *, masked: bool = False) -> None:
        self.replay = replay
        self.masked = masked
        self.steps = 0
        self.begin()

    def begin(self) -> None:
        self.replay.begin(self._observation(START), self._mask(0))

    def play(self, count: int = 1, *, terminated: tuple[int, ...] = (), truncated: tuple[int, ...] = ()) -> None:
        """Take steps in all environments, of which some end with the last of them."""
        envs = np.arange(self.replay.num_envs)
        for number in range(count):
            last = number == count - 1
            done, cut = (np.isin(envs, ended) & last for ended in (terminated, truncated))
            tag = (100 * envs + self.steps).astype(np.float32)
            action = (envs + self.steps) % ACTIONS
            self.steps += 1
            final = self._observation(0.0)
            shown = final
            if (done | cut).any():
                final = np.where((done | cut)[:, None], self._observation(FINAL), final)
                shown = np.where((done | cut)[:, None], self._observation(START), final)
            mask = self._mask(self.steps)
            self.replay.add(action, tag, done, cut, final, shown, mask, mask)
            policy = np.full((len(envs), ACTIONS), 0.0, np.float32)
            policy[:, 0] = tag
            self.replay.add_search(policy, 1000 + tag, done, cut)

    def _observation(self, addition: float) -> np.ndarray:
        envs = np.arange(self.replay.num_envs, dtype=np.float32)
        return np.stack((envs, np.full(len(envs), self.steps + addition, np.float32)), axis=1)

    def _mask(self, step: int) -> np.ndarray | None:
        """Allow only the action that is taken at the step."""
        if not self.masked:
            return None
        return np.eye(ACTIONS, dtype=bool)[(np.arange(self.replay.num_envs) + step) % ACTIONS]


def reached(replay: TrajectoryReplay, rows: Any) -> np.ndarray:
    successors = replay.reached(np.asarray(rows))
    assert isinstance(successors, np.ndarray)
    return successors


def observed(replay: TrajectoryReplay, rows: Any) -> np.ndarray:
    observations = replay.observed(np.asarray(rows))[0]
    assert isinstance(observations, np.ndarray)
    return observations


def column(window: Window, name: str, trajectory: int = 0) -> list[Any]:
    values: list[Any] = getattr(window, name)[:, trajectory].tolist()
    return values


def real_rewards(window: Window, trajectory: int = 0) -> list[float]:
    """Return the rewards of the real steps, which are the first ones of a window."""
    real = window.real[:, trajectory]
    assert not real[int(real.sum()) :].any()
    rewards: list[float] = window.reward[real, trajectory].tolist()
    return rewards


# -- windows -------------------------------------------------------------------------------------


def test_a_window_holds_what_was_added() -> None:
    replay = make_replay(16)
    Player(replay).play(8)
    window = replay.windows(np.array([2, 4]), 3)
    assert column(window, "rows", 0) == [2, 3, 4]
    assert real_rewards(window, 0) == [2, 3, 4]
    assert real_rewards(window, 1) == [4, 5, 6]
    assert column(window, "action", 1) == [1, 2, 0]
    assert column(window, "value", 1) == [1004, 1005, 1006]
    assert window.policy[:, 1, 0].tolist() == [4, 5, 6]
    assert window.policy.shape == (3, 2, ACTIONS)
    assert not window.terminated.any()
    assert not window.over.any()


def test_a_window_ends_with_a_termination_and_the_rest_is_over() -> None:
    replay = make_replay(16)
    player = Player(replay)
    player.play(4, terminated=(0,))
    player.play(6)
    window = replay.windows(np.array([1]), 6)
    assert column(window, "real") == [True, True, True, False, False, False]
    assert column(window, "terminated") == [False, False, True, False, False, False]
    assert column(window, "over") == [False, False, False, True, True, True]
    after = replay.windows(np.array([4]), 6)
    assert real_rewards(after) == [4, 5, 6, 7, 8, 9]
    assert not after.over.any()


def test_a_window_ends_with_a_time_limit_and_nothing_is_over() -> None:
    replay = make_replay(16)
    player = Player(replay)
    player.play(4, truncated=(0,))
    player.play(3, terminated=(0,))  # belongs to the next episode
    window = replay.windows(np.array([2]), 6)
    assert real_rewards(window) == [2, 3]
    assert not window.terminated.any()
    assert not window.over.any()


def test_a_window_ends_at_the_newest_step() -> None:
    replay = make_replay(16)
    Player(replay).play(5)
    window = replay.windows(np.array([4, 3]), 4)
    assert real_rewards(window, 0) == [4]
    assert real_rewards(window, 1) == [3, 4]
    assert not window.over.any()


def test_an_episode_that_was_broken_off_ends_there() -> None:
    replay = make_replay(32, num_envs=2)
    player = Player(replay)
    player.play(2, terminated=(1,))
    player.begin()  # environment 0 was in the middle of its episode
    player.play(3)
    first = replay.windows(np.array([0, 1]), 5)
    assert real_rewards(first, 0) == [0, 1]
    assert column(first, "over", 0) == [False] * 5
    assert real_rewards(first, 1) == [100, 101]
    assert column(first, "over", 1) == [False, False, True, True, True]  # it had terminated before the break
    after = replay.windows(np.array([4]), 3)
    assert real_rewards(after) == [2, 3, 4]
    assert reached(replay, [2]).tolist() == [[0, 2]]  # what came before the break, not after it


def test_environments_end_each_on_its_own() -> None:
    replay = make_replay(60, num_envs=3)
    player = Player(replay)
    player.play(3, terminated=(1,))
    player.play(2, truncated=(2,))
    player.play(3)
    window = replay.windows(np.array([0, 1, 2]), 7)
    assert column(window, "rows", 1) == [1, 4, 7, 10, 13, 16, 19]
    assert real_rewards(window, 0) == [0, 1, 2, 3, 4, 5, 6]
    assert real_rewards(window, 1) == [100, 101, 102]
    assert real_rewards(window, 2) == [200, 201, 202, 203, 204]
    assert column(window, "over", 1) == [False, False, False, True, True, True, True]
    assert not window.over[:, [0, 2]].any()


@pytest.mark.parametrize(("capacity", "num_envs"), [(10, 1), (10, 2), (10, 3)])
def test_windows_go_on_where_the_ring_begins_anew(capacity: int, num_envs: int) -> None:
    replay = make_replay(capacity, num_envs)
    Player(replay).play(25)
    assert replay.count == 25 * num_envs
    assert replay.oldest == replay.count - capacity
    serials = np.arange(replay.oldest, replay.count)
    rows = serials % capacity
    assert replay.serials(rows).tolist() == serials.tolist()
    window = replay.windows(rows, 4)
    for trajectory, serial in enumerate(serials.tolist()):
        env, step = serial % num_envs, serial // num_envs
        assert real_rewards(window, trajectory) == [100 * env + later for later in range(step, min(step + 4, 25))]
        assert column(window, "rows", trajectory)[0] == rows[trajectory]


def test_what_was_overwritten_no_longer_ends_anything() -> None:
    """A ring's place keeps how its former step ended until the new one is written."""
    replay = make_replay(6)
    player = Player(replay)
    for _ in range(6):
        player.play(1, terminated=(0,))
    player.play(5)
    rows = np.arange(replay.oldest, replay.count) % 6
    window = replay.windows(rows, 4)
    assert real_rewards(window, 0) == [5]
    assert real_rewards(window, 1) == [6, 7, 8, 9]
    assert real_rewards(window, 5) == [10]
    assert column(window, "over", 5) == [False] * 4


# -- observations --------------------------------------------------------------------------------


def test_the_final_observation_of_an_episode_is_reached_and_the_next_one_is_observed() -> None:
    replay = make_replay(32)
    player = Player(replay)
    player.play(3, truncated=(0,))
    player.play(3, terminated=(0,))
    player.play(1)
    assert observed(replay, range(7))[:, 1].tolist() == [START, 1, 2, 3 + START, 4, 5, 6 + START]
    assert reached(replay, range(7))[:, 1].tolist() == [1, 2, 3 + FINAL, 4, 5, 6 + FINAL, 7]
    assert reached(replay, [[2], [5]]).shape == (2, 1, 2)
    assert replay.observed(np.arange(7))[1] is None  # nothing was ever illegal


def test_observations_are_those_of_their_environment_after_the_ring_wrapped() -> None:
    replay = make_replay(12, num_envs=2)
    player = Player(replay)
    for number in range(9):
        player.play(3, terminated=(number % 2,))
    serials = np.arange(replay.oldest, replay.count)
    before, after = observed(replay, serials % 12), reached(replay, serials % 12)
    assert before[:, 0].tolist() == (serials % 2).tolist()
    np.testing.assert_array_equal(np.floor(before[:, 1]), serials // 2)
    np.testing.assert_array_equal(np.floor(after[:, 1]), serials // 2 + 1)


def test_masks_come_with_the_observations_they_belong_to() -> None:
    replay = make_replay(40, num_envs=2)
    Player(replay, masked=True).play(6)
    rows = np.array([0, 3, 8, 11])
    masks = replay.observed(rows)[1]
    assert masks is not None
    window = replay.windows(rows, 1)
    assert masks.sum(1).tolist() == [1, 1, 1, 1]
    assert masks[np.arange(4), window.action[0]].all()


def test_stacked_observations_begin_with_their_episode() -> None:
    replay = TrajectoryReplay(
        spaces.Box(0, 100, (2, 1), np.float32),
        np.zeros(1, np.int64),
        UniformSampler(16),
        actions=ACTIONS,
        capacity=16,
        num_envs=1,
        stack=2,
    )
    frame = np.zeros((1, 2, 1), np.float32)
    replay.begin(frame)
    nothing = np.zeros(1, bool)
    for step in range(3):
        following = np.stack((frame[:, 1], frame[:, 1] + 1), axis=1)
        replay.add(np.zeros(1, np.int64), np.zeros(1), nothing, nothing, following, following)
        replay.add_search(np.full((1, ACTIONS), step), np.zeros(1), nothing, nothing)
        frame = following
    assert observed(replay, range(3))[:, :, 0].tolist() == [[0, 0], [0, 1], [1, 2]]
    assert reached(replay, range(3))[:, :, 0].tolist() == [[0, 1], [1, 2], [2, 3]]


# -- drawing -------------------------------------------------------------------------------------


def test_only_kept_steps_are_drawn_and_large_errors_more_often() -> None:
    replay = make_replay(8, prioritized=True)
    Player(replay).play(20)
    rows, weight = replay.draw(4000, 1.0, np.random.default_rng(0))
    assert set(rows.tolist()) == set(range(8))
    assert weight is not None
    assert weight.shape == rows.shape
    assert (weight == 1).all()
    replay.sampler.update(np.arange(8), np.array([1.0] + [0.0] * 7))
    rows, weight = replay.draw(4000, 1.0, np.random.default_rng(0))
    assert (rows == 0).mean() > 0.95
    assert weight is not None
    assert weight[rows == 0].max() < weight[rows != 0].min()


def test_uniform_draws_need_no_weights() -> None:
    replay = make_replay(8)
    Player(replay).play(8)
    assert replay.draw(4, 1.0, np.random.default_rng(0))[1] is None


# -- checkpoints and size --------------------------------------------------------------------------


def saved(replay: TrajectoryReplay) -> tuple[list[Any], dict[str, Any]]:
    ranges = replay.ranges_since((0, 0))
    return [(part, replay.rows(part)) for part in ranges], copy.deepcopy(replay.state_dict())


def test_a_restored_replay_has_the_same_windows_and_goes_on_alike() -> None:
    one, other = (make_replay(20, num_envs=2, prioritized=True) for _ in range(2))
    player = Player(one, masked=True)
    player.play(7, terminated=(0,))
    player.begin()
    player.play(5)
    one.sampler.update(np.arange(6), np.linspace(0, 3, 6))
    other.begin(np.zeros((2, 2), np.float32), np.ones((2, ACTIONS), bool))
    parts, state = saved(one)
    for part, rows in parts:
        other.restore_rows(part, rows)
    other.load_state_dict(state)
    twin = Player.__new__(Player)
    twin.replay, twin.masked, twin.steps = other, True, player.steps
    for source in (player, twin):
        source.play(2, truncated=(1,))
        source.play(1)
    rows = np.arange(one.oldest, one.count) % 20
    for ours, theirs in zip(one.windows(rows, 6), other.windows(rows, 6), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(observed(one, rows), observed(other, rows))
    np.testing.assert_array_equal(one.observed(rows)[1], other.observed(rows)[1])
    np.testing.assert_array_equal(reached(one, rows), reached(other, rows))
    draws = [replay.draw(64, 0.5, np.random.default_rng(3)) for replay in (one, other)]
    np.testing.assert_array_equal(draws[0][0], draws[1][0])
    np.testing.assert_array_equal(draws[0][1], draws[1][1])


def test_a_break_survives_a_checkpoint() -> None:
    one, other = make_replay(20), make_replay(20)
    player = Player(one)
    player.play(4)
    player.begin()
    player.play(4)
    parts, state = saved(one)
    for part, rows in parts:
        other.restore_rows(part, rows)
    other.load_state_dict(state)
    assert real_rewards(other.windows(np.array([2]), 5)) == [2, 3]


@pytest.mark.parametrize("capacity", [100, 1000])
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("actions", [2, 18])
def test_the_estimate_is_the_bytes_of_the_arrays(capacity: int, prioritized: bool, actions: int) -> None:
    action = np.zeros(3, np.int64)
    sampler: Sampler = UniformSampler(capacity)
    if prioritized:
        sampler = PrioritizedSampler(capacity, alpha=0.6, eps=1e-6)
    replay = TrajectoryReplay(SPACE, action, sampler, actions=actions, capacity=capacity, num_envs=3)
    size = ReplaySize.of(
        SPACE,
        action,
        num_envs=3,
        n_step=1,
        stack=1,
        prioritized=prioritized,
        hindsight=False,
        more_width=search_bytes(actions),
    )
    assert size.columns(capacity) + size.index(capacity) == large_arrays(replay, capacity)
    assert search_bytes(actions) == 4 * actions + 4 + 1  # policy, value, how the step ended
