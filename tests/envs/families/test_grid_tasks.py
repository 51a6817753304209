"""The grid task: its rules by hand, what players earn on it, pictures, and exact snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training.envs.grid_tasks import Cell, KeyDoor
from rl_training.envs.make import inspect_environment, make_slots
from rl_training.envs.spaces import observation_kind
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.tasks import tasks_of

KEY_DOOR = "rl_training.envs.grid_tasks:KeyDoor-v0"
UP, RIGHT, DOWN, LEFT = range(4)
STEP_LIMIT = 50


def placed(agent: Cell, key: Cell | None, door: Cell) -> KeyDoor:
    env = KeyDoor()
    env.reset(seed=1)
    env.load_state_dict({"agent": agent, "key": key, "door": door})
    return env


def cells(observation: np.ndarray) -> list[list[list[int]]]:
    """Return the occupied cells of the agent's, the key's and the door's board."""
    return [np.argwhere(observation[:, :, channel]).tolist() for channel in range(3)]


# -- rules -----------------------------------------------------------------------------------------


def test_an_episode_by_hand() -> None:
    env = placed(agent=(1, 1), key=(1, 2), door=(3, 2))
    observation, reward, terminated, truncated, _ = env.step(UP)
    assert cells(observation) == [[[0, 1]], [[1, 2]], [[3, 2]]]
    assert (reward, terminated, truncated) == (-0.01, False, False)
    assert cells(env.step(RIGHT)[0]) == [[[0, 2]], [[1, 2]], [[3, 2]]]
    assert cells(env.step(DOWN)[0]) == [[[1, 2]], [], [[3, 2]]]  # the key is taken
    assert cells(env.step(LEFT)[0]) == [[[1, 1]], [], [[3, 2]]]  # and does not stay behind
    assert cells(env.step(DOWN)[0]) == [[[2, 1]], [], [[3, 2]]]
    assert env.step(DOWN)[1:3] == (-0.01, False)
    observation, reward, terminated, truncated, _ = env.step(RIGHT)
    assert cells(observation) == [[[3, 2]], [], [[3, 2]]]
    assert (reward, terminated, truncated) == (0.99, True, False)


def test_the_door_without_the_key_is_an_ordinary_cell() -> None:
    env = placed(agent=(0, 0), key=(0, 2), door=(0, 1))
    observation, reward, terminated, *_ = env.step(RIGHT)
    assert cells(observation) == [[[0, 1]], [[0, 2]], [[0, 1]]]
    assert (reward, terminated) == (-0.01, False)
    assert env.step(RIGHT)[1:3] == (-0.01, False)
    assert env.step(LEFT)[1:3] == (0.99, True)


@pytest.mark.parametrize(("corner", "blocked"), [((0, 0), (UP, LEFT)), ((4, 4), (DOWN, RIGHT)), ((0, 4), (UP, RIGHT))])
def test_a_move_against_the_edge_does_nothing_but_cost(corner: Cell, blocked: tuple[int, int]) -> None:
    env = placed(agent=corner, key=(2, 2), door=(3, 3))
    for action in blocked:
        observation, reward, terminated, *_ = env.step(action)
        assert cells(observation) == [[list(corner)], [[2, 2]], [[3, 3]]]
        assert (reward, terminated) == (-0.01, False)


def test_an_unknown_action_is_refused() -> None:
    env = placed(agent=(0, 0), key=(2, 2), door=(3, 3))
    for action in (-1, 4):
        with pytest.raises(EnvironmentFailure, match=f"KeyDoor: {action} is no action; choose one of 0 up, 1 right"):
            env.step(action)


def test_the_three_cells_differ_and_every_cell_is_drawn() -> None:
    env = KeyDoor(size=3)
    env.reset(seed=1)
    drawn = []
    for _ in range(300):
        agent, key, door = (tuple(board[0]) for board in cells(env.reset()[0]))
        drawn.append((agent, key, door))
        assert len({agent, key, door}) == 3
    for role in range(3):
        assert len({triple[role] for triple in drawn}) == 9


def test_an_episode_is_cut_off_after_fifty_steps() -> None:
    env = gym.make(KEY_DOOR)
    env.reset(seed=1)
    env.unwrapped.load_state_dict({"agent": (0, 0), "key": (4, 4), "door": (4, 3)})  # type: ignore[attr-defined]
    ends = [env.step(UP)[2:4] for _ in range(STEP_LIMIT)]
    assert ends == [(False, False)] * 49 + [(False, True)]


# -- the package's view and Gymnasium's --------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5, 8])
def test_the_package_sees_a_small_image_and_four_actions(size: int) -> None:
    training, evaluation = inspect_environment(KEY_DOOR, {"size": size})
    assert training == evaluation
    assert isinstance(training.observation_space, gym.spaces.Box)
    assert (training.observation_space.shape, training.observation_space.dtype) == ((size, size, 3), np.bool_)
    assert observation_kind(training.observation_space) == "image"
    assert training.action_space == gym.spaces.Discrete(4)
    assert not training.turn_taking


@pytest.mark.parametrize("size", [2, -5, 5.0, True, "5"])
def test_a_board_of_another_size_is_refused_with_the_repair(size: Any) -> None:
    with pytest.raises(ConfigError, match=rf"env_kwargs.size: must be an integer >= 3, got {size!r}"):
        inspect_environment(KEY_DOOR, {"size": size})


def test_gymnasium_finds_nothing_to_complain_of() -> None:
    check_env(gym.make(KEY_DOOR, render_mode="rgb_array").unwrapped)


def test_a_picture_shows_agent_key_and_door_and_who_carries_the_key() -> None:
    env = placed(agent=(0, 0), key=(0, 1), door=(4, 4))
    before = env.render()
    assert (before.shape, before.dtype) == ((160, 160, 3), np.uint8)
    looks = {tuple(before[row * 32 + 16, column * 32 + 16]) for row, column in [(0, 0), (0, 1), (4, 4), (2, 2)]}
    assert len(looks) == 4
    env.step(RIGHT)
    after = env.render()
    assert (after[:32, :32] == before[64:96, 64:96]).all()  # the floor where the agent was
    assert (after[16, 48] == before[16, 48]).all()  # the key's colour, now on the agent
    assert (after[8, 40] == before[8, 8]).all()


# -- what players earn -----------------------------------------------------------------------------


def returns_of(choose: Callable[[np.ndarray], int], episodes: int) -> np.ndarray:
    env = gym.make(KEY_DOOR)
    returns = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(choose(observation))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return np.array(returns)


def shortest_path(observation: np.ndarray) -> int:
    """Walk to the key, then to the door: rows first."""
    agent, key, door = cells(observation)
    (row, column), (goal_row, goal_column) = agent[0], (key or door)[0]
    if row != goal_row:
        return DOWN if row < goal_row else UP
    return RIGHT if column < goal_column else LEFT


def random_return(size: int = 5, *, corners: bool = False) -> float:
    """Return what random moves earn in expectation, by dynamic programming over the steps that are left."""
    count = size**2
    walk = np.zeros((count, count))
    for cell in range(count):
        row, column = divmod(cell, size)
        for down, right in ((-1, 0), (0, 1), (1, 0), (0, -1)):
            inside = 0 <= row + down < size and 0 <= column + right < size
            walk[cell, cell + down * size + right if inside else cell] += 0.25
    doors, keys = np.eye(count, dtype=bool), np.eye(count, dtype=bool)[:, :, None]
    carrying = np.zeros((count, count))  # [agent, door]
    searching = np.zeros((count, count, count))  # [agent, key, door]
    for _ in range(STEP_LIMIT):
        arrived = np.where(keys, carrying[:, None, :], searching)
        searching = np.einsum("ab,bkd->akd", walk, arrived) - 0.01
        carrying = walk @ np.where(doors, 1.0, carrying) - 0.01
    if corners:
        return float(searching[1:-1, 0, -1].mean())
    agent, key, door = np.indices(searching.shape)
    return float(searching[(agent != key) & (key != door) & (agent != door)].mean())


def test_the_shortest_path_earns_fourteen_fifteenths() -> None:
    # Two different cells of a 5x5 board are 10/3 steps apart on average, and there are two such walks.
    returns = returns_of(shortest_path, episodes=600)
    assert returns.mean() == pytest.approx(1 - 0.01 * 20 / 3, abs=4 * returns.std() / np.sqrt(600))
    assert returns.min() >= 1 - 0.01 * 16


def test_random_moves_earn_what_their_expectation_says() -> None:
    generator = np.random.default_rng(1)
    returns = returns_of(lambda _: int(generator.integers(4)), episodes=600)
    expected = random_return()
    assert expected == pytest.approx(-0.18101, abs=1e-5)
    assert returns.mean() == pytest.approx(expected, abs=4 * returns.std() / np.sqrt(600))


def test_with_corners_the_key_is_in_the_first_and_the_door_in_the_last_cell() -> None:
    env = gym.make(KEY_DOOR, size=4, corners=True)
    agents = set()
    for seed in range(200):
        agent, key, door = cells(env.reset(seed=seed)[0])
        assert (key, door) == ([[0, 0]], [[3, 3]])
        agents.add(tuple(agent[0]))
    assert len(agents) == 14
    # What the presets of ScaleZero say of it.
    assert random_return(4, corners=True) == pytest.approx(-0.253, abs=5e-4)
    for name in ("scalezero-classic", "scalezero-pair"):
        assert tasks_of(load_config(preset=name))[-1].random_return == -0.253


# -- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("moves_before", [0, 7, 40, 70])
def test_a_restored_environment_goes_on_as_the_original_does(moves_before: int) -> None:
    original, fresh = (make_slots(KEY_DOOR, {}, mode="training", count=1)[0] for _ in range(2))
    generator = np.random.default_rng(1)
    original.reset(5)
    for _ in range(moves_before):
        step = original.step(int(generator.integers(4)))
        if step.terminated or step.truncated:
            original.reset()
    state = original.snapshot()
    assert state is not None
    fresh.restore(json.loads(json.dumps(state)))
    ends = {"terminated": 0, "truncated": 0}
    while not all(ends.values()):
        action = int(generator.integers(4))
        step, twin = original.step(action), fresh.step(action)
        np.testing.assert_equal(twin, step)
        ends["terminated"] += step.terminated
        ends["truncated"] += step.truncated
        if step.terminated or step.truncated:
            np.testing.assert_equal(fresh.reset(), original.reset())


@pytest.mark.parametrize("key", [(1, 0), None])
def test_a_snapshot_knows_whether_the_key_is_taken(key: Cell | None) -> None:
    state = json.loads(json.dumps(placed(agent=(0, 0), key=key, door=(0, 1)).state_dict()))
    restored = KeyDoor()
    restored.load_state_dict(state)
    assert restored.step(RIGHT)[2] is (key is None)
