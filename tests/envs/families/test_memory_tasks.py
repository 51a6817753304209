"""Tasks that need a memory: what they hide, and the maze by hand."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training.envs.lookup import find_spec
from rl_training.envs.memory_tasks import COST, LENGTH, TMaze
from rl_training.envs.snapshots import snapshot
from rl_training.errors import ConfigError, EnvironmentFailure

PREFIX = "rl_training.envs.memory_tasks:"
HIDDEN = {"CartPole-v1": [1, 3], "Pendulum-v1": [2], "MountainCarContinuous-v0": [1]}
TASKS = [name.replace("-v", "NoVel-v") for name in HIDDEN] + ["TMaze-v0"]


def make(name: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(find_spec(PREFIX + name), **arguments)


@pytest.mark.parametrize("name", TASKS)
def test_it_is_an_environment_as_gymnasium_wants_it(name: str) -> None:
    check_env(make(name).unwrapped if name == "TMaze-v0" else make(name), skip_render_check=True)


@pytest.mark.parametrize("known", HIDDEN)
def test_only_velocities_are_left_out(known: str) -> None:
    whole, part = gymnasium.make(known), make(known.replace("-v", "NoVel-v"))
    kept = [index for index in range(whole.observation_space.shape[0]) if index not in HIDDEN[known]]  # type: ignore[index]
    seen, less = whole.reset(seed=3)[0], part.reset(seed=3)[0]
    whole.action_space.seed(1)
    for _ in range(8):
        np.testing.assert_array_equal(less, seen[kept])
        action = whole.action_space.sample()
        (seen, reward, *_), (less, same, *_) = whole.step(action), part.step(action)
        assert reward == same
    assert part.spec is not None
    assert whole.spec is not None
    assert part.spec.max_episode_steps == whole.spec.max_episode_steps


@pytest.mark.parametrize("name", TASKS)
def test_a_snapshot_continues_identically(name: str) -> None:
    one, other = make(name), make(name)
    one.reset(seed=5)
    other.reset(seed=6)
    one.action_space.seed(2)
    for _ in range(4):
        one.step(one.action_space.sample())
    saved = snapshot.take(one)
    assert saved is not None
    snapshot.put(other, saved)
    for _ in range(6):
        action = one.action_space.sample()
        first, second = one.step(action), other.step(action)
        np.testing.assert_array_equal(first[0], second[0])
        assert first[1:4] == second[1:4]


def test_the_sign_shows_the_way_and_only_at_the_beginning() -> None:
    for seed in range(6):
        maze = TMaze(length=3)
        observation, _ = maze.reset(seed=seed)
        sign = observation[0]
        assert sign in (-1.0, 1.0)
        for place in range(1, 4):
            observation, reward, ended, _, _ = maze.step(1)
            assert (reward, ended) == (0.0, False)
            assert observation.tolist() == [0.0, float(place == 3)]
        up = 0 if sign == 1 else 2
        assert maze.step(up)[1:3] == (1.0, True)


def test_the_wrong_way_and_steps_that_do_not_lead_on_cost() -> None:
    maze = TMaze(length=2)
    observation, _ = maze.reset(seed=0)
    assert maze.step(0)[1] == -COST  # against the wall
    maze.step(1)
    assert maze.step(3)[1] == -COST  # back
    maze.step(1)
    maze.step(1)
    assert maze.step(1)[1] == -COST  # on, at the end
    wrong = 2 if observation[0] == 1 else 0
    _, reward, ended, _, info = maze.step(wrong)
    assert (reward, ended, info) == (-COST, True, {"metrics": {"success": 0.0}})


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match="must be an integer >= 1"):
        TMaze(length=0)
    with pytest.raises(EnvironmentFailure, match="choose one of 0 up"):
        TMaze().step(4)
    assert TMaze().length == LENGTH
