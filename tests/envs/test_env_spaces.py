"""Spaces survive strict JSON, and each observation space has one kind."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from harness import tiny_config
from rl_training.envs.spaces import (
    image_layout,
    image_read_as_vector,
    observation_kind,
    space_from_json,
    space_to_json,
)
from rl_training.errors import CheckpointError
from rl_training.experiment.tasks import tasks_of
from rl_training.runtime.setup.task_setup import TaskSetup

BOOL: Any = np.bool_  # which Gymnasium takes and its annotations leave out
SPACES: list[gym.Space[Any]] = [
    Box(-1, 1, (3,), np.float32),
    Box(-np.inf, np.inf, (2, 2), np.float64),
    Box(np.array([-4.8, -np.inf, 0.1], np.float32), np.array([4.8, np.inf, 0.7], np.float32)),
    Box(0, 255, (4, 84, 84), np.uint8),
    Box(0, 1, (10, 10, 4), BOOL),
    Box(0, 1, (), np.float32),
    Box(np.array([-(2**62), 0]), np.array([2**62, 1]), dtype=np.int64),
    Discrete(5),
    Discrete(3, start=-1),
    MultiDiscrete([3, 4]),
    MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [0, 2]])),
    MultiBinary(4),
    MultiBinary([2, 3]),
    Dict({"b": Discrete(2), "a": Box(-1, 1, (2,))}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_space_survives_strict_json(space: gym.Space[Any]) -> None:
    data = json.loads(json.dumps(space_to_json(space), allow_nan=False, sort_keys=True))
    restored = space_from_json(data)
    assert restored == space
    assert restored.dtype == space.dtype


def test_order_of_dict_keys_survives() -> None:
    space = Dict(OrderedDict([("z", Discrete(2)), ("a", Discrete(3))]))
    restored = space_from_json(json.loads(json.dumps(space_to_json(space), sort_keys=True)))
    assert isinstance(restored, Dict)
    assert list(restored.spaces) == ["z", "a"]


def test_uniform_bounds_are_stored_once() -> None:
    data = space_to_json(Box(0, 255, (4, 84, 84), np.uint8))
    assert (data["low"], data["high"]) == (0, 255)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (Box(-1, 1, (3,)), "vector"),
        (Box(-1, 1, (4, 3)), "vector"),
        (Box(0, 255, (128,), np.uint8), "vector"),
        (Discrete(7), "vector"),
        (MultiDiscrete([2, 2]), "vector"),
        (Box(0, 255, (84, 84), np.uint8), "image"),
        (Box(0, 255, (4, 84, 84), np.uint8), "image"),
        (Box(0, 255, (3, 3), np.uint8), "image"),
        (Box(0, 1, (10, 10, 4), BOOL), "image"),
        (Box(0, 1, (4, 10, 10), BOOL), "image"),
        (Box(0, 1, (2, 2, 4), BOOL), "vector"),  # too small for convolutions
        (Box(0, 1, (10, 10), BOOL), "vector"),
        (Box(0, 1, (10, 10, 4), np.int8), "vector"),
        (MultiBinary([10, 10, 4]), "vector"),
        (Dict({"a": Box(0, 255, (84, 84), np.uint8)}), "dict"),
    ],
    ids=str,
)
def test_observation_kind(space: gym.Space[Any], kind: str) -> None:
    assert observation_kind(space) == kind


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((84, 80), (1, 84, 80, None)),
        ((4, 84, 80), (4, 84, 80, "first")),
        ((84, 80, 3), (3, 84, 80, "last")),
        ((10, 10, 10), (10, 10, 10, "last")),
        ((5, 5, 8), (8, 5, 5, "last")),
    ],
)
def test_channels_come_first_only_where_that_axis_is_the_shortest(shape: tuple[int, ...], layout: Any) -> None:
    assert image_layout(shape) == layout


@pytest.mark.parametrize(
    "data", [{"type": "Sphere"}, {"type": "Box"}, {}, {"type": "Discrete", "n": -1, "start": 0, "dtype": "int64"}]
)
def test_a_damaged_description_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        space_from_json(data)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (gym.spaces.Box(0, 1, (84, 84, 3), np.float32), "of an image, (84, 84, 3), and is read as a vector of 21168"),
        (gym.spaces.Box(0, 1, (4, 84, 84), np.float64), "because it is of float64; to have convolutions read it, give"),
        (gym.spaces.Dict({"eye": gym.spaces.Box(0, 1, (8, 8, 1))}), "entry `eye`: the observation has the shape"),
        (gym.spaces.Box(0, 255, (84, 84, 3), np.uint8), None),
        (gym.spaces.Box(0, 1, (10, 10, 4), BOOL), None),
        (gym.spaces.Box(0, 1, (84, 84), np.float32), None),
        (gym.spaces.Box(0, 1, (20, 3, 3), np.float32), None),
        (gym.spaces.Discrete(3), None),
    ],
)
def test_an_array_that_looks_like_an_image_and_is_read_as_a_vector_is_known(space: Any, said: str | None) -> None:
    oddity = image_read_as_vector(space)
    assert (oddity is None) if said is None else (oddity is not None and said in oddity)


class _Eye(gym.Env[Any, Any]):
    observation_space = Box(0, 1, (16, 16, 3), np.float32)
    action_space = Discrete(2)


def test_a_run_says_once_that_it_reads_an_image_as_a_vector(caplog: Any) -> None:
    gym.register("Test/Eye-v0", entry_point=cast("Any", _Eye))
    config = tiny_config(Path("runs"), env_id="Test/Eye-v0")
    (task,) = tasks_of(config)
    TaskSetup(task, config, None).make_env(gamma=0.9).close()
    assert caplog.text.count("Test/Eye-v0: the observation has the shape of an image, (16, 16, 3), and is read as") == 1
