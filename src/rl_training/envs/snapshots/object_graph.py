"""The state of environments that are Python objects all the way down, as plain data.

Some families (MiniGrid, popgym, highway-env, PettingZoo, the tasks of dm_control and Gymnasium-Robotics) keep their
state in objects of their own that refer to each other: a grid of cells, a deck of cards, vehicles on roads.
`take_graph` walks through all attributes and writes them down as a list of nodes with references between them, so that
an object in two places stays one object. Nothing is left out: a value that is neither plain data nor known makes the
whole unsavable.

`put_graph` fills a new environment. No code runs by a name in a file: classes are looked up among the modules that the
environment's own packages have loaded, and their objects are made without their constructors.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rl_training.envs.snapshots.generators import (
    generator_from_state,
    generator_state,
    random_state_from_parts,
    random_state_parts,
)
from rl_training.envs.snapshots.physics_state import find_simulation, put_simulation, take_simulation
from rl_training.errors import CheckpointError

_PLAIN = (bool, int, float, str)
_SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    functools.partial,
    np.ufunc,
    EnvSpec,
)
# Classes whose objects show an environment and change nothing in it.
_VIEWERS = ("gymnasium.envs.mujoco.mujoco_rendering:MujocoRenderer",)
_PICTURES = "pygame"  # likewise all of this package
_MODEL = "mujoco._structs:MjModel"  # saved with the simulation that it belongs to
_REF = "ref"


class Unsavable(Exception):
    """A value that cannot be written down as plain data."""


def take_graph(root: Any, packages: frozenset[str], left_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the state of an object and of all that it refers to; raises `Unsavable`.

    Objects of `packages` may be in it. Attributes of the root that are `left_out` are not.
    """
    writer = _Writer(packages)
    writer.write(root, left_out)
    return {"nodes": writer.nodes}


def put_graph(root: Any, state: dict[str, Any], packages: frozenset[str]) -> None:
    """Restore the state of an object that was made like the saved one."""
    try:
        _Reader(state["nodes"], packages).read({_REF: 0}, root)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint's environment cannot be restored ({type(error).__name__}: {error!s:.200}): resume with "
            "the same environment, wrappers and package versions"
        ) from error


class _Writer:
    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages
        self.nodes: list[Any] = []
        self._places: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no address is used twice

    def write(self, value: Any, left_out: frozenset[str] = frozenset()) -> Any:
        """Return a plain value, or a reference to the node of a value."""
        if value is None or type(value) in _PLAIN:
            return value
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self.nodes)
            self._alive.append(value)
            self.nodes.append(None)
            self.nodes[place] = self._node(value, left_out)
        return {_REF: place}

    def _node(self, value: Any, left_out: frozenset[str]) -> dict[str, Any]:
        kind = type(value)
        if kind.__name__ in _SEQUENCES and kind.__module__ == "builtins":
            return {"kind": kind.__name__, "items": [self.write(part) for part in value]}
        if kind is deque:
            return {"kind": "deque", "items": [self.write(part) for part in value], "longest": value.maxlen}
        if kind is dict or kind is OrderedDict:
            pairs = [[self.write(key), self.write(part)] for key, part in value.items()]
            return {"kind": "dict" if kind is dict else "ordered_dict", "pairs": pairs}
        if kind is np.ndarray:
            return _array_node(value)
        if isinstance(value, np.generic):
            return {"kind": "number", "array": np.array(value)}
        if kind is np.random.Generator:
            return {"kind": "generator", "state": _copied(generator_state(value))}
        if kind is np.random.RandomState:
            return {"kind": "random_state", "parts": random_state_parts(value)}
        if isinstance(value, gym.Space):
            return {"kind": "space", "generator": _space_state(value)}
        if isinstance(value, enum.Enum) and self._is_own(kind):
            return {"kind": "member", "class": _name(kind), "name": value.name}
        if isinstance(value, type):
            return {"kind": "class", "class": _name(value)} if self._is_own(value) else _kept(value)
        if isinstance(value, _FUNCTIONS) or _name(kind) in (*_VIEWERS, _MODEL) or _package(kind) == _PICTURES:
            return _kept(value)
        return self._object_node(value, left_out)

    def _object_node(self, value: Any, left_out: frozenset[str]) -> dict[str, Any]:
        kind = type(value)
        simulation = find_simulation(value)
        if simulation is not None:
            return {"kind": "simulation", "class": _name(kind), "state": take_simulation(*simulation)}
        if not self._is_own(kind) or not _is_simple(kind):
            raise Unsavable(f"{_name(kind)} has no plain form")
        attributes = {name: self.write(part) for name, part in vars(value).items() if name not in left_out}
        return {"kind": "object", "class": _name(kind), "attributes": attributes}

    def _is_own(self, kind: type) -> bool:
        return _package(kind) in self.packages


class _Reader:
    """Makes the values of a list of nodes; `there` is what the new environment has in the same place."""

    def __init__(self, nodes: list[Any], packages: frozenset[str]) -> None:
        self._nodes = nodes
        self._packages = packages
        self._made: dict[int, Any] = {}
        self._taken: set[int] = set()  # objects of the new environment that a node has filled

    def read(self, value: Any, there: Any = None) -> Any:
        if not isinstance(value, dict):
            return value
        place = value[_REF]
        if place not in self._made:
            self._build(place, self._nodes[place], there)
        return self._made[place]

    def _build(self, place: int, node: dict[str, Any], there: Any) -> None:
        kind = node["kind"]
        if kind in ("list", "tuple", "set", "frozenset", "deque"):
            self._build_sequence(place, node, there)
        elif kind in ("dict", "ordered_dict"):
            made: dict[Any, Any] = self._made.setdefault(place, {} if kind == "dict" else OrderedDict())
            others = there if isinstance(there, dict) else {}
            for written, part in node["pairs"]:
                key = self.read(written)
                made[key] = self.read(part, others.get(key))
        elif kind == "object":
            self._build_object(place, node, there)
        elif kind == "simulation":
            simulation = find_simulation(there)
            if simulation is None or _name(type(there)) != node["class"]:
                raise ValueError(f"a {node['class']} is missing")
            put_simulation(*simulation, node["state"])
            self._made[place] = there
        else:
            self._made[place] = self._single(node, there)

    def _build_sequence(self, place: int, node: dict[str, Any], there: Any) -> None:
        kind, items = node["kind"], node["items"]
        others = list(there) if isinstance(there, (list, tuple, deque)) else []
        others += [None] * (len(items) - len(others))
        if kind in ("list", "deque"):  # made first: an item may refer to it
            made: Any = [] if kind == "list" else deque(maxlen=node["longest"])
            self._made[place] = made
            made.extend(self.read(item, other) for item, other in zip(items, others, strict=False))
            return
        parts = [self.read(item, other) for item, other in zip(items, others, strict=False)]
        self._made[place] = _SEQUENCES[kind](parts)

    def _build_object(self, place: int, node: dict[str, Any], there: Any) -> None:
        kind = self._class(node["class"])
        if type(there) is kind and id(there) not in self._taken:
            made = there
        elif _is_simple(kind):
            made = object.__new__(kind)
        else:
            raise ValueError(f"{node['class']} cannot be made")
        self._made[place] = made
        self._taken.add(id(made))
        values = vars(made)
        for name, part in node["attributes"].items():
            values[name] = self.read(part, values.get(name))

    def _single(self, node: dict[str, Any], there: Any) -> Any:
        kind = node["kind"]
        if kind == "array":
            return np.array(node["array"])
        if kind == "texts":
            return np.array(node["items"], dtype=node["dtype"]).reshape(node["shape"])
        if kind == "number":
            return np.asarray(node["array"])[()]
        if kind == "generator":
            return generator_from_state(node["state"])
        if kind == "random_state":
            return random_state_from_parts(node["parts"])
        if kind == "member":
            return self._class(node["class"])[node["name"]]  # type: ignore[index]
        if kind == "class":
            return self._class(node["class"])
        if kind == "space" and isinstance(there, gym.Space):
            _restore_space(there, node["generator"])
            return there
        if kind == "kept" and _name(type(there)) == node["class"]:
            return there
        raise ValueError(f"a {kind} of the environment is missing")

    def _class(self, name: str) -> type:
        """Return a class of the environment's packages by its name, if its module is loaded."""
        module, _, qualified = name.partition(":")
        if module.partition(".")[0] not in self._packages or module not in sys.modules:
            raise ValueError(f"there is no class {name!s:.200} in this environment")
        found: Any = sys.modules[module]
        for part in qualified.split("."):
            found = vars(found)[part]
        if not isinstance(found, type):
            raise ValueError(f"{name!s:.200} is no class")
        return found


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _is_simple(kind: type) -> bool:
    """Return whether the attributes of an object are all of its state."""
    return kind.__new__ is object.__new__ and not any(vars(base).get("__slots__") for base in kind.__mro__)


def _kept(value: Any) -> dict[str, Any]:
    """Return the node of a value that every environment of this kind has in the same place."""
    return {"kind": "kept", "class": _name(type(value))}


def _array_node(value: np.ndarray) -> dict[str, Any]:
    if value.dtype.kind in "US":
        return {"kind": "texts", "dtype": value.dtype.str, "shape": list(value.shape), "items": value.ravel().tolist()}
    if value.dtype.kind not in "biuf":
        raise Unsavable(f"an array of {value.dtype} has no plain form")
    owner = value
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner.base is not None and not isinstance(owner.base, (bytes, bytearray, memoryview)):
        raise Unsavable("an array shows memory that is not Python's")
    return {"kind": "array", "array": value.copy()}


def _space_state(space: gym.Space[Any]) -> dict[str, Any] | None:
    """Return the generator of a space, which an environment may draw from; None if it was never used."""
    generator = space._np_random
    return None if generator is None else _copied(generator_state(generator))


def _restore_space(space: gym.Space[Any], state: dict[str, Any] | None) -> None:
    target: Any = space  # Gymnasium makes the generator when it is first asked for
    target._np_random = None if state is None else generator_from_state(state)


def _copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copied(part) for key, part in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else state
