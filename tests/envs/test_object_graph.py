"""Objects that refer to each other are saved as plain data and restored without running any code."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict, deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.snapshots.object_graph import Unsavable, put_graph, take_graph
from rl_training.errors import CheckpointError

HERE = frozenset({__name__})
made: list[str] = []


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Thing:
    """An object with any attributes; its constructor leaves a trace."""

    def __init__(self, **values: Any) -> None:
        made.append("constructor")
        vars(self).update(values)

    def __setstate__(self, state: Any) -> None:
        made.append("setstate")


class Slotted:
    """An object without a dict of attributes."""

    __slots__ = ("value",)


class Listed(list[int]):
    """A list with more state than its items."""


def _restored(thing: Thing, fresh: Thing) -> Any:
    state = take_graph(thing, HERE)
    put_graph(fresh, state, HERE)
    return fresh


def test_every_kind_of_value_comes_back() -> None:
    values: dict[str, Any] = {
        "plain": [None, True, 3, 2.5, "text", float("inf")],
        "tuple": (1, (2, 3)),
        "set": {1, 2},
        "frozen": frozenset({4}),
        "deque": deque([1, 2], maxlen=5),
        "dict": {(1, 2): "cell", "key": [1]},
        "ordered": OrderedDict(b=1, a=2),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "words": np.array([["a", "bc"]]),
        "number": np.float32(0.1),
        "member": Colour.BLUE,
        "class": Thing,
    }
    fresh = _restored(Thing(**values), Thing())
    for name, value in values.items():
        found = getattr(fresh, name)
        assert type(found) is type(value)
        np.testing.assert_equal(found, value)
    assert fresh.deque.maxlen == 5
    assert fresh.array.dtype == np.int16
    assert list(fresh.ordered) == ["b", "a"]


def test_an_object_in_two_places_stays_one_and_two_equal_ones_stay_two() -> None:
    shared, twin = Thing(mark=1), Thing(mark=1)
    fresh = _restored(Thing(here=shared, there=[shared], other=twin), Thing())
    assert fresh.here is fresh.there[0]
    assert fresh.here is not fresh.other


def test_objects_that_are_one_in_the_new_environment_are_parted_again() -> None:
    same = Thing(mark=0)
    fresh = _restored(Thing(one=Thing(mark=1), two=Thing(mark=2)), Thing(one=same, two=same))
    assert (fresh.one.mark, fresh.two.mark) == (1, 2)


def test_circles_of_references_come_back() -> None:
    root: Any = Thing()
    root.child = Thing(parent=root)
    root.itself = [root]
    fresh = _restored(root, Thing())
    assert fresh.child.parent is fresh
    assert fresh.itself[0] is fresh


def test_generators_continue_and_stay_shared() -> None:
    generator, legacy = np.random.default_rng(3), np.random.RandomState(4)
    legacy.normal()  # leaves a second number for later
    original = Thing(generator=generator, same=generator, legacy=legacy)
    fresh = _restored(original, Thing())
    assert fresh.generator is fresh.same
    assert fresh.generator is not generator
    assert fresh.generator.random() == generator.random()
    assert [fresh.legacy.normal() for _ in range(3)] == [legacy.normal() for _ in range(3)]


def test_spaces_and_functions_stay_those_of_the_new_environment() -> None:
    def function() -> None: ...

    def other() -> None: ...

    space, own = gym.spaces.Discrete(1000, seed=1), gym.spaces.Discrete(1000, seed=2)
    fresh = _restored(Thing(space=space, call=function), Thing(space=own, call=other))
    assert fresh.space is own
    assert fresh.call is other
    assert own.sample() == space.sample()


def test_what_is_saved_does_not_follow_the_original_and_is_strict_json_beside_arrays() -> None:
    root: Any = Thing(array=np.zeros(2), items=[1])
    state = take_graph(root, HERE)
    root.array[0] = 5
    root.items.append(2)
    json.dumps(state, default=lambda value: value.tolist(), allow_nan=False)
    fresh: Any = Thing()
    put_graph(fresh, state, HERE)
    assert fresh.array[0] == 0
    assert fresh.items == [1]


def test_no_constructor_and_no_hook_of_a_class_runs() -> None:
    state = take_graph(Thing(child=Thing()), HERE)
    fresh = Thing()
    made.clear()
    put_graph(fresh, state, HERE)
    assert made == []


@pytest.mark.parametrize(
    "value",
    [Slotted(), Listed([1]), iter([1]), np.array([object()]), json.JSONDecoder(), 1j],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_plain_form_makes_the_whole_unsavable(value: Any) -> None:
    with pytest.raises(Unsavable):
        take_graph(Thing(value=value), HERE)


@pytest.mark.parametrize(
    "node",
    [
        {"kind": "object", "class": "subprocess:Popen", "attributes": {}},
        {"kind": "class", "class": "os:system"},
        {"kind": "member", "class": "os:system", "name": "RED"},
        {"kind": "object", "class": f"{__name__}:made", "attributes": {}},
        {"kind": "object", "class": f"{__name__}:np.random.RandomState", "attributes": {}},
        {"kind": "object", "class": f"{__name__}:Slotted", "attributes": {}},
        {"kind": "kept", "class": "builtins:function"},
        {"kind": "space", "generator": None},
        {"kind": "simulation", "class": "mujoco._structs:MjData", "state": {}},
        {"kind": "generator", "state": {"bit_generator": "os"}},
        {"kind": "unknown"},
        {},
        {"kind": "list", "items": [{"ref": 99}]},
    ],
)
def test_a_file_cannot_name_anything_else(node: dict[str, Any]) -> None:
    root = {"kind": "object", "class": f"{__name__}:Thing", "attributes": {"value": {"ref": 1}}}
    with pytest.raises(CheckpointError):
        put_graph(Thing(), {"nodes": [root, node]}, HERE)
