"""Spaces in the JSON of Minari's metadata, which somebody else may have written."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.envs.spaces import unsupported_action, unsupported_observation
from rl_training.errors import DatasetError
from rl_training.experiment.storage.untrusted import parse_json

MAX_ENTRIES = 1 << 24
"""Largest number of entries of one observation or action."""
_MAX_AXES = 8


def space_to_text(space: Space[Any]) -> str:
    """Return a space as Minari writes it into its metadata."""
    return json.dumps(_to_json(space))


def _to_json(space: Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        choices = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": str(space.dtype), **choices}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(size) for size in space.n]}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "subspaces": {key: _to_json(part) for key, part in space.items()}}
    raise TypeError(f"{type(space).__name__} has no JSON form")


def observation_space_from_text(text: Any, name: str) -> Space[Any]:
    """Return the observation space in a dataset's metadata; `name` is the dataset in messages."""
    space = _from_text(text, f"{name}: its observation space")
    fault = unsupported_observation(space)
    if fault is not None:
        raise DatasetError(f"{name}: its observations cannot be learned from: {fault}")
    return space


def action_space_from_text(text: Any, name: str) -> Space[Any]:
    """Return the action space in a dataset's metadata; `name` is the dataset in messages."""
    space = _from_text(text, f"{name}: its action space")
    fault = unsupported_action(space)
    if fault is not None:
        raise DatasetError(f"{name}: its actions cannot be learned from: {fault}")
    return space


def _from_text(text: Any, place: str) -> Space[Any]:
    if not isinstance(text, str):
        raise DatasetError(f"{place} is not in its metadata; open it with Minari and save it with its spaces")
    try:
        # Minari writes infinite bounds as `Infinity`, which NumPy reads as text.
        return _from_json(parse_json(text, place, constant=str))
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError, AttributeError) as error:
        raise DatasetError(f"{place} cannot be read: {' '.join(str(error).split())[:200]}") from error


def _from_json(data: Any) -> Space[Any]:
    kind = data["type"]
    if kind == "Box":
        shape, dtype = _shape(data["shape"]), _dtype(data["dtype"])
        return spaces.Box(_bound(data["low"], shape, dtype), _bound(data["high"], shape, dtype), shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(_count(data["n"]), start=_integer(data.get("start", 0)))
    if kind == "MultiDiscrete":
        nvec = np.array(data["nvec"], np.int64)
        _shape(list(nvec.shape))
        start = np.array(data.get("start", np.zeros_like(nvec)), np.int64)
        return spaces.MultiDiscrete(nvec, dtype=_dtype(data["dtype"]).type, start=start)
    if kind == "MultiBinary":
        n = data["n"]
        return spaces.MultiBinary(list(_shape(n)) if isinstance(n, list) else _count(n, MAX_ENTRIES))
    if kind == "Dict":
        return spaces.Dict(
            [(key, _from_json(part)) for key, part in data["subspaces"].items()]
        )  # pairs keep their order
    if kind == "Tuple":
        return spaces.Tuple([_from_json(part) for part in data["subspaces"]])
    if kind == "Text":
        return spaces.Text(1)  # refused by its type
    raise ValueError(f"unknown type `{kind!s:.60}`")


def _bound(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    bound = np.array(data, dtype)
    if bound.shape != shape:
        raise ValueError(f"a bound has shape {bound.shape}, the Box has {shape}")
    if np.isnan(bound).any():
        raise ValueError("a bound is NaN")
    return bound


def _shape(data: Any) -> tuple[int, ...]:
    shape = tuple(_integer(size) for size in data)
    if len(shape) > _MAX_AXES or min(shape, default=0) < 0 or math.prod(shape) > MAX_ENTRIES:
        raise ValueError(f"no observation or action has the shape {shape!s:.60}")
    return shape


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"`{name!s:.60}` is no type of numbers")
    return dtype


def _count(value: Any, largest: int = 1 << 31) -> int:
    if not 1 <= _integer(value) <= largest:
        raise ValueError(f"there cannot be {value!s:.40} choices")
    return int(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"`{value!s:.40}` is no integer")
    return value
