"""Spaces as strict JSON and back, and checks of which spaces are supported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.errors import CheckpointError

ObservationKind = Literal["vector", "image", "dict"]
SMALLEST_IMAGE = 3  # smallest side in pixels
SMALLEST_IMAGE_LIKE = 8  # smallest side of an array that looks like an image
_PLAIN = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


class ImageLayout(NamedTuple):
    """The axes of an image observation."""

    channels: int
    height: int
    width: int
    channel_axis: Literal["first", "last"] | None


def image_layout(shape: tuple[int, ...]) -> ImageLayout:
    """Return the layout of an image with two or three axes: channels are first if that axis is the shortest.

    Otherwise they are last, so a grid of 10x10 with 10 channels or more is read as MinAtar intends.
    """
    if len(shape) == 2:
        return ImageLayout(1, shape[0], shape[1], None)
    if shape[0] < min(shape[1:]):
        return ImageLayout(shape[0], shape[1], shape[2], "first")
    return ImageLayout(shape[2], shape[0], shape[1], "last")


def observation_kind(space: gym.Space[Any]) -> ObservationKind:
    """Return the kind of encoder that an observation space needs; a Discrete observation counts as a vector.

    Images are Boxes of bytes with two or three axes, and Boxes of booleans with three axes, one plane per kind of
    object.
    """
    if isinstance(space, gym.spaces.Dict):
        return "dict"
    if isinstance(space, gym.spaces.Box):
        if space.dtype == np.uint8 and len(space.shape) in (2, 3):
            return "image"
        if space.dtype == np.bool_ and len(space.shape) == 3:
            layout = image_layout(space.shape)
            return "image" if min(layout.height, layout.width) >= SMALLEST_IMAGE else "vector"
    return "vector"


def image_read_as_vector(space: gym.Space[Any]) -> str | None:
    """Return a warning for an observation that has the shape of an image but is read as a vector, else None."""
    if isinstance(space, gym.spaces.Dict):
        found = ((key, image_read_as_vector(part)) for key, part in space.spaces.items())
        return next((f"entry `{key}`: {oddity}" for key, oddity in found if oddity is not None), None)
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 3 or observation_kind(space) == "image":
        return None
    layout = image_layout(space.shape)
    if min(layout.height, layout.width) < SMALLEST_IMAGE_LIKE:
        return None
    return (
        f"the observation has the shape of an image, {space.shape}, and is read as a vector of "
        f"{math.prod(space.shape)} numbers because it is of {space.dtype}; to have convolutions read it, give it as "
        "uint8 from 0 to 255 (gymnasium.wrappers.TransformObservation)"
    )


def unsupported_observation(space: gym.Space[Any]) -> str | None:
    """Return why observations of `space` are not supported, or None if they are."""
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(part, _PLAIN):
                return (
                    f"key `{key}` is a {type(part).__name__}, and only a flat Dict of Box, Discrete, "
                    f"MultiDiscrete and MultiBinary can be used; {_observation_repair(space, key)}"
                )
        return None if space.spaces else "the Dict is empty"
    if isinstance(space, _PLAIN):
        return None
    return (
        f"{type(space).__name__} is none of Box, Discrete, MultiDiscrete, MultiBinary or a flat Dict of them; "
        f"{_observation_repair(space)}"
    )


def _observation_repair(space: gym.Space[Any], key: str | None = None) -> str:
    """Return the wrapper that makes an observation usable."""
    part = space.spaces[key] if key is not None and isinstance(space, gym.spaces.Dict) else space
    if _is_flattenable(space):
        return "set env_kwargs.flatten_observation to true, which joins all entries to one vector"
    others = [name for name in getattr(space, "spaces", {}) if name != key] if key is not None else []
    if others:
        kept = ", ".join(others)
        return (
            "leave it out by env_kwargs.wrappers: [{use: gymnasium.wrappers:FilterObservation, filter_keys: "
            f"[{kept}]}}], or turn it into numbers by a wrapper of your own there"
        )
    return f"turn the {type(part).__name__} into numbers by a wrapper of your own, named in env_kwargs.wrappers"


def _is_flattenable(space: gym.Space[Any]) -> bool:
    try:
        return bool(space.is_np_flattenable)
    except NotImplementedError:  # of a space of one's own
        return False


def unsupported_action(space: gym.Space[Any]) -> str | None:
    """Return why actions of `space` are not supported, or None if they are."""
    if isinstance(space, _PLAIN):
        return None
    return f"{type(space).__name__} is none of Discrete, MultiDiscrete, MultiBinary or Box"


def same_form(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Return whether arrays of both spaces have the same shape and type; the bounds of a Box may differ."""
    if isinstance(one, gym.spaces.Dict) and isinstance(other, gym.spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(
            same_form(part, other.spaces[key]) for key, part in one.spaces.items()
        )
    if isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box):
        return one.shape == other.shape and one.dtype == other.dtype
    return one == other


def mask_width(space: gym.Space[Any]) -> int:
    """Return the number of entries of an action mask; 0 for Box, which has none.

    The masks of a MultiDiscrete's variables are concatenated; a MultiBinary's mask marks the bits that may be on.
    """
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, gym.spaces.MultiBinary):
        return int(np.prod(space.shape))
    return 0


def joined_spaces(by_task: Mapping[str, gym.Space[Any]]) -> gym.spaces.Dict:
    """Return the spaces of several tasks as one Dict, in the order of the tasks."""
    # Pairs, because a Dict would sort the keys of a mapping.
    return gym.spaces.Dict(list(by_task.items()))


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Return plain data from which `space_from_json` makes an equal space."""
    if isinstance(space, gym.spaces.Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bound_to_json(space.low),
            "high": _bound_to_json(space.high),
        }
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, gym.spaces.MultiBinary):
        n = space.n if isinstance(space.n, int) else [int(size) for size in space.n]
        return {"type": "MultiBinary", "n": n}
    if isinstance(space, gym.spaces.Dict):
        # Pairs, because an encoder may depend on the order of the keys.
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    raise TypeError(f"{type(space).__name__} has no JSON form")


def space_from_json(data: dict[str, Any]) -> gym.Space[Any]:
    """Return the space described by the output of `space_to_json`."""
    try:
        kind = data["type"]
        if kind == "Box":
            dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
            return gym.spaces.Box(
                _bound_from_json(data["low"], shape, dtype),
                _bound_from_json(data["high"], shape, dtype),
                shape,
                dtype.type,
            )
        if kind == "Discrete":
            return gym.spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
        if kind == "MultiDiscrete":
            return gym.spaces.MultiDiscrete(
                np.array(data["nvec"]), dtype=np.dtype(data["dtype"]).type, start=np.array(data["start"])
            )
        if kind == "MultiBinary":
            return gym.spaces.MultiBinary(data["n"])
        if kind == "Dict":
            return gym.spaces.Dict([(key, space_from_json(part)) for key, part in data["spaces"]])
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise CheckpointError(f"the checkpoint describes a space that cannot be read: {error!s:.200}") from error
    raise CheckpointError(f"the checkpoint describes a space of unknown type `{kind!s:.200}`")


def _bound_to_json(bound: np.ndarray) -> Any:
    flat = bound.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return _number_to_json(flat[0].item())
    return [_number_to_json(value) for value in flat.tolist()]


def _bound_from_json(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    if isinstance(data, list):
        return np.array([_number_from_json(value) for value in data], dtype=dtype).reshape(shape)
    return np.full(shape, _number_from_json(data), dtype=dtype)


def _number_to_json(value: float | int) -> float | int | str:
    # Strict JSON has no infinity.
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _number_from_json(value: Any) -> float | int:
    return float(value) if isinstance(value, str) else value
